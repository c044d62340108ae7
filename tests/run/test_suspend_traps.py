"""Suspended runs: processes that just begin, views of memory, answers meanwhile, bypasses."""

import contextlib
import os
import shutil
import signal
import subprocess

import checkpoints
import driver_memory
import pytest
from runner import PYVGPU
from waiting import WHOLE, wait_until

from pyvgpu import shim
from pyvgpu.simulation import simulator

from .conftest import reservation_folders
from .test_suspend import (
    CHILD,
    GIB,
    HOLDING,
    PROGRAM,
    children_of_driver_calls,
    done,
    fixture_held,
    fixture_slow,
    is_gated,
    machine_of,
    pyvgpu,
    refused,
    tenant,
)

__all__ = ["fixture_held", "fixture_slow"]

NOT_INITIALIZED, OPERATING_SYSTEM, ILLEGAL_STATE, NOT_PERMITTED = 3, 304, 401, 800
PIDFD_GETFD = 438
VIEW = """
def view():
    import pynvml
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    own = [(x.pid == os.getpid(), x.usedGpuMemory)
           for x in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    pynvml.nvmlShutdown()
    return [memory.total, memory.used, memory.free, own]
"""


@pytest.mark.parametrize("code", [NOT_INITIALIZED, ILLEGAL_STATE, OPERATING_SYSTEM])
def test_a_call_that_fails_since_a_process_just_begins_is_made_again(runner, name, held, code):
    simulator.set_faults(machine_of(runner), f"call cuCheckpointProcessLock 1 {code}")
    assert "suspended: 1.5GiB" in done(pyvgpu(runner, "suspend", name))
    simulator.set_faults(machine_of(runner), f"call cuCheckpointProcessUnlock 1 {code}")
    assert done(pyvgpu(runner, "resume", name)) == f"{name}: resumed\n"
    assert held.ask("is_intact(p)") is True


@pytest.mark.slow
@pytest.mark.parametrize("code", [NOT_INITIALIZED, ILLEGAL_STATE])
def test_a_call_that_always_fails_is_given_up_and_the_run_goes_on(runner, name, held, code):
    simulator.set_faults(machine_of(runner), f"call cuCheckpointProcessLock * {code}")
    said = refused(pyvgpu(runner, "suspend", name))
    assert said.endswith(f"cuCheckpointProcessLock returned error {code}\n")
    assert runner.listed(name)["state"] == "running"
    assert held.ask("is_intact(p)") is True


def test_a_suspended_program_sees_its_own_memory_and_others_do_not(runner, name):
    source = checkpoints.SERVER + checkpoints.TARGET + VIEW + checkpoints.LOOP
    with tenant(runner, name, "--vmemory", "8GiB", source=source) as made:
        made.send(HOLDING)
        assert made.answer() is True
        before = made.ask("view()")
        done(pyvgpu(runner, "suspend", name))
        assert made.ask("view()") == before
        with tenant(runner, f"{name}-b", "--vmemory", "4GiB", source=source) as other:
            assert other.ask("view()") == [4 * GIB, 0, 4 * GIB, []]
        with checkpoints.caller(machine_of(runner)) as outside:
            total = machine_of(runner).devices[0].memory_bytes
            assert outside.ask("pids()") == []
            assert outside.ask("free_bytes()") == total - driver_memory.used_bytes(
                machine_of(runner)
            )
        assert runner.listed(name)["held_bytes"] == 0
        done(pyvgpu(runner, "resume", name))
        assert made.ask("view()") == before


@pytest.mark.slow
def test_state_is_answered_while_the_driver_copies(slow, name):
    with tenant(slow, name, "--vmemory", "4GiB") as made:
        made.send(HOLDING)
        assert made.answer() is True
        with subprocess.Popen([PYVGPU, "suspend", name], env=slow.environment) as command:
            wait_until(lambda: is_gated(name))
            (caller,) = children_of_driver_calls(made.process.pid)
            os.kill(caller, signal.SIGSTOP)  # the copy lasts until it goes on
            assert slow.listed(name)["state"] == "running"
            assert f"{name}:" in done(pyvgpu(slow, "set", name, "--vmemory", "5GiB"))
            assert command.poll() is None
            os.kill(caller, signal.SIGCONT)
            assert command.wait(WHOLE) == 0
        assert slow.listed(name)["state"] == "suspended"
        done(pyvgpu(slow, "resume", name))
        assert made.ask("is_intact(p)") is True


@pytest.mark.parametrize(
    ("make", "free", "why"),
    [
        ("m = multicast()", "cuMemRelease(m)", "it has multicast objects, fabric memory"),
        ("m = physical(8)", "cuMemRelease(m)", "it has multicast objects, fabric memory"),
        (
            "m = U64(alloc(1 << 20)); ipc_handle(m)",
            "cuMemFree_v2(m)",
            "it has exported device memory to other processes",
        ),
    ],
)
def test_memory_that_no_driver_moves_is_refused_before_anything_moves(
    runner, name, held, make, free, why
):
    held.send(f"{make}; answer(0)")
    assert held.answer() == 0
    simulator.set_faults(machine_of(runner), f"call cuCheckpointProcessLock 1 {NOT_PERMITTED}")
    said = refused(pyvgpu(runner, "suspend", name))
    assert f"process {runner.listed(name)['processes'][0]['pid']}: {why}" in said
    simulator.set_faults(machine_of(runner))
    assert held.ask(f"[is_intact(p), cuda.{free}]") == [True, 0]
    assert "suspended: 1.5GiB" in done(pyvgpu(runner, "suspend", name))
    done(pyvgpu(runner, "resume", name))
    assert held.ask("is_intact(p)") is True


@pytest.mark.parametrize("imported", ["by handle", "by address"])
def test_memory_of_another_run_is_refused_before_anything_moves(runner, name, held, imported):
    """The importer pays for it, as does the run that exports it."""
    with tenant(runner, f"{name}-b", "--vmemory", "4GiB") as other:
        other.send(HOLDING)
        assert other.answer() is True
        if imported == "by address":
            other.send(f"q = open_ipc({held.ask('ipc_handle(U64(p))')})")
            free = "cuda.cuIpcCloseMemHandle(q)"
        else:
            held.send("m, fd = physical(1), INT(); h = (INT * 16)()")
            held.send("check(cuda.cuMemExportToShareableHandle(h, m, 1, U64(0)))")
            pid, fd = held.ask("[os.getpid(), h[0]]")
            other.send(f"fd = ctypes.CDLL(None).syscall({PIDFD_GETFD}, os.pidfd_open({pid}), {fd}, 0)")  # fmt: skip  # noqa: E501
            other.send("q = U64(); check(cuda.cuMemImportFromShareableHandle(byref(q), P(fd), 1))")
            free = "cuda.cuMemRelease(q)"
        assert other.ask("q.value != 0") is True
        assert "exported device memory" in refused(pyvgpu(runner, "suspend", name))
        assert "memory of another container" in refused(pyvgpu(runner, "suspend", f"{name}-b"))
        assert other.ask(f"[is_intact(p), {free}]") == [True, 0]
        assert "suspended" in done(pyvgpu(runner, "suspend", f"{name}-b"))
        done(pyvgpu(runner, "resume", f"{name}-b"))


BYPASS = (
    checkpoints.SERVER
    + checkpoints.TARGET
    + checkpoints.CALLER
    + f"CHILD_SOURCE = {PROGRAM!r}\n"
    + CHILD
    + checkpoints.LOOP
)


@contextlib.contextmanager
def with_child(runner, name, *options):
    """Run a program that has never called cuInit; its child holds 1 GiB."""
    with tenant(runner, name, *options, source=BYPASS) as made:
        made.send("c = child(0); c.stdout.readline()")
        made.send(f"answer(ask_child(c, {HOLDING!r}))")
        assert made.answer() is True
        yield made


def test_memory_that_a_program_itself_checkpoints_stays_charged(runner, name):
    with with_child(runner, name, "--vmemory", "50GiB") as made:
        before = runner.listed(name)
        assert made.ask("[lock(c.pid), checkpoint(c.pid), state(c.pid)]") == [0, 0, "state 2"]
        assert driver_memory.used_bytes(machine_of(runner)) == 0
        after = runner.listed(name)
        assert after["held_bytes"] == before["held_bytes"] > GIB
        said = refused(runner("--name", f"{name}-b", "--vmemory", "40GiB", "--", "true"))
        assert f"the rest is reserved: {name} 50GiB" in said
        assert made.ask("[restore(c.pid), unlock(c.pid)]") == [0, 0]
        assert made.ask("ask_child(c, 'answer(is_intact(p))')") is True


def test_a_program_cannot_resume_itself_past_its_supervisor(runner, name):
    with with_child(runner, name, "--vmemory", "50GiB") as made:
        done(pyvgpu(runner, "suspend", name))
        actions = "[lock(c.pid), checkpoint(c.pid), restore(c.pid), unlock(c.pid)]"
        assert made.ask(actions) == [NOT_PERMITTED] * 4
        assert made.ask("state(c.pid)") == "state 2"
        assert driver_memory.used_bytes(machine_of(runner)) == 0
        assert runner.listed(name)["reserved_bytes"] == 0
        done(pyvgpu(runner, "resume", name))
        assert made.ask("ask_child(c, 'answer(is_intact(p))')") is True


def test_a_program_cannot_move_the_processes_of_another_run(runner, name, held):
    (process,) = runner.listed(name)["processes"]
    with tenant(runner, f"{name}-b", "--vmemory", "4GiB", source=BYPASS) as other:
        for state in ("state 0", "state 2"):
            actions = f"[lock({process['pid']}, 1), unlock({process['pid']})]"
            assert other.ask(actions) == [NOT_PERMITTED] * 2
            assert other.ask(f"state({process['pid']})") == state
            done(pyvgpu(runner, "suspend", name))
    done(pyvgpu(runner, "resume", name))
    assert held.ask("is_intact(p)") is True


def test_a_run_that_its_own_program_has_locked_is_moved_as_a_whole(runner, name):
    with with_child(runner, name, "--vmemory", "4GiB") as made:
        assert made.ask("lock(c.pid)") == 0
        done(pyvgpu(runner, "suspend", name))
        assert made.ask("state(c.pid)") == "state 2"
        done(pyvgpu(runner, "resume", name))
        assert made.ask("state(c.pid)") == "state 0"
        assert made.ask("ask_child(c, 'answer(is_intact(p))')") is True
        assert reservation_folders(name)


@pytest.mark.slow
@pytest.mark.parametrize(("release", "is_refused"), [("580.82.07", False), ("595.71.05", True)])
def test_a_program_with_nccl_is_refused_by_driver_release(
    runner, name, tmp_path, release, is_refused
):
    machine = simulator.open_machine("h100", runner.machines)
    conf = machine.folder / "machine.conf"
    conf.write_text(conf.read_text().replace("driver_release=999.1", f"driver_release={release}"))
    runner.environment.update(machine.environment)
    for library in shim.simulator_libraries().glob("lib*"):  # a driver's files tell its release
        shutil.copy(library, tmp_path / library.name.replace("999.1", release))
    installed = [PYVGPU, "run", "--driver-libraries", str(tmp_path)]
    runner.command = lambda *arguments: [*installed, *arguments]
    with tenant(runner, name, "--vmemory", "4GiB") as made:
        made.send(HOLDING)
        assert made.answer() is True
        made.send(
            "go = threading.Event(); name = lambda: open('/proc/thread-self/comm', 'w')"
            ".write('pt_nccl_watchdg'); thread = threading.Thread("
            "target=lambda: [name(), answer('named'), go.wait()]); thread.start()"
        )
        assert made.answer() == "named"
        if is_refused:
            said = refused(pyvgpu(runner, "suspend", name))
            assert "it uses NCCL, which driver release 595 cannot suspend; 580 can" in said
            assert runner.listed(name)["state"] == "running"
        else:
            done(pyvgpu(runner, "suspend", name))
            done(pyvgpu(runner, "resume", name))
        assert made.ask("[go.set(), is_intact(p)][1]") is True


@pytest.mark.slow
def test_a_process_that_calls_exec_meanwhile_holds_up_no_other(slow, name):
    with with_child(slow, name, "--vmemory", "8GiB") as made:
        made.send("context(); p = alloc(1 << 29); fill(p); answer(1)")
        assert made.answer() == 1
        with subprocess.Popen(
            [PYVGPU, "suspend", name], env=slow.environment, stdout=subprocess.PIPE, text=True
        ) as command:
            wait_until(lambda: driver_memory.used_bytes(machine_of(slow)) < 2 * GIB)
            made.send("c.stdin.write('os.execvp(\"sleep\", [\"sleep\", \"600\"])\\n'); c.stdin.flush()")  # fmt: skip  # noqa: E501
            assert "suspended" in command.communicate()[0]
        done(pyvgpu(slow, "resume", name))
        assert made.ask("is_intact(p)") is True
        made.send("c.kill()")


def test_a_forked_child_of_a_process_that_died_suspended_holds_up_no_other(runner, name):
    with with_child(runner, name, "--vmemory", "8GiB") as made:
        made.send("context(); p = alloc(1 << 29); fill(p); answer(1)")
        assert made.answer() == 1
        forked = made.ask("ask_child(c, 'f = os.fork() or time.sleep(600); answer(f)')")
        try:
            assert "suspended" in done(pyvgpu(runner, "suspend", name))
            made.send("c.kill(); answer(c.wait())")
            assert made.answer() == -signal.SIGKILL
            assert done(pyvgpu(runner, "resume", name)) == f"{name}: resumed\n"
            assert made.ask("is_intact(p)") is True
        finally:
            os.kill(forked, signal.SIGKILL)


def test_a_device_that_is_in_mig_mode_by_now_is_not_restored_to(runner, name, held):
    done(pyvgpu(runner, "suspend", name))
    simulator.set_faults(machine_of(runner), "mig 0")
    said = refused(pyvgpu(runner, "resume", name))
    assert "is in MIG mode by now, where the driver cannot restore its memory" in said
    assert runner.listed(name)["state"] == "suspended"
    simulator.set_faults(machine_of(runner))
    assert done(pyvgpu(runner, "resume", name)) == f"{name}: resumed\n"
    assert held.ask("is_intact(p)") is True
