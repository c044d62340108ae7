"""`pyvgpu suspend` and `pyvgpu resume`: a run gives up the device, and goes on later."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import checkpoints
import driver_memory
import pytest
from runner import PYVGPU
from waiting import WHOLE, wait_until

from pyvgpu import names, region
from pyvgpu.machine import move_record, process_identity, reservations
from pyvgpu.simulation import simulator

from .conftest import reservation_folders

MIB, GIB = 1 << 20, 1 << 30
PROGRAM = checkpoints.SERVER + checkpoints.TARGET + checkpoints.LOOP
HOLDING = "context(); p = alloc(1 << 30); fill(p); answer(p > 0)"
SLOW = "pyvgpu-simulated-machine 1\nmachine=h100\ncheckpoint_percent=1\n"  # 0.6 GiB/s


def pyvgpu(runner, *arguments):
    return subprocess.run(
        [PYVGPU, *map(str, arguments)],
        env=runner.environment,
        capture_output=True,
        text=True,
        timeout=WHOLE,
        check=False,
    )


def done(ran):
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def refused(ran, code=69):
    assert (ran.returncode, ran.stdout) == (code, ""), ran.stderr
    return ran.stderr


@contextlib.contextmanager
def tenant(runner, name, *options, source=PROGRAM):
    """Run PROGRAM in a run; yield its Lines, whose process is the supervisor."""
    with runner.started("--name", name, *options, sys.executable, "-c", source) as process:
        made = checkpoints.Lines(process)
        wait_until(lambda: all((x / "control").exists() for x in reservation_folders(name)))
        yield made


@pytest.fixture(name="held")
def fixture_held(runner, name):
    """Run a program that holds 1 GiB, in a run with 60 GiB."""
    with tenant(runner, name, "--vmemory", "60GiB", "--vcore", "50") as made:
        made.send(HOLDING)
        assert made.answer() is True
        yield made


def machine_of(runner):
    (folder,) = [path for path in runner.machines.iterdir() if (path / "machine.conf").exists()]
    return simulator.read_machine(folder)


def test_another_run_gets_the_device_meanwhile_and_every_byte_is_the_same(runner, name, held):
    before = runner.listed(name)
    machine = machine_of(runner)
    assert before["state"] == "running"
    assert done(pyvgpu(runner, "suspend", name)) == (
        f"{name}: suspended: 1.5GiB moved to host memory, its reservation is released\n"
    )
    assert driver_memory.used_bytes(machine) == 0
    entry = runner.listed(name)
    assert (entry["state"], entry["held_bytes"], entry["host_bytes"], entry["reserved_bytes"]) == (
        "suspended",
        0,
        before["held_bytes"],
        0,
    )
    (top,) = [
        run
        for run in json.loads(
            done(pyvgpu(runner, "top", "--once", "--json", "--interval", "0.1"))
        )["runs"]
        if run["name"] == name
    ]
    assert (top["state"], top["share"]) in (("suspended", 0.0), ("suspended", None))
    assert f"{name}   " in done(pyvgpu(runner, "ps")), "~ suspended"
    assert done(pyvgpu(runner, "suspend", name)) == f"{name}: is suspended already\n"
    held.send("answer([is_intact(p), alloc(1 << 20) is not None])")

    with tenant(runner, f"{name}-b", "--vmemory", "70GiB", "--vcore", "60") as other:
        other.send("context(); answer(alloc(69 << 30) is not None)")
        assert other.answer() is True
        said = refused(pyvgpu(runner, "resume", name))
        assert said.startswith(f"pyvgpu: {name}: vmemory 60GiB: device 0 (pyvgpu simulated H100)")
        assert said.endswith(f"free, the rest is reserved: {name}-b 70GiB\n")
        assert runner.listed(name)["state"] == "suspended"
    assert done(pyvgpu(runner, "resume", name)) == f"{name}: resumed\n"
    assert held.answer() == [True, True]
    moved = move_record.load((reservation_folders(name)[0] / names.MOVES_FILE).read_bytes())
    size = before["held_bytes"]
    assert (moved.suspensions, moved.resumptions, moved.refused_moves) == (1, 1, 1)
    assert (moved.to_host_bytes, moved.to_device_bytes) == (size, size)
    assert moved.suspended_seconds > 0
    assert moved.suspended_since == 0
    after = runner.listed(name)
    assert (after["state"], after["reserved_bytes"]) == ("running", before["reserved_bytes"])
    assert after["held_bytes"] == before["held_bytes"] + 2 * MIB
    assert driver_memory.used_bytes(machine) == after["held_bytes"]
    assert held.ask("cuda.cuMemFree_v2(U64(p))") == 0
    assert runner.listed(name)["held_bytes"] == before["held_bytes"] + 2 * MIB - GIB
    assert done(pyvgpu(runner, "resume", name)) == f"{name}: is running already\n"


@pytest.mark.slow
def test_a_kept_reservation_is_not_given_to_others(runner, name, held):
    assert "kept" in done(pyvgpu(runner, "suspend", name, "--keep"))
    assert runner.listed(name)["reserved_bytes"] == 60 * GIB
    said = runner("--name", f"{name}-b", "--vmemory", "30GiB", "--", "true")
    assert f"the rest is reserved: {name} 60GiB" in refused(said)
    assert "it is released now" not in done(pyvgpu(runner, "suspend", name, "--keep"))
    assert done(pyvgpu(runner, "suspend", name)).endswith("its reservation is released now\n")
    assert runner("--name", f"{name}-b", "--vmemory", "30GiB", "--", "true").returncode == 0
    assert done(pyvgpu(runner, "resume", name)) == f"{name}: resumed\n"
    assert held.ask("is_intact(p)") is True


def test_resume_does_not_try_a_restore_while_processes_outside_of_runs_hold_the_room(
    runner, name, held
):
    done(pyvgpu(runner, "suspend", name))
    with checkpoints.target(machine_of(runner)) as outside:
        outside.send("context(); free, total = SIZE(), SIZE()")
        outside.send("check(cuda.cuMemGetInfo_v2(byref(free), byref(total)))")
        outside.send("answer(alloc(free.value - (64 << 20)) is not None)")
        assert outside.answer() is True
        said = refused(pyvgpu(runner, "resume", name))
        assert said.startswith(f"pyvgpu: {name}: it needs 1.5GiB of device 0")
        assert "processes without a quota hold the rest" in said
        assert runner.listed(name)["reserved_bytes"] == 0
    assert done(pyvgpu(runner, "resume", name)) == f"{name}: resumed\n"
    assert held.ask("is_intact(p)") is True


def test_nothing_happens_without_the_host_memory(runner, name, held):
    said = refused(pyvgpu(runner, "suspend", name, "--host-memory", "1GiB"))
    assert said == (
        f"pyvgpu: {name}: it needs 1.8GiB of host memory, and --host-memory allows 1GiB\n"
    )
    assert runner.listed(name)["state"] == "running"
    assert held.ask("is_intact(p)") is True


def test_a_run_that_cannot_be_suspended_goes_on(runner, name, held):
    held.send("m = U64(); answer(cuda.cuMemAllocManaged(byref(m), SIZE(4096), 1))")
    assert held.answer() == 0
    assert "it has managed memory" in refused(pyvgpu(runner, "suspend", name))
    assert held.ask("[cuda.cuMemFree_v2(m), is_intact(p)]") == [0, True]
    (pid,) = [process["pid"] for process in runner.listed(name)["processes"]]
    os.kill(pid, signal.SIGSTOP)
    said = refused(pyvgpu(runner, "suspend", name))
    assert (
        said == f"pyvgpu: {name}: process {pid}: it is stopped; `kill -CONT {pid}` continues it\n"
    )
    os.kill(pid, signal.SIGCONT)
    held.send("spin(60_000_000_000); answer(0)")
    assert held.answer() == 0
    said = refused(pyvgpu(runner, "suspend", name, "--timeout", "0.1"))
    assert "its calls and work on the device did not end in time" in said
    assert runner.listed(name)["state"] == "running"
    assert held.ask("alloc(4096) is not None") is True


CHILD = """
import subprocess
def child(source):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD_SOURCE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True)
def ask_child(child, line):
    child.stdin.write(line + "\\n"); child.stdin.flush()
    return json.loads(child.stdout.readline())
"""
PARENT = (
    checkpoints.SERVER
    + checkpoints.TARGET
    + f"CHILD_SOURCE = {PROGRAM!r}\n"
    + CHILD
    + checkpoints.LOOP
)


@pytest.mark.slow
def test_all_processes_of_a_run_are_suspended_or_none(runner, name):
    with tenant(runner, name, "--vmemory", "4GiB", source=PARENT) as made:
        made.send(HOLDING)
        assert made.answer() is True
        made.send("c = child(0); c.stdout.readline()")
        made.send("answer(ask_child(c, 'context(); q = alloc(1 << 20); fill(q); answer(q > 0)'))")
        assert made.answer() is True
        made.send("answer(ask_child(c, 'm = U64(); answer(cuda.cuMemAllocManaged(byref(m), SIZE(4096), 1))'))")  # fmt: skip  # noqa: E501
        assert made.answer() == 0
        assert "it has managed memory" in refused(pyvgpu(runner, "suspend", name))
        assert made.ask("[is_intact(p), ask_child(c, 'answer(is_intact(q))')]") == [True, True]
        made.send("answer(ask_child(c, 'answer(cuda.cuMemFree_v2(m))'))")
        assert made.answer() == 0

        assert "suspended: 2.0GiB" in done(pyvgpu(runner, "suspend", name))
        assert driver_memory.used_bytes(machine_of(runner)) == 0
        # A process that begins to use CUDA now waits, too.
        made.send("d = child(0); d.stdout.readline()")
        made.send("d.stdin.write('context(); answer(1)\\n'); d.stdin.flush(); answer('asked')")
        assert made.answer() == "asked"
        assert driver_memory.used_bytes(machine_of(runner)) == 0
        assert done(pyvgpu(runner, "resume", name)) == f"{name}: resumed\n"
        assert made.ask("json.loads(d.stdout.readline())") == 1
        assert made.ask("[is_intact(p), ask_child(c, 'answer(is_intact(q))')]") == [True, True]


def test_a_program_that_is_killed_while_suspended_leaves_nothing(runner, name, held):
    done(pyvgpu(runner, "suspend", name))
    (process,) = runner.listed(name)["processes"]
    os.kill(process["pid"], signal.SIGKILL)
    assert held.process.wait(WHOLE) == -signal.SIGKILL
    assert reservation_folders(name) == []
    assert driver_memory.used_bytes(machine_of(runner)) == 0


def test_a_resumed_program_may_end_at_once(runner, name, held):
    done(pyvgpu(runner, "suspend", name))
    held.send("is_intact(p); os._exit(3)")
    assert done(pyvgpu(runner, "resume", name)) == f"{name}: resumed\n"
    assert held.process.wait(WHOLE) == 3
    assert f"RUN '{name}': no run is called that" in refused(pyvgpu(runner, "resume", name), 64)


def test_a_program_that_ends_while_it_is_suspended_is_reported(slow, name):
    with tenant(slow, name, "--vmemory", "4GiB") as made:
        made.send(HOLDING)
        assert made.answer() is True
        (process,) = slow.listed(name)["processes"]
        with suspending(slow, name) as command:
            os.kill(process["pid"], signal.SIGKILL)
            said = command.communicate()[1]
        assert (command.returncode, said) == (69, f"pyvgpu: {name}: its program has just ended\n")
        assert made.process.wait(WHOLE) == -signal.SIGKILL
        assert reservation_folders(name) == []


def suspend_with_child(runner, name, made):
    """Suspend a run after its program has a child with a context; return the child's identity."""
    made.send("c = child(0); c.stdout.readline()")
    made.send("answer(ask_child(c, 'context(); answer(os.getpid())'))")
    child = made.answer()
    began = process_identity.began(child)
    done(pyvgpu(runner, "suspend", name))
    # It does not end by itself when its parent does.
    made.send("c.stdin.write('time.sleep(600)\\n'); c.stdin.flush(); answer(0)")
    assert made.answer() == 0
    return child, began


def test_processes_of_a_suspended_run_end_with_its_supervisor(runner, name):
    with tenant(runner, name, "--vmemory", "4GiB", source=PARENT) as made:
        child, began = suspend_with_child(runner, name, made)
        made.process.kill()
        wait_until(lambda: process_identity.began(child) != began)
        wait_until(lambda: reservation_folders(name) == [])


def test_a_process_that_waits_to_begin_is_refused_when_its_supervisor_has_ended(runner, name):
    with tenant(runner, name, "--vmemory", "4GiB", source=PARENT) as made:
        made.send(HOLDING)
        assert made.answer() is True
        done(pyvgpu(runner, "suspend", name))
        made.send("c = child(0); c.stdout.readline(); answer(c.pid)")
        child = made.answer()
        began = process_identity.began(child)
        made.send("c.stdin.write('context()\\n'); c.stdin.flush(); answer(0)")
        assert made.answer() == 0
        wait_until(lambda: "nanosleep" in Path(f"/proc/{child}/wchan").read_text())
        made.process.kill()
        wait_until(lambda: process_identity.began(child) != began)
        wait_until(lambda: reservation_folders(name) == [])


@pytest.fixture(name="slow")
def fixture_slow(runner, tmp_path):
    """Make the runner's machine checkpoint slowly."""
    path = tmp_path / "slow.machine"
    path.write_text(SLOW)
    runner.machine = str(path)
    return runner


def is_gated(name):
    (found,) = [run for run in reservations.Registries().live() if run.holder.name == name]
    return found.limits.suspension.gated


@contextlib.contextmanager
def suspending(runner, name):
    """Suspend a run; yields the command, with its stderr, once the suspension has begun."""
    with subprocess.Popen(
        [PYVGPU, "suspend", name], env=runner.environment, stderr=subprocess.PIPE, text=True
    ) as command:
        wait_until(lambda: is_gated(name))
        yield command


def children_of_driver_calls(supervisor):
    """Return the pids of the supervisor's children that call the driver."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"checkpoint_calls" in (path / "cmdline").read_bytes() and (
                f"PPid:\t{supervisor}\n" in (path / "status").read_text()
            ):
                found.append(int(path.name))
    return found


@pytest.mark.slow
def test_the_supervisor_ends_what_a_killed_command_has_begun(slow, name):
    with tenant(slow, name, "--vmemory", "4GiB") as made:
        made.send(HOLDING)
        assert made.answer() is True
        with subprocess.Popen([PYVGPU, "suspend", name], env=slow.environment) as command:
            wait_until(lambda: children_of_driver_calls(made.process.pid))
            command.kill()
        wait_until(lambda: slow.listed(name)["state"] == "suspended")
        assert done(pyvgpu(slow, "resume", name)) == f"{name}: resumed\n"
        assert made.ask("is_intact(p)") is True


@pytest.mark.slow
def test_a_run_goes_on_if_the_caller_of_the_driver_is_killed(slow, name):
    with tenant(slow, name, "--vmemory", "4GiB") as made:
        made.send(HOLDING)
        assert made.answer() is True
        with suspending(slow, name) as command:
            (caller,) = children_of_driver_calls(made.process.pid)
            made.send("answer(is_intact(p))")  # it waits from the lock on, or is answered before
            os.kill(caller, signal.SIGKILL)
            assert "the process that calls the driver has ended" in command.stderr.read()
        assert made.answer() is True
        assert slow.listed(name)["state"] == "running"
        assert "suspended: 1.5GiB" in done(pyvgpu(slow, "suspend", name))


@pytest.mark.slow
def test_a_process_that_is_stopped_meanwhile_goes_on_once_it_is_continued(slow, name):
    with tenant(slow, name, "--vmemory", "4GiB") as made:
        made.send(HOLDING)
        assert made.answer() is True
        (process,) = slow.listed(name)["processes"]
        with suspending(slow, name) as command:
            os.kill(process["pid"], signal.SIGSTOP)
            assert "`kill -CONT" in command.stderr.read()
        assert slow.listed(name)["state"] == "running"
        assert refused(pyvgpu(slow, "resume", name)).endswith("try again\n")
        os.kill(process["pid"], signal.SIGCONT)
        assert made.ask("is_intact(p)") is True
        wait_until(lambda: pyvgpu(slow, "suspend", name).returncode == 0)
        os.kill(process["pid"], signal.SIGSTOP)
        assert "it is stopped" in refused(pyvgpu(slow, "resume", name))
        os.kill(process["pid"], signal.SIGCONT)
        assert done(pyvgpu(slow, "resume", name)) == f"{name}: resumed\n"
        assert made.ask("is_intact(p)") is True


def test_processes_that_cannot_be_restored_are_ended_with_a_message(runner, name, held):
    done(pyvgpu(runner, "suspend", name))
    simulator.set_faults(machine_of(runner), "call cuCheckpointProcessRestore 1 2")
    said = refused(pyvgpu(runner, "resume", name))
    assert "could not be restored" in said
    assert held.process.wait(WHOLE) == -signal.SIGKILL
    assert "the processes beside it are killed, too" in held.process.stderr.read()
    assert reservation_folders(name) == []


@pytest.mark.slow
def test_waits_for_the_device_survive_drivers_that_let_them_pass_a_lock(runner, name, tmp_path):
    path = tmp_path / "passing.machine"
    path.write_text("pyvgpu-simulated-machine 1\nmachine=h100\nsync_ignores_lock=yes\n")
    runner.machine = str(path)
    with tenant(runner, name, "--vmemory", "4GiB") as made:
        made.send(HOLDING)
        assert made.answer() is True
        made.send(
            "made = P(); check(cuda.cuCtxGetCurrent(byref(made))); go = threading.Event();"
            "work = lambda: [cuda.cuCtxSetCurrent(made)] + ["
            "cuda.cuCtxSynchronize() or cuda.cuStreamSynchronize(None)"
            " for _ in iter(go.is_set, True)];"
            "thread = threading.Thread(target=work); thread.start(); answer('waits')"
        )
        assert made.answer() == "waits"
        for _ in range(2):
            done(pyvgpu(runner, "suspend", name))
            done(pyvgpu(runner, "resume", name))
        assert made.ask("[go.set(), thread.join(), is_intact(p)][2]") is True


def test_a_driver_without_checkpoints_is_named(runner, name, held):
    machine = machine_of(runner)
    conf = machine.folder / "machine.conf"
    conf.write_text(conf.read_text().replace("cuda_version=13000", "cuda_version=12040"))
    said = refused(pyvgpu(runner, "suspend", name))
    assert said == (
        f"pyvgpu: {name}: driver 999.1 (CUDA 12.4) cannot suspend processes: it needs release 570 "
        "or later (CUDA 12.8)\n"
    )
    assert held.ask("is_intact(p)") is True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("suspend", "none-such"), "RUN 'none-such': no run is called that"),
        (("resume", "none-such"), "RUN 'none-such': no run is called that"),
        (("suspend", "x", "--timeout", "0"), "--timeout '0': must be seconds above 0"),
        (("suspend", "x", "--host-memory", "much"), "--host-memory 'much'"),
        (("suspend", "X!"), "RUN 'X!': must be lower-case letters"),
    ],
)
def test_bad_input_is_refused(runner, arguments, said):
    assert said in refused(pyvgpu(runner, *arguments), 64)


@pytest.mark.slow
def test_device_time_neither_accrues_nor_is_owed_over_a_suspension(runner, name):
    with tenant(runner, name, "--vmemory", "4GiB", "--vcore", "20") as made:
        made.send(HOLDING)
        assert made.answer() is True
        made.send("spin(20_000_000); check(cuda.cuCtxSynchronize()); answer(0)")
        assert made.answer() == 0
        done(pyvgpu(runner, "suspend", name))
        made.send("spin(20_000_000); answer(check(cuda.cuCtxSynchronize()))")
        time.sleep(1)  # the time that must not be charged
        done(pyvgpu(runner, "resume", name))
        assert made.answer() is None
        with (reservation_folders(name)[0] / "usage").open("rb") as usage:
            (compute,) = region.read_compute(usage.fileno(), 1)
        assert compute.busy_ns < 500_000_000, "the suspension was charged"


def children_named(parent, name):
    """Return the pids of the children of a process that have this name."""
    found = []
    for path in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            lines = path.read_text().splitlines()
            if f"Name:\t{name}" in lines and f"PPid:\t{parent}" in lines:
                found.append(int(path.parent.name))
    return found


@pytest.mark.slow
def test_nothing_stays_locked_when_supervisor_and_janitor_are_killed(runner, name):
    with tenant(runner, name, "--vmemory", "4GiB", source=PARENT) as made:
        child, began = suspend_with_child(runner, name, made)
        (janitor,) = children_named(made.process.pid, "pyvgpu-janitor")
        os.kill(janitor, signal.SIGKILL)
        made.process.kill()
        made.process.wait(WHOLE)
        assert process_identity.began(child) == began, "its end is the next command's work"
        ran = runner("--name", f"{name}-b", "--vmemory", "1GiB", "--", "true")
        assert ran.returncode == 0
        assert f"pyvgpu: {name} was suspended when its supervisor was killed; its" in ran.stderr
        wait_until(lambda: process_identity.began(child) != began)
        wait_until(
            lambda: runner("--vmemory", "1GiB", "--", "true") and reservation_folders(name) == []
        )


CANCELLED = """
def cancelled_wait():
    current, thread, libc = P(), U64(), ctypes.CDLL(None)
    check(cuda.cuCtxGetCurrent(byref(current)))
    spin(30_000_000_000)
    start = ctypes.cast(cuda.cuCtxSynchronize_v2, P)
    libc.pthread_create(byref(thread), None, start, current)
    answer("waits")
    sys.stdin.readline()
    libc.pthread_cancel(thread)
    libc.pthread_join(thread, None)
    answer("cancelled")
"""


def waiting_threads(name):
    (folder,) = reservation_folders(name)
    file = os.open(folder / "usage", os.O_RDONLY)
    try:
        return [slot.waiting for slot in region.read_slots(file, 1)]
    finally:
        os.close(file)


def test_a_thread_that_is_cancelled_while_it_waits_is_not_counted_any_more(runner, name):
    source = checkpoints.SERVER + checkpoints.TARGET + CANCELLED + checkpoints.LOOP
    with tenant(runner, name, "--vmemory", "4GiB", source=source) as made:
        made.send("context(); cancelled_wait()")
        assert made.answer() == "waits"
        wait_until(lambda: waiting_threads(name) == [1])
        made.send("go on")
        assert made.answer() == "cancelled"
        assert waiting_threads(name) == [0]


def test_a_plain_forked_child_of_a_suspended_run_ends_with_its_supervisor(runner, name):
    with tenant(runner, name, "--vmemory", "4GiB") as made:
        made.send(HOLDING)
        assert made.answer() is True
        made.send("f = os.fork() or (time.sleep(600), os._exit(0)); answer(f)")
        forked = made.answer()
        began = process_identity.began(forked)
        done(pyvgpu(runner, "suspend", name))
        made.process.kill()
        wait_until(lambda: process_identity.began(forked) != began)
        wait_until(lambda: reservation_folders(name) == [])
        assert made.process.stderr.read().splitlines()[-1] == (
            "pyvgpu: the supervisor of this run has ended while the run was suspended; killed its "
            f"process {forked}, which nothing could resume"
        )
