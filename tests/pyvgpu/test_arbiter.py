"""Lifecycle of the arbiter: how it starts, which runs it serves, what ends it (real program)."""

import contextlib
import fcntl
import itertools
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import forked
import pytest
import rights
from arbiters import UUIDS, living, processes, read_clock, registries_in, run_in
from waiting import wait_until

from pyvgpu import quota, region
from pyvgpu.machine import arbiter


@pytest.fixture
def place():
    """Return a folder that every user can access; its arbiters are killed afterwards."""
    with tempfile.TemporaryDirectory(prefix="pyvgpu-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)
        for pid in processes(Path(name)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not processes(Path(name)))


def script(place, body):
    """Return a command that starts a run in the registries of *place* and executes *body*."""
    text = (
        "import os, signal, sys, time\nfrom pathlib import Path\n"
        "import arbiters\n"
        f"place = Path({str(place)!r})\n"
        f"with arbiters.run_in(place, 5) as run:\n{body}"
    )
    return [sys.executable, "-c", text]


def environment():
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support")}


def test_run_with_a_share_of_the_time_has_a_running_clock(place):
    with run_in(place) as run:
        run.attendant.poll()
        (one,) = living(place)
        assert (one.uid, one.beats, [one.pid]) == (os.geteuid(), True, processes(place))
        assert run.clock().readlink() == one.clock(run.made.run_id, 0)
        wait_until(lambda: arbiter.serves(run.clock()))


def test_each_run_has_a_clock_until_it_ends(place):
    with run_in(place, uuid=UUIDS[0]) as first:
        first.attendant.poll()
        with run_in(place, uuid=UUIDS[1]) as second:
            second.attendant.poll()
            wait_until(lambda: arbiter.serves(first.clock()) and arbiter.serves(second.clock()))
            assert first.clock().readlink() != second.clock().readlink()
            assert len(processes(place)) == 1
            gone = second.clock().readlink()
        wait_until(lambda: not gone.exists())
        assert arbiter.serves(first.clock())


def test_run_with_a_whole_device_needs_no_arbiter_until_it_has_a_share(place):
    with run_in(place, 100) as run:
        run.attendant.poll()
        assert (living(place), run.clock().is_symlink()) == ((), False)
        registries_in(place).change(run.made, quota.QuotaChange(vcore=40))
        run.attendant.poll()
        wait_until(lambda: arbiter.serves(run.clock()))


def test_run_with_a_whole_device_counts_beside_runs_with_shares(place):
    with run_in(place, None) as whole:
        whole.attendant.start()
        with run_in(place) as other:
            other.attendant.poll()
            wait_until(lambda: arbiter.serves(whole.clock()))
            wait_until(lambda: read_clock(whole.clock()).tenants == 2)
        wait_until(lambda: read_clock(whole.clock()).tenants == 1)


@pytest.mark.slow
def test_sixteen_concurrent_runs_start_one_arbiter(place):
    body = "    run.attendant.poll()\n    print(run.clock().readlink(), flush=True)\n    input()\n"
    started = [
        subprocess.Popen(
            script(place, body),
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(16)
    ]
    clocks = {process.stdout.readline() for process in started}
    assert len({Path(clock).parent for clock in clocks}) == 1
    assert len(processes(place)) == 1
    for process in started:
        process.communicate("\n")
        assert process.returncode == 0
    wait_until(lambda: not processes(place))


def test_killed_arbiter_is_restarted(place):
    with run_in(place) as run:
        run.attendant.poll()
        run.attendant.start()
        for _ in range(3):
            (one,) = living(place)
            os.kill(one.pid, signal.SIGKILL)
            wait_until(lambda one=one: [x.pid for x in living(place)] not in ([], [one.pid]))
            wait_until(lambda: arbiter.serves(run.clock()))


@pytest.mark.slow
def test_frozen_arbiter_is_replaced(place):
    with run_in(place) as run:
        run.attendant.poll()
        (one,) = living(place)
        os.kill(one.pid, signal.SIGSTOP)
        wait_until(lambda: not living(place)[0].beats)
        run.attendant.poll()  # the whole machine may have been suspended
        assert living(place)[0].pid == one.pid
        run.attendant.poll()
        (other,) = living(place)
        assert (other.pid != one.pid, other.beats) == (True, True)
        assert one.pid not in processes(place)


def test_arbiter_ends_with_the_last_run_and_leaves_nothing(place):
    with run_in(place) as first:
        first.attendant.poll()
        with run_in(place) as second:
            second.attendant.poll()
        wait_until(lambda: arbiter.serves(first.clock()))
    wait_until(lambda: not processes(place))
    (registry,) = place.iterdir()
    assert list(registry.iterdir()) == []


def test_sigterm_ends_the_arbiter_and_leaves_nothing(place):
    with run_in(place) as run:
        run.attendant.poll()
        (one,) = living(place)
        os.kill(one.pid, signal.SIGTERM)
        wait_until(lambda: not one.folder.exists())


def test_arbiter_inherits_nothing_from_the_run_that_started_it(place):
    reading, writing = os.pipe()
    body = "    run.attendant.poll()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    with run_in(place) as other:
        subprocess.run(
            script(place, body),
            env={**environment(), "SECRET": "1"},
            cwd=place,
            pass_fds=[writing],
            check=False,
        )
        os.close(writing)
        assert os.read(reading, 1) == b""  # the last copy is closed
        other.attendant.poll()
        (one,) = living(place)
        proc = Path(f"/proc/{one.pid}")
        state = proc.joinpath("stat").read_text().rsplit(")", 1)[1].split()
        assert (state[1] != str(os.getpid()), state[4]) == (True, "0")  # parent, terminal
        assert proc.joinpath("cwd").readlink() == Path("/")
        assert proc.joinpath("environ").read_bytes() == b""
        kept = {str(fd.readlink()) for fd in proc.joinpath("fd").iterdir()}
        strangers = {path for path in kept if not path.startswith(f"{place}/")}
        assert strangers == {"/dev/null"}
        wait_until(lambda: arbiter.serves(other.clock()))
    os.close(reading)


def test_arbiter_does_not_inherit_the_runs_signal_mask(place):
    body = (
        "    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    run.attendant.poll()\n"
        "    (one,) = arbiters.living(place)\n"
        "    print(Path(f'/proc/{one.pid}/status').read_text())\n"
    )
    ran = subprocess.run(
        script(place, body), env=environment(), capture_output=True, text=True, check=True
    )
    said = dict(line.split(":\t") for line in ran.stdout.splitlines() if line.startswith("Sig"))
    ours = sum(1 << (number - 1) for number in signal.valid_signals())  # without libc's
    assert (int(said["SigBlk"], 16) & ours, int(said["SigIgn"], 16) & ours) == (0, 0)


def write_file(folder, size):
    """Write the file of a live arbiter into its folder."""
    raw = bytearray(size)
    struct.pack_into("<QII", raw, 0, 0x3143757067767970, 2, 4096)
    struct.pack_into("<Q", raw, 40, time.monotonic_ns())
    (folder / "arbiter").write_bytes(raw)


@pytest.mark.parametrize("forgery", ["unlocked", "open to all", "linked", "folder linked", "name"])
def test_forged_arbiter_is_ignored(place, forgery):
    registry = place / "all"
    folder = registry / f"arbiter-{os.geteuid()}{'-' if forgery == 'name' else ''}"
    folder.mkdir(parents=True)
    write_file(folder, 4096)
    with (folder / "arbiter").open("r+b") as file:
        if forgery != "unlocked":
            lock(file)
        if forgery == "open to all":
            folder.chmod(0o777)
        if forgery == "linked":
            (folder / "arbiter").rename(folder / "other")
            (folder / "arbiter").symlink_to("other")
        if forgery == "folder linked":
            folder.rename(place / "elsewhere")
            folder.symlink_to(place / "elsewhere")
        assert in_another_process(lambda: len(living(place))) == 0


def test_original_of_the_forgeries_is_accepted(place):
    folder = place / "all" / f"arbiter-{os.geteuid()}"
    folder.mkdir(parents=True)
    write_file(folder, 4096)
    with (folder / "arbiter").open("r+b") as file:
        lock(file)
        assert in_another_process(lambda: len(living(place))) == 1


def lock(file):
    fcntl.lockf(file, fcntl.LOCK_EX)


def in_another_process(question):
    """Ask in a child: to it, a POSIX lock of ours belongs to another process."""
    pid = os.fork()
    if not pid:
        os._exit(question())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@rights.as_root
def test_arbiter_folder_of_another_user_is_ignored(place):
    folder = place / "all" / "arbiter-0"
    folder.mkdir(parents=True)
    write_file(folder, 4096)
    os.chown(folder, forked.OTHER_UID, forked.OTHER_UID)
    with (folder / "arbiter").open("r+b") as file:
        lock(file)
        assert in_another_process(lambda: len(living(place))) == 0


def fork_as_other_user(action):
    """Run *action* as another user in a child; return the child's pid."""
    pid = os.fork()
    if not pid:
        try:
            forked.become(forked.OTHER_UID)
            action()
            os._exit(0)
        finally:
            os._exit(1)
    return pid


@rights.as_root
def test_two_users_have_one_arbiter(place):
    def have_a_run():
        with run_in(place, uuid=UUIDS[1]) as run:
            run.attendant.poll()
            wait_until(lambda: arbiter.serves(run.clock()))
            assert run.clock().readlink().parent == place / "root" / "arbiter-0"

    with run_in(place) as run:
        run.attendant.poll()
        assert os.waitstatus_to_exitcode(os.waitpid(fork_as_other_user(have_a_run), 0)[1]) == 0
        assert len(processes(place)) == 1


@rights.as_root
def test_arbiter_of_another_user_without_a_clock_for_the_run_is_abandoned(place):
    folder = place / "root" / f"arbiter-{forked.OTHER_UID}"

    def beat_for_ever():
        folder.mkdir()
        write_file(folder, 4096)
        with (folder / "arbiter").open("r+b") as file:
            lock(file)
            while True:
                raw = struct.pack("<Q", time.monotonic_ns())
                os.pwrite(file.fileno(), raw, 40)
                time.sleep(0.01)

    with run_in(place) as run:
        liar = fork_as_other_user(beat_for_ever)
        try:
            wait_until(lambda: [one.uid for one in living(place)] == [forked.OTHER_UID])
            run.attendant.poll()
            assert run.clock().readlink().parent == folder
            for _ in range(arbiter.MUTE_POLLS):
                run.attendant.poll()
            assert run.clock().readlink().parent == place / "root" / "arbiter-0"
            wait_until(lambda: arbiter.serves(run.clock()))
        finally:
            os.kill(liar, signal.SIGKILL)
            os.waitpid(liar, 0)


def test_clock_follows_processor_sharing(place):
    with (
        run_in(place) as first,
        run_in(place) as second,
        first.process(3),
        second.process(0),
    ):
        first.attendant.poll()
        second.attendant.poll()
        wait_until(lambda: arbiter.serves(first.clock()))
        wait_until(lambda: read_clock(first.clock()).busy == 0)
        first.work(3, 5_000_000_000)
        second.work(0, 5_000_000_000)
        wait_until(lambda: read_clock(first.clock()).busy == 2)
        before = read_clock(first.clock())
        wait_until(lambda: read_clock(first.clock()).beat_ns > before.beat_ns)
        after = read_clock(first.clock())
        shared, passed = after.share_ns - before.share_ns, after.beat_ns - before.beat_ns
        assert shared * 2 == pytest.approx(passed, abs=200)
        second.work(0, 5_000_000_000, 5_000_000_000)
        wait_until(lambda: read_clock(first.clock()).busy == 1)


def test_work_of_dead_processes_is_ignored(place):
    begun = itertools.count(900_000_000, 100_000_000)

    def busy(*slots):
        """Return how many processes have work; these *slots* begin more with each call."""
        for slot in slots:
            run.work(slot, next(begun))
        return read_clock(run.clock()).busy

    with run_in(place) as run, run.process(3):
        run.attendant.poll()
        wait_until(lambda: arbiter.serves(run.clock()))
        with run.process(7):
            wait_until(lambda: busy(3, 7) == 2)
        wait_until(lambda: busy(3) == 1)


def test_unused_shares_are_lent_to_elastic_runs(place):
    elastic = quota.TimePolicy.ELASTIC
    with (
        run_in(place, 25, policy=elastic) as first,
        run_in(place, 75) as second,
        second.process(0),
    ):
        first.attendant.poll()
        second.attendant.poll()
        wait_until(lambda: arbiter.serves(first.clock()))
        waits = 0

        def lent():
            nonlocal waits
            waits += 1
            with (first.made.folder / "usage").open("r+b", 0) as file:
                os.pwrite(file.fileno(), struct.pack("<Q", waits), 328384 + 40)
            return read_clock(first.clock()).lent / 65536

        wait_until(lambda: lent() == pytest.approx(3, abs=0.1))
        second.work(0, 5_000_000_000)
        wait_until(lambda: lent() == pytest.approx(0, abs=0.1))


def test_a_suspended_run_gets_no_time_and_holds_none_back(place):
    low = quota.Priority.LOW
    with (
        run_in(place, None, priority=low) as first,
        run_in(place, 50) as second,
        second.process(0),
    ):
        first.attendant.poll()
        second.attendant.poll()
        wait_until(lambda: arbiter.serves(first.clock()))
        wait_until(lambda: arbiter.serves(second.clock()))
        second.work(0, 40_000_000_000)
        wait_until(lambda: read_clock(first.clock()).above == 2)
        wait_until(lambda: read_clock(first.clock()).tenants == 2)
        suspended = region.Suspension(gated=True, suspended=True)
        registries_in(place).mark(second.made, suspended)
        wait_until(lambda: read_clock(first.clock()).above == 0)
        wait_until(lambda: read_clock(first.clock()).tenants == 1)
        registries_in(place).mark(second.made, region.Suspension())
        wait_until(lambda: read_clock(first.clock()).above == 1)  # work before it is forgotten
        wait_until(lambda: read_clock(first.clock()).tenants == 2)
        second.work(0, 80_000_000_000, 40_000_000_000)
        wait_until(lambda: read_clock(first.clock()).above == 2)


def test_clock_of_a_low_priority_run_shows_work_of_others(place):
    low, high = quota.Priority.LOW, quota.Priority.HIGH
    with run_in(place, None, priority=low) as first, first.process(0):
        first.attendant.poll()

        def above():
            return read_clock(first.clock()).above

        wait_until(lambda: arbiter.serves(first.clock()))
        assert above() == 0, "no other process is on the device"
        with run_in(place, None, priority=high) as second, second.process(0):
            second.attendant.poll()
            wait_until(lambda: above() == 1)
            second.work(0, 40_000_000_000)
            wait_until(lambda: above() == 2)
            assert read_clock(second.clock()).above == 0, "no run has a higher priority"
            second.work(0, 40_000_000_000, 40_000_000_000)
            wait_until(lambda: above() == 1)
            registries_in(place).change(
                first.made, quota.QuotaChange(priority=quota.Priority.NORMAL)
            )
            wait_until(lambda: above() == 0)
            registries_in(place).change(first.made, quota.QuotaChange(priority=low))
            wait_until(lambda: above() == 1)
        wait_until(lambda: above() == 0)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "empty", "garbage", "gone"])
def test_damaged_files_of_a_run_do_not_affect_others(place, damage):
    with run_in(place) as broken, run_in(place) as whole:
        whole.attendant.poll()
        wait_until(lambda: arbiter.serves(whole.clock()))
        (one,) = living(place)
        for name in ("usage", "quota"):
            path = broken.made.folder / name
            path.chmod(0o644)
            if damage == "gone":
                path.unlink()
            elif damage == "garbage":
                path.write_bytes(b"\xff" * path.stat().st_size)
            else:
                os.truncate(path, 5000 if damage == "cut" else 0)
        before = read_clock(whole.clock()).beat_ns
        wait_until(lambda: read_clock(whole.clock()).beat_ns > before + 1_200_000_000)
        assert [x.pid for x in living(place)] == [one.pid]


def test_run_whose_files_are_links_has_no_clock(place):
    with run_in(place, uuid=UUIDS[0]) as run:
        run.attendant.poll()
        (one,) = living(place)
        linked = run.made.folder.parent / ("e" * 16)
        linked.mkdir(0o755)
        for name in ("quota", "usage"):
            (linked / name).symlink_to(run.made.folder / name)
        with run_in(place, uuid=UUIDS[1]) as later:
            later.attendant.poll()
            wait_until(lambda: arbiter.serves(later.clock()))
            assert one.clock(run.made.run_id, 0).exists()
            assert not one.clock(linked.name, 0).exists()


def test_unexpected_entries_in_the_registry_are_ignored(place):
    with run_in(place) as run:
        registry = run.made.folder.parent
        os.mkfifo(registry / ("a" * 16))
        (registry / ("b" * 16)).symlink_to(run.made.folder)
        (registry / ("c" * 16)).mkdir()
        os.mkfifo(registry / ("c" * 16) / "quota")
        (registry / ("d" * 16)).write_text("no folder")
        run.attendant.poll()
        wait_until(lambda: arbiter.serves(run.clock()))
        assert len(processes(place)) == 1


@rights.needs_mounts
def test_full_disk_is_reported_once_and_does_not_end_the_run(place):
    body = (
        "    with open(run.made.folder / 'filler', 'wb', 0) as filler:\n"
        "        try:\n"
        "            while True:\n"
        "                filler.write(bytes(4096))\n"
        "        except OSError:\n"
        "            pass\n"
        "    run.attendant.poll()\n"
        "    run.attendant.poll()\n"
        "    (run.made.folder / 'filler').unlink()\n"
        "    run.attendant.poll()\n"
        "    print(len(arbiters.living(place)))\n"
    )
    for registry in ("root", "all"):
        (place / registry).mkdir()
        (place / registry).chmod(0o1777)
    mounts = " && ".join(
        f"mount -t tmpfs -o size=2m,mode=1777 none {place / registry}"
        for registry in ("root", "all")
    )
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh", *script(place, body)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "1\n"), ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert "No space left on device" in ran.stderr
