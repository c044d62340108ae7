"""Subscribers of the grant manager: each hears of everything, whatever the order they came in."""

import itertools

import grant_room
import pytest
import waiting
from fake_kubelet import container, pod

from pyvgpu.deviceplugin.subscribers import Subscribers


def test_subscribers_are_called_in_order_with_the_values():
    heard = []
    subscribers = Subscribers()
    subscribers.add(lambda value: heard.append(("first", value)))
    subscribers.add(lambda value: heard.append(("second", value)))
    subscribers(7)
    assert heard == [("first", 7), ("second", 7)]


def test_a_failing_subscriber_silences_no_other_and_its_failure_is_raised():
    heard = []
    subscribers = Subscribers()

    def fail():
        raise ValueError("the first failure")

    for function in (fail, lambda: heard.append(1), lambda: 1 / 0, lambda: heard.append(2)):
        subscribers.add(function)
    with pytest.raises(ValueError, match="the first failure"):
        subscribers()
    assert heard == [1, 2]


@pytest.mark.parametrize("order", list(itertools.permutations(["publisher", "dra", "metrics"])))
def test_all_subscribers_hear_of_a_grant_in_any_order(kubelet, tmp_path, order):
    heard = {name: [] for name in order}
    with grant_room.running(kubelet, tmp_path, grant_room.devices(1)) as room:
        for name in order:
            room.grant_manager.observers.changed.add(
                lambda name=name: heard[name].append("changed")
            )
            room.grant_manager.observers.bound.add(
                lambda bound_pod, shares, name=name: heard[name].append((bound_pod.name, *shares))
            )
        assert room.run(pod("one", container("a", 30, 2)), "a") == "30 2 GPU-0"
        waiting.wait_until(lambda: all("changed" in events for events in heard.values()))
    assert all(("one", "a") in events for events in heard.values())
