"""Unhealthy ids: as many as the device has, and never another device's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvgpu.deviceplugin.kubelet import device_ids

VCORE = device_ids.OURS[0]
EVERYTHING = VCORE.ids(8)  # of two devices with four each


def some(*numbers):
    return frozenset(f"c{number}" for number in numbers)


def stand(given=(), **more):
    return device_ids.ResourceCapacity(4, some(*given), **more)


@pytest.mark.parametrize(
    ("stands", "held", "bad"),
    [
        pytest.param([stand(), stand()], (), (), id="all healthy"),
        pytest.param([stand(unhealthy=True), stand()], (), (4, 5, 6, 7), id="unhealthy and empty"),
        pytest.param(
            [stand([0, 6], unhealthy=True), stand()], (0, 6), (0, 4 + 1, 6, 7), id="its own"
        ),
        pytest.param([stand([0], closed=True), stand()], (0,), (5, 6, 7), id="closed: the free"),
        pytest.param(
            [stand([0, 1, 2, 3], unhealthy=True), stand([4, 5])], range(6), (0, 1, 2, 3), id="full"
        ),
        pytest.param(
            [stand([0], unhealthy=True), stand([2, 3, 4, 5])],
            (0, 2, 3, 4, 5),
            (0, 1, 6, 7),
            id="both",
        ),
        pytest.param(
            [stand([], unhealthy=True), stand([0, 1])], (0, 1, 5, 6, 7), (2, 3, 4), id="not enough"
        ),
        pytest.param(
            [stand([0, 1], closed=True), stand([0, 1], closed=True)],
            (0, 1),
            (2, 3, 4, 5, 6, 7),
            id="closed, with the same ids on both",
        ),
        pytest.param([stand([0, 1]), stand([0, 1])], (0, 1), (6, 7), id="the same ids on both"),
        pytest.param([stand([0], taken=3), stand()], (0,), (5, 6, 7), id="whole, with its rest"),
    ],
)
def test_number_of_unhealthy_ids(stands, held, bad):
    assert device_ids.unhealthy(EVERYTHING, stands, some(*held)) == some(*bad)


def test_unhealthy_ids_stay_unhealthy():
    before = some(1, 2, 3, 4)
    found = device_ids.unhealthy(EVERYTHING, [stand(unhealthy=True), stand()], some(), before)
    assert found == before


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=4))
def test_ids_of_other_devices_stay_healthy(devices):
    everything = VCORE.ids(4 * len(devices))
    stands, held, next_one = [], set(), 0
    for used, unhealthy in devices:
        own = some(*range(next_one, next_one + used))
        stands.append(device_ids.ResourceCapacity(4, own, unhealthy=unhealthy))
        held |= own
        next_one += used
    found = device_ids.unhealthy(everything, stands, frozenset(held))
    assert not found & {given_id for one in stands if not one.unhealthy for given_id in one.given}
    assert len(found) == 4 * sum(unhealthy for _, unhealthy in devices)


def test_lowest_ids_are_preferred():
    assert device_ids.preferred(["c10", "c9", "c2"], ["c5"], 3) == ("c5", "c2", "c9")


@pytest.mark.parametrize(
    ("must", "size", "found"),
    [
        pytest.param((), 2, ("c9", "c2"), id="in the given order"),
        pytest.param((), 4, ("c9", "c2", "c3", "c10"), id="then the others, lowest first"),
        pytest.param(("c2",), 2, ("c2", "c9"), id="beside a required one"),
        pytest.param(("c2", "c3"), 1, ("c2", "c3"), id="no fewer than required"),
        pytest.param((), 9, ("c9", "c2", "c3", "c10"), id="no more than there are"),
    ],
)
def test_preferred_ids_follow_the_order(must, size, found):
    order = ["c7", "c9", "c2", "c9"]
    assert device_ids.preferred(["c10", "c9", "c2", "c3"], must, size, order) == found
