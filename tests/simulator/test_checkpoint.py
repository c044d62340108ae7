"""cuCheckpointProcess*: suspend and resume another process, as NVIDIA documents it."""

import os
import signal
import subprocess

import checkpoints
import driver_memory
import machine_room
import pytest
from shim_room import ask_bare
from waiting import wait_until

from pyvgpu.simulation import simulator

MIB, GIB = 1 << 20, 1 << 30
INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 1, 2, 3
OPERATING_SYSTEM, ILLEGAL_STATE, NOT_READY, NOT_SUPPORTED = 304, 401, 600, 801
RUNNING, LOCKED, CHECKPOINTED = "state 0", "state 1", "state 2"


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    return simulator.open_machine("h100", tmp_path)


@pytest.fixture(name="target")
def fixture_target(machine):
    with checkpoints.target(machine) as made:
        made.send("context(); p = alloc(64 << 20); fill(p); answer(p)")
        assert made.answer()
        yield made


@pytest.fixture(name="caller")
def fixture_caller(machine):
    with checkpoints.caller(machine) as made:
        yield made


def test_a_call_waits_while_locked_and_every_byte_is_the_same_after_a_restore(
    machine, target, caller
):
    pid = target.pid
    before = caller.ask("free_bytes()")
    assert caller.ask(f"state({pid})") == RUNNING
    assert caller.ask(f"lock({pid})") == 0
    target.send("answer(is_intact(p))")
    assert caller.ask(f"state({pid})") == LOCKED
    assert caller.ask("free_bytes()") == before
    assert caller.ask(f"checkpoint({pid})") == 0
    assert caller.ask(f"state({pid})") == CHECKPOINTED
    assert caller.ask("free_bytes()") > before + 64 * MIB
    assert caller.ask("pids()") == []
    assert caller.ask(f"[restore({pid}), state({pid})]") == [0, LOCKED]
    assert caller.ask("[free_bytes(), pids()]") == [before, [pid]]
    os.set_blocking(target.process.stdout.fileno(), False)
    assert target.process.stdout.readline() == ""  # the call still waits
    os.set_blocking(target.process.stdout.fileno(), True)
    assert caller.ask(f"[unlock({pid}), state({pid})]") == [0, RUNNING]
    assert target.answer() is True
    assert target.ask("cuda.cuMemFree_v2(U64(p))") == 0
    assert caller.ask("free_bytes()") == before + 64 * MIB
    assert driver_memory.used_bytes(machine) == machine.devices[0].context_bytes


def test_actions_in_a_wrong_state_have_no_effect(target, caller):
    pid = target.pid
    wrong = caller.ask(f"[checkpoint({pid}), restore({pid}), unlock({pid}), state({pid})]")
    assert wrong == [ILLEGAL_STATE, ILLEGAL_STATE, ILLEGAL_STATE, RUNNING]
    assert caller.ask(f"[lock({pid}, 5000), lock({pid}), restore({pid})]") == [
        0,
        ILLEGAL_STATE,
        ILLEGAL_STATE,
    ]
    assert caller.ask(f"[checkpoint({pid}), checkpoint({pid}), lock({pid}), unlock({pid})]") == [
        0,
        ILLEGAL_STATE,
        ILLEGAL_STATE,
        ILLEGAL_STATE,
    ]


def test_pids_that_are_no_cuda_process_have_documented_errors(target, caller):
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert caller.ask("[state(0), state(-1)]") == [INVALID_VALUE, INVALID_VALUE]
    assert caller.ask(f"cuda.cuCheckpointProcessGetState({target.pid}, None)") == INVALID_VALUE
    assert caller.ask(f"state({ended.pid})") == OPERATING_SYSTEM
    assert caller.ask("[state(os.getpid()), lock(os.getpid())]") == [NOT_INITIALIZED] * 2
    with subprocess.Popen(["true"]) as zombie:
        wait_until(lambda: checkpoints.process_state(zombie.pid) == "Z")
        assert caller.ask(f"state({zombie.pid})") == NOT_INITIALIZED


def test_reserved_bytes_must_be_zero(target, caller):
    arguments = "(U64 * 8)(0, 0, 0, 0, 0, 0, 0, 1)"
    for function in ("Lock", "Checkpoint", "Restore", "Unlock"):
        asked = f"cuda.cuCheckpointProcess{function}({target.pid}, {arguments})"
        assert caller.ask(asked) == INVALID_VALUE


def test_a_process_can_lock_itself_and_has_a_restore_thread(target, caller):
    made = "UINT(0)"
    assert target.ask(
        f"[(t := {made}), cuda.cuCheckpointProcessGetRestoreThreadId(os.getpid(), byref(t)), "
        "t.value > 0][1:]"
    ) == [0, True]
    assert target.ask("cuda.cuCheckpointProcessLock(os.getpid(), None)") == 0
    assert caller.ask(f"state({target.pid})") == LOCKED
    assert target.ask("cuda.cuCheckpointProcessUnlock(os.getpid(), None)") == 0
    assert target.ask("is_intact(p)") is True


def test_a_lock_that_times_out_leaves_the_process_running(target, caller):
    target.send("spin(60_000_000_000); answer('launched')")
    assert target.answer() == "launched"
    assert caller.ask(f"[lock({target.pid}, 50), state({target.pid})]") == [NOT_READY, RUNNING]
    assert target.ask("alloc(4096) is not None") is True


def test_a_restore_without_room_fails_and_so_do_all_later_ones(target, caller, machine):
    pid = target.pid
    assert caller.ask(f"[lock({pid}), checkpoint({pid})]") == [0, 0]
    with checkpoints.target(machine) as other:
        other.send("context(); free, total = SIZE(), SIZE()")
        other.send("check(cuda.cuMemGetInfo_v2(byref(free), byref(total)))")
        other.send("answer(alloc(free.value - (16 << 20)) > 0)")
        assert other.answer() is True
        assert caller.ask(f"[restore({pid}), state({pid})]") == [OUT_OF_MEMORY, CHECKPOINTED]
        assert caller.ask("free_bytes()") < 16 * MIB  # it keeps what it got
    assert caller.ask(f"[restore({pid}), unlock({pid})]") == [OPERATING_SYSTEM, ILLEGAL_STATE]
    target.process.kill()
    target.process.communicate()
    assert driver_memory.used_bytes(machine) == 0


def test_memory_of_some_kinds_cannot_be_checkpointed(target, caller, machine):
    pid = target.pid
    target.send("m = U64(); answer(cuda.cuMemAllocManaged(byref(m), SIZE(4096), 1))")
    assert target.answer() == 0
    assert caller.ask(f"[lock({pid}), checkpoint({pid}), unlock({pid})]") == [0, NOT_SUPPORTED, 0]
    assert target.ask("cuda.cuMemFree_v2(m)") == 0
    simulator.set_faults(machine, "mig 0")
    assert caller.ask(f"[lock({pid}), checkpoint({pid}), unlock({pid})]") == [0, OUT_OF_MEMORY, 0]
    simulator.set_faults(machine)
    assert caller.ask(f"[lock({pid}), checkpoint({pid})]") == [0, 0]


def test_memory_of_a_mig_device_cannot_be_checkpointed(tmp_path):
    machine = simulator.open_machine("h100:mig=3g.40gb", tmp_path)
    with checkpoints.target(machine) as target, checkpoints.caller(machine) as caller:
        target.send("context(); p = alloc(64 << 20); fill(p); answer(p)")
        assert target.answer()
        pid = target.pid
        steps = f"[lock({pid}), checkpoint({pid}), unlock({pid})]"
        assert caller.ask(steps) == [0, OUT_OF_MEMORY, 0]
        assert target.ask("is_intact(p)")


def test_shared_memory_cannot_be_checkpointed_on_either_side(target, caller, machine):
    handle = target.ask("ipc_handle(U64(p))")
    with checkpoints.target(machine) as other:
        other.send(f"context(); q = open_ipc({handle}); answer(q.value != 0)")
        assert other.answer() is True
        for pid in (target.pid, other.pid):
            assert caller.ask(f"[lock({pid}), checkpoint({pid}), unlock({pid})]") == [
                0,
                NOT_SUPPORTED,
                0,
            ]
        assert other.ask("cuda.cuIpcCloseMemHandle(q)") == 0
    assert caller.ask(f"[lock({target.pid}), checkpoint({target.pid})]") == [0, 0]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param("multicast()", id="multicast object"),
        pytest.param("physical(8)", id="fabric memory"),
    ],
)
def test_checkpoint_hangs_while_the_process_has(target, caller, machine, make):
    target.send(f"m = {make}; answer(0)")
    assert target.answer() == 0
    assert caller.ask(f"lock({target.pid})") == 0
    with checkpoints.caller(machine) as second:
        second.send(f"answer('begins'); answer(checkpoint({target.pid}))")
        assert second.answer() == "begins"
        wait_until(lambda: checkpoints.process_state(second.pid) == "S")
        second.process.kill()
        assert second.answer() == "ended"
    assert caller.ask(f"[state({target.pid}), unlock({target.pid})]") == ["state 1", 0]
    assert target.ask("[cuda.cuMemRelease(m), is_intact(p)]") == [0, True]
    assert caller.ask(f"[lock({target.pid}), checkpoint({target.pid})]") == [0, 0]


@pytest.mark.parametrize(("release", "again"), [("580.65.06", 0), ("615.71.09", INVALID_VALUE)])
def test_memory_of_before_a_restore_can_be_exported_again_except_by_615(tmp_path, release, again):
    machine = simulator.open_machine("h100", tmp_path)
    conf = machine.folder / "machine.conf"
    conf.write_text(conf.read_text().replace("driver_release=999.1", f"driver_release={release}"))
    with checkpoints.target(machine) as target, checkpoints.caller(machine) as caller:
        target.send("context(); m = physical(1); answer(0)")
        assert target.answer() == 0
        pid = target.pid
        steps = f"[lock({pid}), checkpoint({pid}), restore({pid}), unlock({pid})]"
        assert caller.ask(steps) == [0, 0, 0, 0]
        assert target.ask("[export(m, 1), export(physical(1), 1)]") == [again, 0]


SLOW = simulator.Law(checkpoint_percent=1, restore_percent=1)


def killed_in(machine, caller, action, pid):
    """Begin an action in a second caller, and kill that."""
    with checkpoints.caller(machine) as second:
        second.send(f"answer('begins'); {action}({pid})")
        assert second.answer() == "begins"
        wait_until(lambda: checkpoints.process_state(second.pid) == "S")


@pytest.fixture(name="slow")
def fixture_slow(tmp_path):
    """Return a machine whose checkpoints take about half a second."""
    return simulator.open_machine("h100", tmp_path, law=SLOW)


def test_an_action_ends_although_its_caller_was_killed(slow):
    with checkpoints.target(slow) as target, checkpoints.caller(slow) as caller:
        target.send("context(); p = alloc(64 << 20); fill(p); answer(p > 0)")
        assert target.answer() is True
        pid = target.pid
        assert caller.ask(f"lock({pid})") == 0
        killed_in(slow, caller, "checkpoint", pid)
        assert caller.ask(f"state({pid})") in (LOCKED, CHECKPOINTED)
        if caller.ask(f"state({pid})") == LOCKED:  # it had not begun
            assert caller.ask(f"checkpoint({pid})") == 0
        killed_in(slow, caller, "restore", pid)
        if caller.ask(f"state({pid})") == CHECKPOINTED:
            assert caller.ask(f"restore({pid})") == 0
        assert caller.ask(f"[state({pid}), unlock({pid})]") == [LOCKED, 0]
        assert target.ask("is_intact(p)") is True


def test_a_process_goes_on_if_its_locker_is_killed_before_it_has_the_lock(target, machine, caller):
    target.send("spin(60_000_000_000); answer('launched')")
    assert target.answer() == "launched"
    killed_in(machine, caller, "lock", target.pid)
    assert target.ask("alloc(4096) is not None") is True
    assert caller.ask(f"state({target.pid})") == RUNNING


def test_memory_of_a_process_that_is_killed_while_checkpointed_is_gone(target, caller, machine):
    assert caller.ask(f"[lock({target.pid}), checkpoint({target.pid})]") == [0, 0]
    target.process.kill()
    target.process.communicate()
    assert caller.ask(f"restore({target.pid})") == OPERATING_SYSTEM
    assert driver_memory.used_bytes(machine) == 0


def test_an_action_waits_while_its_target_is_stopped(target, caller):
    pid = target.pid
    target.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: checkpoints.process_state(pid) == "T")
    caller.send(f"answer(lock({pid}, 10))")
    os.set_blocking(caller.process.stdout.fileno(), False)
    wait_until(lambda: checkpoints.process_state(caller.pid) == "S")
    assert caller.process.stdout.readline() == ""
    os.set_blocking(caller.process.stdout.fileno(), True)
    target.process.send_signal(signal.SIGCONT)
    assert caller.answer() == 0
    assert caller.ask(f"unlock({pid})") == 0


ENTRY = """
found, status = P(), INT(-1)
check(cuda.cuGetProcAddress_v2(
    b"cuCheckpointProcessLock", byref(found), int(sys.argv[1]), U64(0), byref(status)))
answer([bool(found.value), status.value, cuda.cuCheckpointProcessLock(1 << 30, None)])
"""


@pytest.mark.parametrize(
    ("driver", "asked", "expected"),
    [
        pytest.param(13000, 13000, [True, 0, OPERATING_SYSTEM], id="driver 580"),
        pytest.param(12080, 12080, [True, 0, OPERATING_SYSTEM], id="driver 570"),
        pytest.param(13000, 12040, [False, 2, OPERATING_SYSTEM], id="old program"),
        pytest.param(12040, 13000, [False, 1, NOT_SUPPORTED], id="driver 550"),
    ],
)
def test_drivers_have_the_functions_since_cuda_12_8(machine, driver, asked, expected):
    conf = machine.folder / "machine.conf"
    conf.write_text(conf.read_text().replace("cuda_version=13000", f"cuda_version={driver}"))
    assert ask_bare(machine, ENTRY, asked) == expected


def test_some_drivers_let_waits_pass_a_lock_and_end_the_process_once_checkpointed(tmp_path):
    machine = simulator.open_machine("h100", tmp_path, law=simulator.Law(sync_ignores_lock=True))
    with checkpoints.target(machine) as target, checkpoints.caller(machine) as caller:
        target.send("context(); answer(alloc(4096) > 0)")
        assert target.answer() is True
        assert caller.ask(f"lock({target.pid})") == 0
        assert target.ask("cuda.cuCtxSynchronize()") == 0
        assert caller.ask(f"checkpoint({target.pid})") == 0
        target.send("cuda.cuCtxSynchronize()")
        assert target.process.wait() == -signal.SIGSEGV


def test_every_thread_waits_and_a_handle_of_any_thread_names_its_process(machine, caller):
    with checkpoints.target(machine) as target:
        target.send(
            "context(); p = alloc(1 << 20); made = P(); check(cuda.cuCtxGetCurrent(byref(made)));"
            "done = []; go = threading.Event(); work = lambda: [cuda.cuCtxSetCurrent(made),"
            " go.wait(), done.append(alloc(4096) is not None)];"
            "threads = [threading.Thread(target=work, daemon=True) for _ in range(4)];"
            "[thread.start() for thread in threads]; answer(threads[0].native_id)"
        )
        thread = target.answer()
        assert caller.ask(f"[lock({thread}), state({target.pid})]") == [0, LOCKED]
        assert target.ask("[go.set(), time.sleep(0.05), len(done)][2]") == 0
        assert (
            caller.ask(f"[checkpoint({thread}), restore({thread}), unlock({thread})]") == [0] * 3
        )
        assert target.ask("[[t.join() for t in threads], done][1]") == [True] * 4


CORE_TARGET = """
from cuda.core import Device
Device(0).set_current()
"""
CORE_CALLER = """
from cuda.core import checkpoint
def cycle(pid):
    process = checkpoint.Process(pid)
    states = [process.state, process.restore_thread_id > 0]
    for step in (
        process.lock, process.unlock, lambda: process.lock(timeout_ms=5000), process.checkpoint,
        process.restore, process.unlock,
    ):
        step()
        states.append(process.state)
    return states
"""


def test_cuda_core_checkpoints_a_process(machine):
    environment = machine_room.environment(machine)
    with (
        checkpoints.lines(CORE_TARGET, environment) as target,
        checkpoints.lines(CORE_CALLER, environment) as caller,
    ):
        assert caller.ask(f"cycle({target.pid})") == [
            "running",
            True,
            "locked",
            "running",
            "locked",
            "checkpointed",
            "locked",
            "running",
        ]
        assert target.ask("len(Device().uuid) > 0") is True
