"""Shared memory lives, and counts, while any process has it open, whichever one dies."""

import contextlib
import os
import subprocess
import time

import driver_memory
import machine_room
import programs
import pytest

from pyvgpu.simulation import simulator

MIB = 1 << 20
BYTES = 8 * MIB
KINDS = ["linear", "physical", "fabric", "pool", "external"]
LEFT = dict.fromkeys(KINDS, BYTES) | {"pool": 32 * MIB}  # a pool is kept as a whole


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    return simulator.open_machine("h100", tmp_path, mode="free")


class Sides:
    """A process that exports and one that imports; each does a step per input line."""

    def __init__(self, machine, kind):
        there, here = os.pipe(), os.pipe()
        self.owner = subprocess.Popen(
            [programs.compiled("share"), "export", kind, str(BYTES), str(there[0]), str(here[1])],
            env=machine_room.environment(machine),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(there[0], here[1]),
        )
        os.close(there[0])
        os.close(here[1])
        self._to, self._from = os.fdopen(there[1], "w"), os.fdopen(here[0])
        assert self._from.readline() == "there\n"

    def owner_goes_on(self):
        self._step(self.owner.stdin, self.owner.stdout, "freed\n")

    def owner_dies(self):
        self.owner.kill()
        self.owner.communicate()

    def importer_goes_on(self, expected):
        self._step(self._to, self._from, f"{expected}\n")

    def importer_ends(self):
        self._to.close()
        assert self._from.read() == ""  # it is exiting, and not our child to wait for

    def end(self):
        with contextlib.suppress(BrokenPipeError):
            self._to.close()
        self._from.close()
        self.owner.communicate()

    @staticmethod
    def _step(to, answers, expected):
        to.write("\n")
        to.flush()
        assert answers.readline() == expected


@pytest.fixture(name="sides")
def fixture_sides(machine, request):
    made = Sides(machine, request.param)
    yield made
    made.end()


every_kind = pytest.mark.parametrize(
    ("sides", "left"), LEFT.items(), indirect=["sides"], ids=KINDS
)


@every_kind
def test_memory_freed_by_the_owner_stays_with_the_importer(machine, sides, left):
    sides.importer_goes_on("open")
    assert driver_memory.left_bytes(machine) == 0
    before = driver_memory.used_bytes(machine)
    sides.owner_goes_on()
    assert driver_memory.left_bytes(machine) == left
    assert driver_memory.used_bytes(machine) == before
    sides.importer_goes_on("closed")
    assert driver_memory.left_bytes(machine) == 0
    assert driver_memory.used_bytes(machine) == before - left


@every_kind
def test_memory_of_a_killed_owner_stays_with_the_importer(machine, sides, left):
    context = machine.devices[0].context_bytes
    sides.importer_goes_on("open")
    sides.owner_dies()
    assert driver_memory.used_bytes(machine) == context + left
    sides.importer_goes_on("closed")
    assert driver_memory.used_bytes(machine) == context


@every_kind
def test_import_of_a_killed_process_is_released(machine, sides, left):
    sides.importer_goes_on("open")
    sides.owner_dies()
    assert driver_memory.left_bytes(machine) == left
    sides.importer_ends()
    deadline = time.monotonic() + 120
    while driver_memory.used_bytes(machine) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert driver_memory.used_bytes(machine) == 0
    files = {file.name for file in machine.folder.iterdir() if file.name.startswith("shared")}
    machine_room.run(machine, programs.compiled("hammer"), "free")
    assert {file for file in files if (machine.folder / file).exists()} == set()


@pytest.mark.parametrize(
    ("sides", "left"),
    [("linear", 0), ("fabric", 0), ("physical", BYTES), ("pool", 32 * MIB)],
    indirect=["sides"],
    ids=["handle", "fabric handle", "descriptor", "pool's descriptor"],
)
def test_descriptor_keeps_memory_that_a_handle_does_not(machine, sides, left):
    sides.owner_dies()
    assert driver_memory.left_bytes(machine) == left
    if left == BYTES:
        sides.importer_goes_on("open")
        assert driver_memory.left_bytes(machine) == left
        sides.importer_goes_on("closed")
        assert driver_memory.left_bytes(machine) == 0


def test_a_file_stands_for_memory_of_another_api(machine, tmp_path):
    file = tmp_path / "foreign"
    file.write_bytes(b"")
    os.truncate(file, BYTES)
    assert programs.run(machine, "share", "foreign", str(file), str(BYTES)) == "ok\n"
