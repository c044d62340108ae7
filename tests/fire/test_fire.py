"""Random operations of all families by sixteen processes that are killed, stopped and forked.

Variables: PYVGPU_FIRE_SEED, PYVGPU_FIRE_OPERATIONS; FIRE_FAMILIES names the only families.
"""

import os
import random
import select
import signal
import subprocess
import time

import driver_memory
import fire
import pytest
import shim_room
from shim_room import GIB

from pyvgpu.simulation import simulator

SEED = int(os.environ.get("PYVGPU_FIRE_SEED", random.randrange(1 << 32)))
OPERATIONS = int(os.environ.get("PYVGPU_FIRE_OPERATIONS", 40_000))
ROUNDS = 4

pytestmark = pytest.mark.fire


@pytest.fixture
def machine(tmp_path):
    return simulator.open_machine("h100:2", root=tmp_path / "machines", mode="free")


@pytest.fixture
def quota(machine):
    """Return a quota for most of the contexts, and some gigabytes to compete for."""
    return 12 * machine.devices[0].context_bytes + 2 * GIB


@pytest.fixture
def room(tmp_path, machine, quota):
    with shim_room.room(tmp_path / "room", machine, vmemory=quota, ordinals=(0, 1)) as made:
        yield made


def everything_is_back(room, machine, quota):
    """Return whether the ledger, the machine and a new process find nothing in use."""
    free = room.ask("context(); answer(available())")
    usage = room.usage()
    return (
        free == quota - room.reserve
        and not usage.slots
        and not any(usage.charged)
        and not any(driver_memory.used_bytes(machine, device) for device in (0, 1))
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_quota_is_never_exceeded_and_no_byte_is_lost(tmp_path, room, machine, quota):
    with fire.fire(tmp_path / "fire", room, quota, SEED) as lit:
        for _ in range(ROUNDS):
            lit.burn(OPERATIONS // ROUNDS)
            lit.rest()
        lit.end()
        assert lit.lowerings or OPERATIONS < 40_000, lit.say("never was the quota below its use")
        assert everything_is_back(room, machine, quota), lit.say(f"{room.usage()}")
    left = {path.name for path in machine.folder.iterdir()}
    assert left == {"machine.conf", "machine.lock", "owners", "state"}
    assert {path.name for path in room.folder.iterdir()} == {"quota", "usage"}


def test_witness_fails_without_a_shim(tmp_path, room, quota):
    with fire.fire(tmp_path / "fire", room, quota, SEED, bare=True) as lit:
        command = [*lit.witness.args[:-1], str(quota)]
        witness = subprocess.run(command, env=lit.environment(), capture_output=True, timeout=60)
    assert witness.returncode == 3
    assert b"cuMemGetInfo: free, total" in witness.stderr


def test_all_processes_end_with_the_test_process(tmp_path, room, quota):
    reader, writer = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        with fire.fire(tmp_path / "fire", room, quota, SEED) as lit:
            while not any(operations for operations, *_ in lit.board.threads(0)):
                time.sleep(0.001)
            os.kill(lit.pids[0], signal.SIGSTOP)
            os.write(writer, b" ".join(b"%d" % pid for pid in lit.pids))
            signal.pause()
    lives = [os.pidfd_open(int(pid)) for pid in os.read(reader, 4096).split()]
    os.kill(keeper, signal.SIGKILL)
    os.waitpid(keeper, 0)
    assert len(lives) == fire.PLACES + 1
    for life in lives:
        assert select.select([life], [], [], fire.PATIENCE_S)[0]
        os.close(life)


def test_check_fails_without_a_shim(tmp_path, room, quota):
    with (
        fire.fire(tmp_path / "fire", room, quota // 2, SEED, bare=True) as lit,
        pytest.raises(AssertionError, match="bytes were in use, the quota is"),
    ):
        lit.burn(OPERATIONS)
