"""The second PreStartContainer call of a container reuses the work of the first, once."""

import pytest

from pyvgpu.deviceplugin.grants import prestart
from pyvgpu.deviceplugin.kubelet.device_ids import ResourceKind

ID = "0" * 16


@pytest.fixture
def clock():
    return [100.0]


@pytest.fixture
def known(clock):
    return prestart.Fresh(lambda: clock[0])


@pytest.mark.parametrize("first", [ResourceKind.VCORE, ResourceKind.VMEMORY])
def test_second_call_finds_the_grant_prepared_once(known, first):
    (second,) = {ResourceKind.VCORE, ResourceKind.VMEMORY} - {first}
    known.note(ID, first)
    assert known.take(ID, second)
    assert not known.take(ID, second)
    assert not known.take(ID, first)


def test_repeated_call_of_one_kind_is_a_new_start(known):
    known.note(ID, ResourceKind.VCORE)
    assert not known.take(ID, ResourceKind.VCORE)
    assert not known.take(ID, ResourceKind.VMEMORY)  # it may belong to either start


def test_grant_prepared_in_advance_serves_both_kinds(known):
    known.note(ID)
    assert known.take(ID, ResourceKind.VMEMORY)
    assert known.take(ID, ResourceKind.VCORE)
    assert not known.take(ID, ResourceKind.VMEMORY)


def test_entry_expires_after_a_while(known, clock):
    known.note(ID, ResourceKind.VCORE)
    clock[0] += prestart.FRESH_SECONDS + 1
    assert not known.take(ID, ResourceKind.VMEMORY)


def test_entries_of_ended_grants_are_dropped(known):
    known.note(ID)
    known.note("1" * 16)
    known.keep({"1" * 16})
    assert not known.take(ID, ResourceKind.VCORE)
    assert known.take("1" * 16, ResourceKind.VCORE)
