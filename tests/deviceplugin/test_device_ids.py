"""Unhealthy ids: as many as the device has, and never another device's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvgpu.deviceplugin.kubelet import device_ids, offers

VCORE = device_ids.OURS[0]
EVERYTHING = VCORE.ids(8)  # of two devices with four each


def some(*numbers):
    return frozenset(f"c{number}" for number in numbers)


def capacity(given=(), **more):
    return device_ids.ResourceCapacity(4, some(*given), **more)


@pytest.mark.parametrize(
    ("capacities", "held", "bad"),
    [
        pytest.param([capacity(), capacity()], (), (), id="all healthy"),
        pytest.param(
            [capacity(unhealthy=True), capacity()], (), (4, 5, 6, 7), id="unhealthy and empty"
        ),
        pytest.param(
            [capacity([0, 6], unhealthy=True), capacity()], (0, 6), (0, 4 + 1, 6, 7), id="its own"
        ),
        pytest.param(
            [capacity([0], closed=True), capacity()], (0,), (5, 6, 7), id="closed: the free"
        ),
        pytest.param(
            [capacity([0, 1, 2, 3], unhealthy=True), capacity([4, 5])],
            range(6),
            (0, 1, 2, 3),
            id="full",
        ),
        pytest.param(
            [capacity([0], unhealthy=True), capacity([2, 3, 4, 5])],
            (0, 2, 3, 4, 5),
            (0, 1, 6, 7),
            id="both",
        ),
        pytest.param(
            [capacity([], unhealthy=True), capacity([0, 1])],
            (0, 1, 5, 6, 7),
            (2, 3, 4),
            id="not enough",
        ),
        pytest.param(
            [capacity([0, 1], closed=True), capacity([0, 1], closed=True)],
            (0, 1),
            (2, 3, 4, 5, 6, 7),
            id="closed, with the same ids on both",
        ),
        pytest.param(
            [capacity([0, 1]), capacity([0, 1])], (0, 1), (6, 7), id="the same ids on both"
        ),
        pytest.param(
            [capacity([0], taken=3), capacity()], (0,), (5, 6, 7), id="whole, with its rest"
        ),
    ],
)
def test_number_of_unhealthy_ids(capacities, held, bad):
    assert device_ids.unhealthy(EVERYTHING, capacities, some(*held)) == some(*bad)


def test_unhealthy_ids_stay_unhealthy():
    before = some(1, 2, 3, 4)
    found = device_ids.unhealthy(
        EVERYTHING, [capacity(unhealthy=True), capacity()], some(), before
    )
    assert found == before


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=4))
def test_ids_of_other_devices_stay_healthy(devices):
    everything = VCORE.ids(4 * len(devices))
    capacities, held, next_one = [], set(), 0
    for used, unhealthy in devices:
        own = some(*range(next_one, next_one + used))
        capacities.append(device_ids.ResourceCapacity(4, own, unhealthy=unhealthy))
        held |= own
        next_one += used
    found = device_ids.unhealthy(everything, capacities, frozenset(held))
    assert not found & {
        given_id for one in capacities if not one.unhealthy for given_id in one.given
    }
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


GIB = 1 << 30


@pytest.mark.parametrize(
    ("gib", "unit", "valid"),
    [
        ([80] * 8, 256, ""),
        ([288] * 16, 36, ""),
        ([80] * 8, 1, "valid would be 8Mi"),
        ([141] * 8, 4, "valid would be 16Mi"),
        ([288] * 16, 16, "valid would be 64Mi"),
    ],
)
def test_more_ids_than_kubelet_takes_are_refused_with_a_valid_unit(gib, unit, valid):
    sizes = [size * GIB for size in gib]
    why = device_ids.too_many(sizes, unit << 20)
    assert bool(why) == bool(valid)
    assert valid in why
    if valid:
        least = int(valid.split()[-1].removesuffix("Mi"))
        assert not device_ids.too_many(sizes, least << 20)


def test_the_most_ids_fit_a_message_of_kubelet():
    resource = device_ids.OURS[1]
    offer = offers.Offer(resource)
    ids = resource.ids(device_ids.MOST_IDS)
    offer.set(len(ids), frozenset(ids), dict.fromkeys(ids, 1))
    assert next(offer.changes(lambda: True)).ByteSize() <= 4 << 20
