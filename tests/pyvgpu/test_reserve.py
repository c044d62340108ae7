"""What a context takes: measured on the driver itself, kept, and never believed blindly."""

import dataclasses
import json

import pytest

from pyvgpu import device, names, reserve, shim, simulator
from pyvgpu.volumes import find

MIB = 1 << 20


@pytest.fixture(scope="module")
def driver():
    return find.find_driver(shim.simulator_libraries())


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a simulated machine, which is the driver's by environment."""
    made = simulator.open_machine("t4", tmp_path / "machines")
    monkeypatch.setenv(names.SIMULATED_MACHINE_VARIABLE, str(made.folder))
    return made


def unmeasured(machine):
    """Return its devices as a GPU's are before anything was measured."""
    return tuple(
        dataclasses.replace(entry, context_bytes=device.CONTEXT_BYTES)
        for entry in device.simulated(machine)
    )


def test_the_driver_says_what_a_context_takes(driver, machine):
    assert reserve.measure(driver, machine.devices[0].uuid) == machine.devices[0].context_bytes


def test_it_is_measured_once(driver, machine, tmp_path, monkeypatch):
    said = []
    first = reserve.with_measured(unmeasured(machine), driver, tmp_path, said.append)
    assert first == device.simulated(machine)
    assert len(said) == 1
    monkeypatch.setattr(reserve, "measure", lambda *_: pytest.fail("it was kept"))
    again = reserve.with_measured(unmeasured(machine), driver, tmp_path, said.append)
    assert again == first


def test_no_context_is_made_on_a_device_in_mig_mode(driver, machine, tmp_path):
    simulator.set_faults(machine, "mig 0")
    found = reserve.with_measured(unmeasured(machine), driver, tmp_path, pytest.fail)
    assert found == unmeasured(machine)
    assert [entry.mig for entry in found] == [True]


def test_another_release_is_measured_again(driver, machine, tmp_path, monkeypatch):
    reserve.with_measured(unmeasured(machine), driver, tmp_path, lambda _: None)
    monkeypatch.setattr(reserve, "measure", lambda *_: 301 * MIB)
    newer = dataclasses.replace(driver, release="999.99")
    found = reserve.with_measured(unmeasured(machine), newer, tmp_path, lambda _: None)
    assert [entry.context_bytes for entry in found] == [302 * MIB]


@pytest.mark.parametrize("size", [None, 0, -1, 1 << 60])
def test_where_it_cannot_be_measured_the_usual_reserve_stays(
    driver, machine, tmp_path, monkeypatch, size
):
    said = []
    monkeypatch.setattr(reserve, "measure", lambda *_: size)
    found = reserve.with_measured(unmeasured(machine), driver, tmp_path, said.append)
    assert found == unmeasured(machine)
    assert "640MiB is kept for each context" in said[-1]
    assert not (tmp_path / reserve.FILE).exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": -5}', '{"x": "7"}', '{"x": 1e99}'])
def test_a_damaged_file_is_measured_over(driver, machine, tmp_path, text):
    (tmp_path / reserve.FILE).write_text(text)
    found = reserve.with_measured(unmeasured(machine), driver, tmp_path, lambda _: None)
    assert found == device.simulated(machine)
    assert list(json.loads((tmp_path / reserve.FILE).read_text()).values()) == [
        machine.devices[0].context_bytes
    ]
