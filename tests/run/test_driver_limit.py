"""Runs on a driver that can limit the memory of cgroups itself, in addition to the shim."""

import json
import os
import shutil
import signal
import subprocess
import time

import cgroup_room
import pytest
from runner import PYVGPU, Runner
from waiting import wait_until

from pyvgpu import quantity, shim
from pyvgpu.machine import cgroups, memory_limit
from pyvgpu.simulation import machines, simulator

from .conftest import reservation_folders

pytestmark = cgroup_room.needs_cgroups

GIB, MIB = 1 << 30, 1 << 20

# For each line of standard input, allocates 64 MiB at a time from the library in its argument
# until it is refused; prints how much it has, and CUDA's result.
PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1])
context, pointer, held = ctypes.c_void_p(), ctypes.c_uint64(), 0
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
print("ready", flush=True)
for _ in sys.stdin:
    while not (code := cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20))):
        held += 64
        if held > 8192:
            break
    print(held, code, flush=True)
"""


@pytest.fixture(name="limited")
def fixture_limited(tmp_path_factory):
    """Return a runner whose simulated driver has limits for cgroups."""
    place = tmp_path_factory.mktemp("limited")
    file = place / f"limited{machines.SUFFIX}"
    machines.write(file, "h100", {"cgroup_limits": "1", "context_bytes": str(256 * MIB)}, ())
    return Runner(place, str(file))


@pytest.fixture(name="own_driver")
def fixture_own_driver(tmp_path):
    """Return a copy of the driver, over which no mount namespace puts the shim."""
    (library,) = shim.simulator_libraries().glob("libcuda.so.*")
    return shutil.copy(library, tmp_path)


def asked(ran):
    ran.stdin.write("\n")
    ran.stdin.flush()
    return [int(word) for word in ran.stdout.readline().split()]


def listed(runner, name):
    found = runner.listed(name)
    return found["driver_limit_bytes"], found["driver_limit_missing"]


def test_the_shim_refuses_first(limited, name):
    options = ("--name", name, "--vmemory", "2GiB", "python3", "-c", PROGRAM, "libcuda.so.1")
    with limited.started(*options) as ran:
        assert ran.stdout.readline() == "ready\n"
        assert asked(ran) == [2048 - 256, 2]
        found = limited.listed(name)
        assert found["refused"] == 1
        assert found["driver_limit_bytes"] == 2 * GIB + memory_limit.MARGIN_BYTES


def test_the_driver_refuses_a_program_that_bypasses_the_shim(limited, name, own_driver):
    options = ("--name", name, "--vmemory", "2GiB", "python3", "-c", PROGRAM, own_driver)
    with limited.started(*options) as ran:
        assert ran.stdout.readline() == "ready\n"
        assert asked(ran) == [2048 + 64 - 256, 2]
        assert listed(limited, name) == (2 * GIB + memory_limit.MARGIN_BYTES, None)


@pytest.mark.slow
def test_the_limit_follows_the_quota(limited, name, own_driver):
    options = ("--name", name, "--vmemory", "2GiB", "python3", "-c", PROGRAM, own_driver)
    with limited.started(*options) as ran:
        assert ran.stdout.readline() == "ready\n"
        asked(ran)
        for size, held in (("3GiB", 3072), ("1GiB", 3072), ("4GiB", 4096)):
            command = [PYVGPU, "set", name, "--vmemory", size]
            subprocess.run(command, env=limited.environment, check=True)
            assert listed(limited, name)[0] == int(size[0]) * GIB + memory_limit.MARGIN_BYTES
            assert asked(ran) == [held + 64 - 256, 2]


@pytest.mark.slow
def test_a_limit_that_cannot_be_changed_stays_and_is_shown(limited, name):
    doctor = "echo ready; while read line; do $0 doctor --json | tr -d '\\n'; echo; done"
    machine = simulator.open_machine(limited.machine, limited.machines)

    def change(size, *faults):
        simulator.set_faults(machine, *faults)
        time.sleep(0.2)  # they take effect within 0.1 s
        command = [PYVGPU, "set", name, "--vmemory", size]
        subprocess.run(command, env=limited.environment, check=True)
        return listed(limited, name)

    def diagnosis():
        ran.stdin.write("\n")
        ran.stdin.flush()
        checks = json.loads(ran.stdout.readline())["checks"]
        (row,) = [check for check in checks if check["check"] == "driver's limit"]
        return row["state"], row["found"]

    options = ("--name", name, "--vmemory", "2GiB", "sh", "-c", doctor, PYVGPU)
    with limited.started(*options) as ran:
        assert ran.stdout.readline() == "ready\n"
        for size in ("3GiB", "4GiB"):
            found, why = change(size, f"call {memory_limit.FUNCTION} * 999")
            assert found == 2 * GIB + memory_limit.MARGIN_BYTES
            assert why.startswith("could not be changed: ")
        assert diagnosis() == ("limited", f"{quantity.format_size(found)}, {why}")
        assert change("3GiB") == (3 * GIB + memory_limit.MARGIN_BYTES, None)
        assert diagnosis()[0] == "ok"


@pytest.mark.slow
def test_the_doctor_names_what_limits_a_run(limited, runner):
    for start, found in (
        (limited, "the driver limits the memory, too"),
        (runner, "the shim alone"),
    ):
        said = json.loads(start("--vmemory", "2GiB", PYVGPU, "doctor", "--json").stdout)
        (row,) = [check for check in said["checks"] if check["check"] == "driver's limit"]
        assert row["state"] == "ok"
        assert found in row["found"]


@pytest.mark.slow
def test_the_cgroup_is_removed(limited, name):
    options = ("--name", name, "--vmemory", "2GiB", "python3", "-c", PROGRAM, "libcuda.so.1")
    for end in ("closed", "killed"):
        with limited.started(*options) as ran:
            assert ran.stdout.readline() == "ready\n"
            (folder,) = reservation_folders(name)
            cgroup = cgroups.of_process() / f"pyvgpu-{folder.name}"
            assert (cgroup / "cgroup.procs").read_text()
            if end == "closed":
                ran.stdin.close()
                ran.wait()
                assert not cgroup.exists()
            ran.kill()
        wait_until(lambda: not cgroup.exists())  # noqa: B023 - it is called here


def test_a_child_that_outlives_the_run_keeps_the_limit_until_the_next_run(limited, name):
    ran = limited("--name", name, "sh", "-c", "setsid sleep 1000 >&- 2>&- & echo $!")
    pid = int(ran.stdout)
    cgroup = cgroups.of_process(pid)
    try:
        assert cgroup.name.startswith("pyvgpu-")
    finally:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not (cgroup / "cgroup.procs").read_text())
    limited("true")
    assert not cgroup.exists()


def test_no_cgroup_without_limits_of_the_driver(runner, name):
    with runner.started("--name", name, "python3", "-c", PROGRAM, "libcuda.so.1") as ran:
        assert ran.stdout.readline() == "ready\n"
        assert listed(runner, name) == (None, None)
        (folder,) = reservation_folders(name)
        assert not (folder / "driver-limit").exists()
        assert not (cgroups.of_process() / f"pyvgpu-{folder.name}").exists()


def test_the_reason_for_no_driver_limit_is_reported(limited, name):
    """No cgroup v2 is visible, as in a container without them."""
    without = 'umount -a -t cgroup2 && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", without, "sh"]
    options = ("--name", name, "python3", "-c", PROGRAM, "libcuda.so.1")
    with subprocess.Popen(
        [*command, *limited.command(*options)],
        env=limited.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as ran:
        assert ran.stdout.readline() == "ready\n"
        found, why = listed(limited, name)
        assert found is None
        assert why == "no cgroup v2 is mounted for this process"
        ran.kill()
