"""Memory of a context: measured with the driver, cached and validated."""

import dataclasses
import json

import pytest

from pyvgpu import device, names, shim
from pyvgpu.run import context_overhead
from pyvgpu.simulation import simulator
from pyvgpu.volumes import find

MIB = 1 << 20


@pytest.fixture(scope="module")
def driver():
    return find.find_driver(shim.simulator_libraries())


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a simulated machine, which is the driver's by environment."""
    law = simulator.Law(green_context_percent=10)
    made = simulator.open_machine("t4", tmp_path / "machines", law=law)
    monkeypatch.setenv(names.SIMULATED_MACHINE_VARIABLE, str(made.folder))
    return made


def unmeasured(machine):
    """Return its devices like those of a GPU before any measurement."""
    return tuple(
        dataclasses.replace(
            entry, context_bytes=device.CONTEXT_BYTES, green_bytes=device.GREEN_BYTES
        )
        for entry in device.simulated(machine)
    )


def measured(machine):
    """Return its devices after the measurement, with figures in whole blocks."""
    return tuple(
        dataclasses.replace(entry, green_bytes=-(-entry.green_bytes // (2 * MIB)) * 2 * MIB)
        for entry in device.simulated(machine)
    )


def test_memory_of_contexts_and_green_contexts_is_measured(driver, machine):
    size = machine.devices[0].context_bytes
    assert context_overhead.measure(driver, machine.devices[0].uuid) == context_overhead.Taken(
        size, size // 10
    )


def test_memory_that_nvml_counts_for_no_process_is_measured(driver, tmp_path, monkeypatch):
    law = simulator.Law(green_context_percent=10, uncounted_bytes=9 * MIB)
    machine = simulator.open_machine("t4", tmp_path / "machines", law=law)
    monkeypatch.setenv(names.SIMULATED_MACHINE_VARIABLE, str(machine.folder))
    size = machine.devices[0].context_bytes
    assert context_overhead.measure(driver, machine.devices[0].uuid) == context_overhead.Taken(
        size, size // 10, 9 * MIB
    )


def seen(used, **others):
    return context_overhead.MemoryValues(used, others)


@pytest.mark.parametrize(
    ("before", "after", "more"),
    [
        pytest.param(seen(100), seen(100 + 609 * MIB), 9 * MIB, id="nothing else changed"),
        pytest.param(seen(100), seen(100 + 600 * MIB), 0, id="the driver has none"),
        pytest.param(seen(100), seen(100 + 500 * MIB), None, id="less: memory was freed"),
        pytest.param(seen(100), seen(100 + 700 * MIB), None, id="more than a driver's own"),
        pytest.param(seen(100, one=5), seen(100 + 609 * MIB, one=6), None, id="another grew"),
        pytest.param(seen(100, one=5), seen(100 + 609 * MIB), None, id="another ended"),
    ],
)
def test_uncounted_memory_needs_an_otherwise_unchanged_device(before, after, more):
    assert context_overhead.uncounted(600 * MIB, before, after) == more


def test_unknown_values_are_measured_again(driver, machine, tmp_path, monkeypatch):
    unknown = context_overhead.Taken(300 * MIB, 30 * MIB, None)
    monkeypatch.setattr(context_overhead, "measure", lambda *_: unknown)
    (first,) = context_overhead.with_measured(
        unmeasured(machine), driver, tmp_path, lambda _: None
    )
    assert (first.context_bytes, first.uncounted_bytes) == (300 * MIB, 0)
    known = context_overhead.Taken(309 * MIB, 30 * MIB, 9 * MIB)
    monkeypatch.setattr(context_overhead, "measure", lambda *_: known)
    (again,) = context_overhead.with_measured(
        unmeasured(machine), driver, tmp_path, lambda _: None
    )
    assert (again.context_bytes, again.uncounted_bytes) == (310 * MIB, 9 * MIB)


def test_contexts_are_measured_once(driver, machine, tmp_path, monkeypatch):
    said = []
    first = context_overhead.with_measured(unmeasured(machine), driver, tmp_path, said.append)
    assert first == measured(machine)
    assert len(said) == 1
    monkeypatch.setattr(context_overhead, "measure", lambda *_: pytest.fail("it was kept"))
    again = context_overhead.with_measured(unmeasured(machine), driver, tmp_path, said.append)
    assert again == first


def test_no_context_is_made_on_a_device_in_mig_mode(driver, machine, tmp_path):
    simulator.set_faults(machine, "mig 0")
    found = context_overhead.with_measured(unmeasured(machine), driver, tmp_path, pytest.fail)
    assert found == unmeasured(machine)
    assert [entry.mig for entry in found] == [True]


def test_another_release_is_measured_again(driver, machine, tmp_path, monkeypatch):
    context_overhead.with_measured(unmeasured(machine), driver, tmp_path, lambda _: None)
    monkeypatch.setattr(
        context_overhead, "measure", lambda *_: context_overhead.Taken(301 * MIB, 31 * MIB)
    )
    newer = dataclasses.replace(driver, release="999.99")
    found = context_overhead.with_measured(unmeasured(machine), newer, tmp_path, lambda _: None)
    assert [(entry.context_bytes, entry.green_bytes) for entry in found] == [(302 * MIB, 32 * MIB)]


@pytest.mark.parametrize(
    "taken",
    [
        None,
        context_overhead.Taken(0, 0),
        context_overhead.Taken(-1, 0),
        context_overhead.Taken(1 << 60, 0),
        context_overhead.Taken(300 * MIB, -1),
        context_overhead.Taken(300 * MIB, 301 * MIB),
    ],
)
def test_failed_measurement_keeps_the_default_reserve(
    driver, machine, tmp_path, monkeypatch, taken
):
    said = []
    monkeypatch.setattr(context_overhead, "measure", lambda *_: taken)
    found = context_overhead.with_measured(unmeasured(machine), driver, tmp_path, said.append)
    assert found == unmeasured(machine)
    assert "640MiB is reserved for each context" in said[-1]
    assert not (tmp_path / context_overhead.FILE).exists()


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": -5}', '{"x": "7"}', '{"x": 1e99}'])
def test_a_damaged_file_is_measured_again(driver, machine, tmp_path, text):
    (tmp_path / context_overhead.FILE).write_text(text)
    found = context_overhead.with_measured(unmeasured(machine), driver, tmp_path, lambda _: None)
    assert found == measured(machine)
    assert list(json.loads((tmp_path / context_overhead.FILE).read_text()).values()) == [
        found[0].context_bytes,
        found[0].green_bytes,
        0,
    ]


def test_a_file_without_green_contexts_is_measured_again(driver, machine, tmp_path):
    old = {f"{driver.release} {machine.devices[0].name}": 640 * MIB}
    (tmp_path / context_overhead.FILE).write_text(json.dumps(old))
    found = context_overhead.with_measured(unmeasured(machine), driver, tmp_path, lambda _: None)
    assert found == measured(machine)
