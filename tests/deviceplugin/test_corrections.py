"""A ledger is parsed again only if something has changed since the last comparisons."""

import os

import pytest
from granted import GIB, grant_of, share_of

from pyvgpu import locks, names, region
from pyvgpu.deviceplugin.audit import corrections
from pyvgpu.region import layout

PID = os.getpid()


class Compared:
    """The corrections of one grant with a live slot, and how often its ledger was parsed."""

    def __init__(self, places, grant, monkeypatch):
        self._corrections, self._grant = corrections.Corrections(places), grant
        self.parsed, self.held = 0, 0
        self.usage = places.path(grant.id) / names.USAGE_FILE
        self.process = os.open(self.usage, os.O_RDWR)
        assert locks.take(self.process, layout.SLOT_BYTE)
        read = region.read_counted_slots

        def counted(*given):
            self.parsed += 1
            return read(*given)

        monkeypatch.setattr(region, "read_counted_slots", counted)

    def poll(self, *pids):
        """Compare once; whether the ledger was parsed."""
        before = self.parsed
        held = {self._grant.shares[0].uuid: dict.fromkeys(pids, self.held)}
        self._corrections.sample([self._grant], held, {self._grant.id: set(pids)})
        return self.parsed > before


@pytest.fixture
def compared(places, machine, driver, monkeypatch):
    grant = grant_of(share_of(machine))
    places.make(grant, driver)
    made = Compared(places, grant, monkeypatch)
    yield made
    os.close(made.process)


def test_unchanged_ledger_is_not_parsed_forever(compared):
    assert compared.poll()
    for _ in range(10):
        compared.poll()
    assert not compared.poll()


def charge(compared):
    file = os.open(compared.usage, os.O_RDWR)
    os.pwrite(file, b"\1", region.usages._CHARGED[0])
    os.close(file)


def another_slot(compared):
    assert locks.take(compared.process, layout.SLOT_BYTE + 1)


def more_memory(compared):
    compared.held = GIB


@pytest.mark.parametrize("change", [charge, another_slot, more_memory])
def test_a_change_is_compared(compared, change):
    for _ in range(10):
        compared.poll(PID)
    assert not compared.poll(PID)
    change(compared)
    assert compared.poll(PID)


def test_a_process_that_nvml_no_longer_lists_is_compared(compared):
    for _ in range(10):
        compared.poll(PID)
    assert compared.poll()
