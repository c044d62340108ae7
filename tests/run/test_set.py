"""`pyvgpu set`: another quota for a program that goes on running."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import driver_memory
import forked
import pytest
import rights
from runner import PYVGPU
from waiting import wait_until

from pyvgpu import quota, shim
from pyvgpu.errors import DataError, UnavailableError, UsageError
from pyvgpu.machine import quota_socket, reservations, users
from pyvgpu.simulation import simulator

from .conftest import reservation_folders

GIB, MIB = 1 << 30, 1 << 20

# Executes lines of standard input: a number of bytes to allocate, or "free" for all of it.
PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, held = ctypes.c_void_p(), []
def free_bytes():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return f"{free.value} {total.value}"
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
print("ready", flush=True)
for line in sys.stdin:
    pointer = ctypes.c_uint64()
    if line.strip() == "info":
        print(free_bytes(), flush=True)
    elif line.strip() == "free":
        print(*[cuda.cuMemFree_v2(pointer) for pointer in held], flush=True)
        held.clear()
    else:
        result = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(line)))
        held += [pointer] if result == 0 else []
        print(result, flush=True)
"""


def set_quota(runner, *arguments):
    ran = subprocess.run(
        [PYVGPU, "set", *map(str, arguments)],
        env=runner.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    ran.stderr = rights.without_line(ran.stderr)
    return ran


@contextlib.contextmanager
def tenant(runner, name, *options):
    """Run PROGRAM; yield a function that sends it a line and returns the answer."""
    with runner.started("--name", name, *options, "python3", "-c", PROGRAM) as process:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        wait_until(lambda: all((x / "control").exists() for x in reservation_folders(name)))

        def ask(what):
            process.stdin.write(f"{what}\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        yield ask
        process.stdin.close()
        process.wait(30)


def limits_of(name):
    (found,) = [x for x in reservations.Registries().live() if x.holder.name == name]
    return found.holder.vcore, found.limits.devices[0]


def test_memory_grows_and_shrinks_while_the_program_runs(runner, name):
    with tenant(runner, name, "--vmemory", "2GiB") as ask:
        assert ask(2 * GIB) == "2"
        ran = set_quota(runner, name, "--vmemory", "4GiB")
        assert (ran.returncode, ran.stderr) == (0, "")
        device = "device 0 (pyvgpu simulated H100)"
        assert (
            ran.stdout == f"{name}: vcore - (no limit, no guarantee), vmemory 4GiB of {device}\n"
        )
        assert ask(2 * GIB) == "0"
        assert set_quota(runner, name, "--vmemory", "1GiB").returncode == 0
        assert ask("info") == f"0 {GIB}"
        assert ask(2 * MIB) == "2", "memory above the quota stays, and new allocations fail"
        assert ask("free") == "0", "the old memory was still allocated"
        assert ask(64 * MIB) == "0"


@pytest.mark.slow
def test_memory_above_a_lowered_quota_stays_reserved_until_it_is_freed(runner, name):
    other = f"{name}-b"
    with tenant(runner, name, "--vmemory", "60GiB") as ask:
        assert ask(50 * GIB) == "0"
        ran = set_quota(runner, name, "--vmemory", "1GiB")
        assert (ran.returncode, ran.stderr) == (0, "")
        assert "; it holds 50.5GiB: nothing is reclaimed; new allocations fail" in ran.stdout
        assert "fail until it holds less than 1GiB" in ran.stdout
        refused = runner("--name", other, "--vmemory", "70GiB", "--", "true")
        assert refused.returncode == 69
        assert f"{name} 50.5GiB (held; its quota is 1GiB)" in refused.stderr
        assert "valid would be --vmemory 29288MiB" in refused.stderr
        with tenant(runner, other, "--vmemory", "20GiB") as ask_other:
            assert ask_other(19 * GIB) == "0", "the device has what was reserved"
            grown = set_quota(runner, other, "--vmemory", "30GiB")
            assert (grown.returncode, grown.stdout) == (69, "")
            assert set_quota(runner, other, "--vmemory", "10GiB").returncode == 0
            assert ask("free") == "0"
            ran = set_quota(runner, other, "--vmemory", "70GiB")
            assert (ran.returncode, "holds" in ran.stdout) == (0, False)
            assert ask_other(50 * GIB) == "0"


@pytest.mark.slow
def test_run_over_its_quota_is_marked_for_users_and_for_programs(runner, name):
    def shown(command, *options):
        done = subprocess.run(
            [PYVGPU, command, *options], env=runner.environment, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def entry():
        (found,) = [x for x in json.loads(shown("ps", "--json"))["runs"] if x["name"] == name]
        return found["held_bytes"], found["over_quota_bytes"], found["reserved_bytes"]

    commands = [("ps",), ("top", "--once", "--interval", "0.1")]
    held = 3 * GIB + 520 * MIB  # the context's, too
    with tenant(runner, name, "--vmemory", "4GiB") as ask:
        assert ask(3 * GIB) == "0"
        assert entry() == (held, 0, 4 * GIB)
        assert not any("holds more than its quota" in shown(*command) for command in commands)
        set_quota(runner, name, "--vmemory", "1GiB")
        assert entry() == (held, held - GIB, held)
        for command in commands:
            (row,) = [line for line in shown(*command).splitlines() if name in line]
            assert "3.51 GiB !" in row
            assert "! holds more than its quota: new allocations fail" in shown(*command)


@pytest.mark.slow
def test_memory_of_survivors_of_a_killed_supervisor_stays_reserved(runner, name):
    forks = "import os, sys\nif os.fork():\n    sys.stdin.read()\n    sys.exit()\nos.setsid()\n"
    report = "print(os.getpid(), cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), "
    program = PROGRAM.replace('print("ready"', f"{report}ctypes.c_size_t(50 << 30))").partition(
        "for line"
    )[0]
    pause = "\nimport signal\nsignal.pause()\n"
    with runner.started(
        "--name", name, "--vmemory", "60GiB", "python3", "-c", forks + program + pause
    ) as process:
        pid, result = map(int, process.stdout.readline().split())
        try:
            assert result == 0
            wait_until(lambda: all((x / "control").exists() for x in reservation_folders(name)))
            assert "it holds 50.5GiB" in set_quota(runner, name, "--vmemory", "1GiB").stdout
            process.kill()
            process.wait(30)
            refused = runner("--name", f"{name}-b", "--vmemory", "70GiB", "--", "true")
            assert f"{name} 50.5GiB (held; its quota is 1GiB)" in refused.stderr
        finally:
            os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: runner("--name", f"{name}-b", "--vmemory", "70GiB", "--", "true").returncode
            == 0
        )


def test_concurrent_allocation_never_exceeds_a_lowered_quota_more_than_reported(runner, name):
    churn = """
import ctypes, threading
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
def churn():
    assert cuda.cuCtxSetCurrent(context) == 0
    while True:
        held = [ctypes.c_uint64() for _ in range(8)]
        got = [cuda.cuMemAlloc_v2(ctypes.byref(slot), ctypes.c_size_t(1 << 27)) for slot in held]
        for pointer, result in zip(held, got):
            if result == 0:
                cuda.cuMemFree_v2(pointer)
for _ in range(3):
    threading.Thread(target=churn, daemon=True).start()
print("ready", flush=True)
input()
"""
    low = GIB
    with runner.started("--name", name, "--vmemory", "8GiB", "python3", "-c", churn) as process:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        wait_until(lambda: all((x / "control").exists() for x in reservation_folders(name)))
        (reservation,) = [x for x in reservations.Registries().live() if x.holder.name == name]
        above = 0
        machine = simulator.open_machine(runner.machine, runner.machines)
        with quota_socket.Supervisor(reservation) as supervisor:
            for _ in range(100):
                said = supervisor.change(quota.QuotaChange(vmemory=low)).held
                # As the device counts: the ledger also shows requests that are then refused.
                assert max(driver_memory.counted_bytes(machine, samples=500)) <= max(low, said)
                above += said > low
                supervisor.change(quota.QuotaChange(vmemory=8 * GIB))
        assert above, "no time was more held than the lowered quota"


def test_vcore_is_reserved_and_written_for_the_shim(runner, name):
    with tenant(runner, name, "--vmemory", "2GiB"):
        assert limits_of(name)[0] == 0
        assert set_quota(runner, name, "--vcore", "30").returncode == 0
        requested, limits = limits_of(name)
        assert (requested, limits.vcore, limits.vcore_limit) == (30, 30, 30)
        ran = set_quota(runner, name, "--vcore", 20, "--policy", "elastic", "--vcore-limit", 80)
        assert "vcore 20, elastic to 80, vmemory 2GiB" in ran.stdout
        requested, limits = limits_of(name)
        assert (requested, limits.vcore, limits.vcore_limit) == (20, 20, 80)
        assert set_quota(runner, name, "--policy", "hard").returncode == 0
        assert limits_of(name)[1].vcore_limit == 20
        assert limits_of(name)[1].vmemory == 2 * GIB, "what was left out stayed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        pytest.param(["--vcore", "0"], 64, "'0': must be a whole percentage", id="zero"),
        pytest.param(["--vcore", "-5"], 64, "such as 50", id="negative"),
        pytest.param(["--vcore", "101"], 64, "from 1 to 100", id="above a device"),
        pytest.param(["--vcore", "nan"], 64, "whole percentage", id="word"),
        pytest.param(["--vmemory", "0"], 64, "must be above zero, such as", id="no memory"),
        pytest.param(["--vmemory", "1MiB"], 64, "at least 584MiB", id="below a context"),
        pytest.param(["--vmemory", "999GiB"], 64, "has 79.1GiB; valid would be", id="too much"),
        pytest.param(["--policy", "soft"], 64, "hard or elastic, such as", id="policy"),
        pytest.param(["--priority", "top"], 64, "low, normal or high, such as", id="priority"),
        pytest.param(["--vcore-limit", "50"], 64, "--policy elastic --vcore-limit 50", id="hard"),
        pytest.param(
            ["--vcore", "40", "--policy", "elastic", "--vcore-limit", "30"],
            64,
            "vcore limit 30: must be from the vcore, 40, to 100, such as",
            id="limit below the share",
        ),
        pytest.param([], 64, "nothing to change is given, such as", id="nothing"),
    ],
)
def test_invalid_changes_are_refused_and_change_nothing(runner, name, options, code, problem):
    with tenant(runner, name, "--vmemory", "2GiB", "--vcore", "25"):
        before = limits_of(name)
        ran = set_quota(runner, name, *options)
        assert (ran.returncode, ran.stdout) == (code, "")
        assert problem in ran.stderr
        assert re.fullmatch(r"pyvgpu: [^\n]+\n", ran.stderr)
        assert limits_of(name) == before


@pytest.mark.slow
def test_quota_cannot_exceed_what_is_not_reserved(runner, name):
    other = f"{name}-b"
    with (
        tenant(runner, name, "--vmemory", "2GiB", "--vcore", "60"),
        tenant(runner, other, "--vmemory", "70GiB", "--vcore", "30"),
    ):
        before = limits_of(name)
        ran = set_quota(runner, name, "--vcore", "80")
        assert ran.returncode == 69
        assert "vcore 80: device 0 (pyvgpu simulated H100) has 70 of 100 free" in ran.stderr
        assert f"{other} 30; valid would be --vcore 70" in ran.stderr
        assert "valid would be --vmemory" in set_quota(runner, name, "--vmemory", "20GiB").stderr
        assert limits_of(name) == before
        assert set_quota(runner, name, "--vcore", "70").returncode == 0


def test_unknown_run_is_refused_with_the_active_runs(runner, name):
    with tenant(runner, name, "--vmemory", "2GiB"):
        ran = set_quota(runner, f"{name}-x", "--vcore", "30")
    assert ran.returncode == 64
    assert f"RUN '{name}-x': no run is called that; valid: " in ran.stderr
    assert name in ran.stderr.partition("valid: ")[2]


def test_waiting_for_a_stopped_supervisor_times_out(runner, name, monkeypatch):
    monkeypatch.setattr(quota_socket, "ANSWER_SECONDS", 0.3)
    with tenant(runner, name, "--vmemory", "2GiB"):
        (reservation,) = [x for x in reservations.Registries().live() if x.holder.name == name]
        os.kill(reservation.holder.pid, signal.SIGSTOP)
        threads = Path(f"/proc/{reservation.holder.pid}/task")
        while any(") T " not in (each / "stat").read_text() for each in threads.iterdir()):
            time.sleep(0.001)
        try:
            with (
                quota_socket.Supervisor(reservation) as supervisor,
                pytest.raises(UnavailableError, match=rf"kill -CONT {reservation.holder.pid}"),
            ):
                supervisor.change(quota.QuotaChange(vcore=30))
        finally:
            os.kill(reservation.holder.pid, signal.SIGCONT)


def test_a_run_that_does_not_listen_is_distinguished_from_one_that_has_ended(runner, name):
    def refusal(reservation):
        with (
            pytest.raises(UnavailableError) as raised,
            quota_socket.Supervisor(reservation) as supervisor,
        ):
            supervisor.change(quota.QuotaChange(vcore=30))
        return str(raised.value)

    with tenant(runner, name, "--vmemory", "2GiB"):
        (reservation,) = [x for x in reservations.Registries().live() if x.holder.name == name]
        (reservation.folder / "control").unlink()
        assert "is just starting, or accepts no changes: No such file" in refusal(reservation)
    pid = reservation.holder.pid
    assert refusal(reservation) == f"{name}: its `pyvgpu run` (pid {pid}) has ended"


@pytest.mark.slow
def test_thousand_consecutive_changes_are_answered_and_the_last_one_applies(runner, name):
    with spinning(runner, name, "10") as share_comes_to:
        share_comes_to(1, 20)
        (reservation,) = [x for x in reservations.Registries().live() if x.holder.name == name]
        with quota_socket.Supervisor(reservation) as supervisor:
            for number in range(1000):
                vcore = 1 + number % 90
                assert supervisor.change(quota.QuotaChange(vcore=vcore)).vcore == vcore
            supervisor.change(quota.QuotaChange(vcore=50))
        assert limits_of(name)[0] == limits_of(name)[1].vcore == 50
        share_comes_to(35, 60)


@rights.as_root
def test_another_user_may_not_change_it(runner, name):
    with tenant(runner, name, "--vmemory", "2GiB"):
        (reservation,) = [x for x in reservations.Registries().live() if x.holder.name == name]

        def change():
            with quota_socket.Supervisor(reservation) as supervisor:
                supervisor.change(quota.QuotaChange(vcore=30))

        refused = forked.call(change, uid=forked.OTHER_UID)
        assert "is a run of user root, which only that user and root" in str(refused)
        (reservation.folder / "control").chmod(0o666)
        refused = forked.call(change, uid=forked.OTHER_UID)
        assert f"user {users.name(forked.OTHER_UID)} may not change a run of user root" in str(
            refused
        )
        assert limits_of(name)[1].vcore == 100


def test_malformed_requests_get_an_error_and_the_next_an_answer(runner, name):
    with tenant(runner, name, "--vmemory", "2GiB"):
        (reservation,) = [x for x in reservations.Registries().live() if x.holder.name == name]
        with quota_socket.Supervisor(reservation) as supervisor:
            for nonsense in (b"\0", b"[]", b'{"vcore": "5"}', b'{"policy": 7}', b"[" * 4000):
                with pytest.raises(DataError, match=r"not a change of a quota|not a valid packet"):
                    supervisor._asker.exchange(nonsense)
            for beyond in ({"vcore": 0}, {"vcore": 101}, {"vmemory": -1}, {"vcore_limit": 10**9}):
                with pytest.raises(UsageError):
                    supervisor.change(quota.QuotaChange(**beyond))
            assert supervisor.change(quota.QuotaChange(vcore=7)).vcore == 7


@pytest.mark.slow
def test_share_of_time_changes_without_a_restart(runner, name):
    with spinning(runner, name, "10") as share_comes_to:
        share_comes_to(1, 20)
        assert set_quota(runner, name, "--vcore", "60").returncode == 0
        share_comes_to(40, 70)
        assert set_quota(runner, name, "--vcore", "10").returncode == 0
        share_comes_to(1, 20)


@contextlib.contextmanager
def spinning(runner, name, vcore):
    """Start a run that uses all available time; yield a function that awaits a share (%)."""
    spin = [str(shim.tenant_program()), "spin", "500"]
    options = ("--vmemory", "2GiB", "--vcore", vcore)
    with runner.started("--name", name, *options, "--", *spin) as process:
        reports = (json.loads(line) for line in process.stdout)
        done = (report for report in reports if report["event"] == "spun")

        def next_done():
            found = next(done, None)
            assert found is not None, process.stderr.read()
            return found

        def next_share():
            before = now = next_done()
            while now["at"] - before["at"] <= 0.3:
                now = next_done()
            return 100 * (now["ns"] - before["ns"]) / 1e9 / (now["at"] - before["at"])

        def share_comes_to(least, most):
            wait_until(
                lambda: least <= next_share() <= most,
                found=lambda: f"{next_share():.1f} %, not from {least} to {most}",
            )

        yield share_comes_to
        process.stdin.close()
        process.wait(30)
