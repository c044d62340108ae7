"""The second of a container's two calls is answered with what was done for the first, once."""

import pytest

from pyvgpu.deviceplugin import fresh
from pyvgpu.deviceplugin.ids import Kind

ID = "0" * 16


@pytest.fixture
def clock():
    return [100.0]


@pytest.fixture
def known(clock):
    return fresh.Fresh(lambda: clock[0])


@pytest.mark.parametrize("first", [Kind.VCORE, Kind.VMEMORY])
def test_the_other_resource_is_made_already_and_the_next_start_is_not(known, first):
    (second,) = {Kind.VCORE, Kind.VMEMORY} - {first}
    known.note(ID, first)
    assert known.take(ID, second)
    assert not known.take(ID, second)
    assert not known.take(ID, first)


def test_who_asks_for_the_same_again_begins_again(known):
    known.note(ID, Kind.VCORE)
    assert not known.take(ID, Kind.VCORE)
    assert not known.take(ID, Kind.VMEMORY)  # of which nobody knows any more what it is of


def test_what_was_made_for_nobody_yet_is_made_for_both(known):
    known.note(ID)
    assert known.take(ID, Kind.VMEMORY)
    assert known.take(ID, Kind.VCORE)
    assert not known.take(ID, Kind.VMEMORY)


def test_after_a_while_it_is_another_start(known, clock):
    known.note(ID, Kind.VCORE)
    clock[0] += fresh.SECONDS + 1
    assert not known.take(ID, Kind.VMEMORY)


def test_grants_that_are_over_are_forgotten(known):
    known.note(ID)
    known.note("1" * 16)
    known.keep({"1" * 16})
    assert not known.take(ID, Kind.VCORE)
    assert known.take("1" * 16, Kind.VCORE)
