"""Host memory for suspended processes: the machine's, their cgroups', and a ceiling."""

import os

import pytest

from pyvgpu.errors import UnavailableError
from pyvgpu.machine import host_memory
from pyvgpu.machine.host_memory import HostLimit
from pyvgpu.run import suspend_operation

GIB = 1 << 30
NEEDS = {7: 4 * GIB, 9: 2 * GIB}


def test_needs_that_fit_everywhere_are_allowed():
    limits = [HostLimit("the machine", 6 * GIB), HostLimit("a", 2 * GIB, frozenset({9}))]
    host_memory.check(NEEDS, limits, 6 * GIB)
    host_memory.check({}, [HostLimit("the machine", 0)])


@pytest.mark.parametrize(
    ("limits", "ceiling", "expected"),
    [
        pytest.param(
            [HostLimit("the machine (MemAvailable)", 5 * GIB)],
            None,
            "it needs 6GiB of host memory, and the machine (MemAvailable) has 5GiB left",
            id="machine",
        ),
        pytest.param(
            [HostLimit("the memory limit of cgroup /a", GIB, frozenset({9}))],
            None,
            "it needs 2GiB of host memory, and the memory limit of cgroup /a has 1GiB left",
            id="cgroup of one process",
        ),
        pytest.param(
            [HostLimit("x", -GIB, frozenset({9}))],
            None,
            "it needs 2GiB of host memory, and x has 0 bytes left",
            id="beyond its limit",
        ),
        pytest.param(
            [],
            5 * GIB,
            "it needs 6GiB of host memory, and --host-memory allows 5GiB",
            id="ceiling",
        ),
    ],
)
def test_needs_that_do_not_fit_are_refused_with_the_numbers(limits, ceiling, expected):
    with pytest.raises(UnavailableError) as caught:
        host_memory.check(NEEDS, limits, ceiling)
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, None, id="no controller"),
        pytest.param({"memory.max": "max\n", "memory.current": "5\n"}, None, id="no limit"),
        pytest.param({"memory.max": "100\n", "memory.current": "60\n"}, 40, id="limit"),
        pytest.param(
            {
                "memory.max": "100\n",
                "memory.current": "60\n",
                "memory.stat": "anon 30\ninactive_file 20\nactive_file 10\n",
            },
            60,
            id="cached files are reclaimed",
        ),
        pytest.param({"memory.max": "100\n", "memory.current": "?\n"}, None, id="not a number"),
        pytest.param(
            {
                "memory.limit_in_bytes": "100\n",
                "memory.usage_in_bytes": "60\n",
                "memory.stat": "inactive_file 1\ntotal_inactive_file 20\n",
            },
            60,
            id="version 1, with the groups below it",
        ),
    ],
)
def test_room_under_a_cgroups_limit_is_read(tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert host_memory.left_in(tmp_path) == expected


def test_limits_of_this_process_begin_with_the_machines():
    first, *_ = host_memory.find([os.getpid()])
    assert first.pids is None
    assert first.left > 0


def test_process_without_a_visible_cgroup_is_refused_if_its_limit_must_be_known():
    none = 1 << 22  # above every pid
    assert len(host_memory.find([none])) == 1
    with pytest.raises(UnavailableError, match=f"the memory limit of process {none} cannot be"):
        host_memory.find([none], strict=True)


STAT = "12 (a (b) T) {} 1 12 12 0\n"
MAP = "7f00-7f01 rw-s 00000000 00:05 9 /dev/nvidia-uvm\n"


@pytest.mark.parametrize(
    ("state", "maps", "expected"),
    [
        pytest.param("S", "", None, id="sleeping"),
        pytest.param("S", MAP, None, id="one mapping: no managed memory"),
        pytest.param("S", MAP * 2, "it has managed memory", id="managed memory"),
        pytest.param("T", "", "it is stopped; `kill -CONT", id="stopped"),
        pytest.param("t", "", "it is stopped; `kill -CONT", id="traced"),
    ],
)
def test_processes_that_would_hang_or_lose_their_context_are_recognized(
    tmp_path, state, maps, expected
):
    folder = tmp_path / str(os.getpid())
    folder.mkdir()
    (folder / "stat").write_text(STAT.format(state))
    (folder / "maps").write_text(maps)
    found = suspend_operation.find_obstacle(folder)
    assert found is None if expected is None else found.startswith(expected)


@pytest.mark.parametrize(
    ("release", "thread", "refused"),
    [
        pytest.param("580.178.04", "pt_nccl_watchdg", False, id="580 suspends NCCL"),
        pytest.param("595.84", "pt_nccl_watchdg", True, id="595 ends it"),
        pytest.param("595.84", "python", False, id="without NCCL"),
        pytest.param("", "pt_nccl_watchdg", False, id="unknown release"),
    ],
)
def test_process_that_a_driver_release_would_end_is_refused(tmp_path, release, thread, refused):
    folder = tmp_path / str(os.getpid())
    (folder / "task/7").mkdir(parents=True)
    (folder / "task/7/comm").write_text(f"{thread}\n")
    (folder / "stat").write_text(STAT.format("S"))
    (folder / "maps").write_text("")
    found = suspend_operation.find_obstacle(folder, release)
    assert (found is not None) is refused
    assert found is None or "NCCL, which driver release 595 cannot suspend" in found


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        pytest.param("Open Kernel Module for x86_64  595.71.05  Release Build", True, id="it"),
        pytest.param("x86_64 Kernel Module  595.71.05  Tue Mar 24", False, id="the closed one"),
        pytest.param("Open Kernel Module for x86_64  595.84  Release", False, id="a later one"),
        pytest.param(None, False, id="no module"),
    ],
)
def test_kernel_module_that_would_hang_the_machine_is_recognized(tmp_path, text, refused):
    file = tmp_path / "version"
    if text is not None:
        file.write_text(f"NVRM version: NVIDIA UNIX {text}\nGCC version:  gcc 12.2.0\n")
    found = suspend_operation.find_fault_of_module(file)
    assert (found is not None) is refused
    assert found is None or "hangs the machine when a process that was resumed is killed" in found
