"""Events on pods: one for each new reason, at a limited rate."""

import threading

import pytest
import scheduling_api as make
import waiting

from pyvgpu.controller.scheduler import pod_request
from pyvgpu.controller.scheduler.shell import scheduling_events
from pyvgpu.kube import event_recorder

EVENTS = "/api/v1/namespaces/n/events"


@pytest.fixture
def limits():
    return scheduling_events.LIMITS


@pytest.fixture
def tell(cluster, limits):
    api, connection = cluster
    said = {}
    recorder = scheduling_events.SchedulingEvents(
        connection, lambda pod, names: said.get(pod.uid, ""), limits
    )
    stop = threading.Event()
    thread = threading.Thread(target=recorder.run, args=(stop,))
    thread.start()
    yield recorder, api, said
    stop.set()
    recorder.close()
    thread.join(30)
    assert not thread.is_alive()


def events(api):
    return [(event["reason"], event["message"]) for event in api.under(EVENTS)]


def pod(name):
    return pod_request.read(make.pod(name))


def test_a_waiting_pod_gets_one_event_for_a_reason(tell):
    recorder, api, said = tell
    said["uid-a"] = "gpu0 needs 50 vcore, has 30 free"
    for _ in range(3):
        recorder.waits(pod("a"), [])
    recorder.say(pod("b"), "VGPUPreempted", "for another")
    waiting.wait_until(lambda: len(events(api)) == 2)
    assert sorted(events(api)) == [
        ("VGPUPreempted", "for another"),
        ("VGPUWaits", said["uid-a"]),
    ]
    (event,) = [entry for entry in api.under(EVENTS) if entry["reason"] == "VGPUWaits"]
    assert event["involvedObject"]["uid"] == "uid-a"


@pytest.mark.parametrize("limits", [event_recorder.EventLimits(0.0, 600.0)])
def test_only_a_new_reason_makes_another_event(tell):
    recorder, api, said = tell
    for text in ("one", "one", "two"):
        said["uid-a"] = text
        recorder.waits(pod("a"), [])
        recorder.say(pod("b"), "Mark", f"after {text}")  # earlier events are written by then
        waiting.wait_until(lambda text=text: ("Mark", f"after {text}") in events(api))
    waits = [message for reason, message in events(api) if reason == "VGPUWaits"]
    assert sorted(waits) == ["one", "two"]


def test_a_pod_that_no_longer_waits_gets_no_event(tell):
    recorder, api, _ = tell
    recorder.waits(pod("a"), [])
    recorder.say(pod("b"), "Mark", "x")
    waiting.wait_until(lambda: events(api))
    assert events(api) == [("Mark", "x")]


def test_a_long_message_is_truncated(tell):
    recorder, api, _ = tell
    recorder.say(pod("a"), "Mark", "\u00f6" * 2000)
    waiting.wait_until(lambda: events(api))
    ((_, text),) = events(api)
    assert len(text.encode()) <= 1024
    assert text.endswith("...")
