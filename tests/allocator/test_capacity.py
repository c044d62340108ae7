"""Fit and score of nodes from packed numbers, in Python and compiled by Cython."""

import pure
import pytest
from allocator_nodes import device
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvgpu.allocator import capacity, codes, datatypes, free_capacity

GIB = 1 << 30
NAME = "pyvgpu.allocator.capacity"
FORMS = [capacity, pure.load(NAME)]

places = st.tuples(
    st.sampled_from([0, 16 * GIB, 80 * GIB]),
    st.sampled_from([1, GIB]),
    st.integers(-20, 100),
    st.integers(-GIB, 80 * GIB),
    st.integers(0, 2),
    st.integers(-1, 2),
    st.integers(-1, 2 * codes.FULL),
    st.sampled_from([0, 50]),
    st.sampled_from([0, 16 * GIB]),
)
nodes = st.lists(
    st.none() | st.tuples(st.sampled_from([0, GIB, 2 * GIB]), st.lists(places, max_size=9)),
    max_size=5,
)
needs = st.lists(
    st.tuples(st.integers(1, 100), st.integers(0, 90 * GIB), st.integers(1, 9)),
    min_size=1,
    max_size=3,
)
selectors = st.sampled_from(
    [None, lambda kinds: bytes(kind == "b" for kind in kinds), lambda kinds: bytes(len(kinds))]
)
uuids = st.frozensets(st.sampled_from("0123456789"), max_size=3)


@pytest.mark.slow
@settings(max_examples=300)
@given(nodes, needs, selectors, uuids, uuids, st.booleans())
def test_python_and_cython_agree(given_nodes, asked, allow, named, unwanted, spread):
    said = []
    for form in FORMS:
        made = [
            node and form.Capacity(node[0], node[1], ("a", "b", "c"), tuple(map(str, range(9))))
            for node in given_nodes
        ]
        asks = {GIB: form.Ask(asked, allow, named, unwanted), 2 * GIB: None}
        fitting, scores = (bytearray(b"\x63" * len(made)) for _ in range(2))
        numbers = range(len(made))
        form.evaluate_all(made, numbers, asks.__getitem__, fitting)
        form.score_all(made, numbers, asks.__getitem__, spread, fitting, scores)
        assert set(scores) <= set(range(11))
        said.append((fitting, scores))
    assert said[0] == said[1]


@pytest.mark.parametrize("form", FORMS, ids=["imported", "python"])
def test_indices_out_of_range_are_refused(form):
    for numbers, found in (([1], bytearray(2)), ([0], bytearray())):
        with pytest.raises(IndexError):
            form.evaluate_all([None], numbers, lambda _: None, found)


def test_only_indexed_nodes_are_evaluated():
    found = bytearray(b"\x63\x63\x63")
    capacity.evaluate_all([None] * 3, {1}, lambda _: None, found)
    assert bytes(found) == b"\x63\x06\x63"


def test_consecutive_equal_units_are_looked_up_once():
    asked = []
    made = [capacity.Capacity(unit, (), (), ()) for unit in (1, 1, 2, 2)]
    capacity.evaluate_all(made, range(4), asked.append, bytearray(4))
    assert asked == [1, 2]


def scored(need, *parts, spread=False):
    """Score a node of oversubscribed devices with these shares: their vcore, and GiB of each."""
    devices = [device(index, reservable=200) for index in range(len(parts))]
    held = [
        datatypes.Holding(datatypes.NodeShare(one.uuid, vcore, size * GIB), "other")
        for one, (vcores, size) in zip(devices, parts, strict=True)
        for vcore in vcores
    ]
    free = free_capacity.of(datatypes.NodeDevices(tuple(devices), tuple(held)))
    pod = datatypes.Pod((datatypes.Container("a", need),))
    return free_capacity.numbers(1, free).score(free_capacity.asked(pod), spread)


@pytest.mark.parametrize("spread", [False, True])
def test_nodes_on_which_no_pod_is_suspended_score_higher(spread):
    half = datatypes.ContainerNeed(50, 40 * GIB)
    with_room = [((), 0)], [([50], 8)], [([50], 40)], [([75, 75], 50), ([50], 40)]
    without = [([51], 8)], [([50], 41)], [([60, 60], 45)], [([51], 8), ([75, 75], 10)]
    lowest = min(scored(half, *parts, spread=spread) for parts in with_room)
    highest = max(scored(half, *parts, spread=spread) for parts in without)
    assert lowest > highest
    fuller = scored(half, ([75, 75], 60), spread=spread)
    assert scored(half, ([51], 8), spread=spread) > fuller


def test_a_request_may_exceed_the_integer_range():
    node = free_capacity.numbers(1, free_capacity.of(datatypes.NodeDevices((device(0),))))
    for need in (datatypes.ContainerNeed(10, 1 << 90), datatypes.ContainerNeed(100, 0, 1 << 70)):
        pod = datatypes.Pod((datatypes.Container("a", need),))
        assert node.evaluate(free_capacity.asked(pod)) != codes.FITS
        assert not free_capacity.has(
            device(0), datatypes.ContainerNeed(10, 1 << 90), 100, 1 << 40, untouched=True
        )
