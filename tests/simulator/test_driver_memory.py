"""The account of a machine counts memory in use, and never that of dead processes."""

import signal

import driver_memory
import machine_room
import programs
import pytest

from pyvgpu.simulation import simulator

MIB = 1 << 20


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    return simulator.open_machine("t4", tmp_path)


def test_peak_is_the_highest_simultaneous_usage(machine):
    context = machine.devices[0].context_bytes
    driver_memory.watch(machine)
    with machine_room.holder(machine, size=100 * MIB) as one:
        with machine_room.holder(machine, size=200 * MIB) as other:
            assert driver_memory.bytes_by_process(machine) == {
                one.pid: context + 100 * MIB,
                other.pid: context + 200 * MIB,
            }
        assert driver_memory.used_bytes(machine) == context + 100 * MIB
    assert driver_memory.used_bytes(machine) == 0
    assert driver_memory.peak_bytes(machine) == 2 * context + 300 * MIB


def test_peak_starts_at_current_usage(machine):
    with machine_room.holder(machine, size=100 * MIB) as held:
        driver_memory.watch(machine)
        assert (
            driver_memory.peak_bytes(machine) == driver_memory.bytes_by_process(machine)[held.pid]
        )


def test_successive_dead_processes_do_not_add_up(machine):
    driver_memory.watch(machine)
    for _ in range(10):
        held = programs.start(machine, "hammer", "hold", str(1 << 30))
        held.send_signal(signal.SIGKILL)
        held.communicate()
    assert driver_memory.used_bytes(machine) == 0
    assert driver_memory.peak_bytes(machine) == machine.devices[0].context_bytes + (1 << 30)
