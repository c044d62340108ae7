"""MPS daemons of runs: when they start and end, and what their failures mean to programs."""

import dataclasses
import os
import re
import signal
import tempfile
import threading
from pathlib import Path

import mps_room
import pytest
from mps_runs import RPC_FAILURE, daemon_of, mps_folders, tenant
from waiting import WHOLE, wait_until

from pyvgpu import errors
from pyvgpu.machine import mps_daemon, reservations
from pyvgpu.run import janitor
from pyvgpu.simulation import simulator


@pytest.fixture(name="machine")
def fixture_machine(runner):
    return simulator.open_machine("h100", runner.machines)


@pytest.fixture(name="registries")
def fixture_registries():
    """Registries of its own: the runs of other tests end unused daemons of the machine's."""
    with tempfile.TemporaryDirectory(prefix="pyvgpu-test-") as folder:
        yield reservations.Registries(Path(folder, "root"), Path(folder, "shared"))


def test_the_last_run_ends_the_daemon(runner, name, machine):
    with tenant(runner, name, "--vcore", "30") as first:
        with tenant(runner, f"{name}-2", "--vcore", "30") as second:
            for program in (first, second):
                program.send("context(); answer(enabled())")
                assert program.answer() == 1
            assert daemon_of(machine).ask("get_server_list")
            second.process.stdin.close()
            assert second.process.wait(60) == 0
        assert daemon_of(machine).ask("get_server_list")
        assert first.ask("allocate(1)") == 0
        first.process.stdin.close()
        assert first.process.wait(60) == 0
    wait_until(lambda: mps_folders(machine) == [])


def test_the_daemon_ends_when_the_supervisor_was_killed(runner, name, machine):
    with tenant(runner, name) as program:
        program.send("context(); answer(enabled())")
        assert program.answer() == 1
        pid = daemon_of(machine).pid
        blocked = Path(f"/proc/{pid}/status").read_text().partition("SigBlk:")[2].split()[0]
        assert int(blocked, 16) == 0
        program.process.kill()
    wait_until(lambda: not Path(f"/proc/{pid}/exe").exists())
    wait_until(lambda: mps_folders(machine) == [])


def lone_daemon(machine, registries):
    """Start a daemon where that of a run would be, without a run; return it as the product's."""
    registry = registries.paths[0 if os.geteuid() == 0 else 1]
    registry.mkdir(mode=0o1777, exist_ok=True)
    folder = mps_daemon.folder_of(registry, machine.devices[0].uuid)
    made = dataclasses.replace(watched_daemon(mps_room.Daemon(folder, machine)), folder=folder)
    mps_daemon.ensure(made)
    return made, mps_room.Daemon(folder, machine).pid


def test_the_daemon_ends_when_another_process_has_removed_the_reservation(
    machine, registries, tmp_path
):
    daemon, pid = lone_daemon(machine, registries)
    lock = os.open(tmp_path, os.O_RDONLY)
    try:
        janitor.tidy(
            janitor.Leavings(
                registries,
                tmp_path / "gone",
                tmp_path / "tree",
                lock,
                daemon=daemon,
            )
        )
    finally:
        os.close(lock)
    assert not Path(f"/proc/{pid}/exe").exists()
    assert mps_folders(machine, registries) == []


@pytest.mark.parametrize("is_deaf", [False, True], ids=["", "that does not obey"])
def test_a_daemon_that_no_run_uses_is_ended_by_the_next_run(
    machine, registries, monkeypatch, is_deaf
):
    """As after the supervisor and its janitor were killed."""
    _, pid = lone_daemon(machine, registries)
    if is_deaf:
        monkeypatch.setattr(mps_daemon, "TIMEOUT_SECONDS", 0.05)
        os.kill(pid, signal.SIGSTOP)
    mps_daemon.end_unused(registries)
    wait_until(lambda: not Path(f"/proc/{pid}/exe").exists())
    assert mps_folders(machine, registries) == []


def test_other_runs_begin_and_end_while_a_daemon_ends(machine, registries, monkeypatch):
    lone_daemon(machine, registries)
    asked, go_on = threading.Event(), threading.Event()
    send = vars(mps_daemon)["_send"]

    def send_later(daemon, command):
        asked.set()
        go_on.wait()
        return send(daemon, command)

    monkeypatch.setattr(mps_daemon, "_send", send_later)
    ends = threading.Thread(target=mps_daemon.end_unused, args=(registries,))
    ends.start()
    try:
        assert asked.wait(WHOLE)
        with registries.steady():
            assert mps_folders(machine, registries)
        mps_daemon.end_unused(registries)  # leaves it to the first
        assert mps_folders(machine, registries)
    finally:
        go_on.set()
        ends.join()
    assert mps_folders(machine, registries) == []


def test_a_daemon_starts_after_another_process_has_ended_it(machine, registries):
    """The start waits for the lock of a folder that is then removed."""
    daemon, first = lone_daemon(machine, registries)
    held = vars(mps_daemon)["_locked"](daemon)
    starts = threading.Thread(target=mps_daemon.ensure, args=(daemon,))
    with held:
        starts.start()
        wait_until(lambda: is_waited_for(daemon.folder / "lock"))
        vars(mps_daemon)["_end"](daemon)
    starts.join()
    assert mps_room.Daemon(daemon.folder, machine).pid != first
    mps_daemon.end_unused(registries)
    assert mps_folders(machine, registries) == []


def is_waited_for(path):
    """Whether a lock of a file has a waiter, by the kernel's list."""
    inode = f":{path.stat().st_ino} "
    waiters = (line for line in Path("/proc/locks").read_text().splitlines() if "->" in line)
    return any(inode in line for line in waiters)


def test_a_daemon_that_hangs_while_it_starts_is_killed(tmp_path, monkeypatch):
    """The agent tries again each second, and must not leave a process each time."""
    monkeypatch.setattr(mps_daemon, "TIMEOUT_SECONDS", 0.3)
    pids = tmp_path / "pids"
    daemon = fake(tmp_path, f"echo $$ >> {pids}; exec sleep 600")
    with pytest.raises(errors.UnavailableError, match="gpu0 does not start: it was not ready"):
        mps_daemon.ensure(daemon)
    for pid in pids.read_text().split():
        assert not Path(f"/proc/{pid}").exists()


def test_a_complaint_on_standard_output_is_no_answer(tmp_path):
    complaint = "Cannot find MPS control daemon process"
    daemon = fake(tmp_path, f"echo {complaint}; exit 1")
    with pytest.raises(errors.UnavailableError, match=complaint):
        mps_daemon.server_state(daemon)
    with pytest.raises(errors.UnavailableError, match="of gpu0 does not start"):
        mps_daemon.ensure(daemon)


def fake(folder, commands):
    """A daemon whose program is a shell script."""
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(f"#!/bin/sh\n{commands}\n")
    program.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin"}
    return mps_daemon.Daemon(program, folder / "daemon", "GPU-a", "gpu0", environment)


def test_a_pid_file_that_names_another_process_harms_none(machine, registries):
    daemon, pid = lone_daemon(machine, registries)
    (daemon.folder / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")
    mps_daemon.end_unused(registries)
    assert mps_folders(machine, registries) == []
    os.kill(pid, signal.SIGKILL)


def test_each_mig_device_has_a_daemon_of_its_own(runner, name):
    """Its clients see the SMs of the instance, and the compute mode of the GPU stays."""
    layout = "h100:mig=3g.40gb+2g.20gb"
    machine = simulator.open_machine(layout, runner.machines)
    large, small = simulator.mig_state(machine).instances

    def folder(uuid):
        (found,) = [
            folder
            for registry in reservations.Registries().paths
            for folder in registry.glob(f"mps-*-{uuid}")
        ]
        return found

    with (
        tenant(runner, name, "--simulate", layout, "--device", large.uuid, "--vcore", "50") as one,
        tenant(runner, f"{name}-2", "--simulate", layout, "--device", small.uuid) as other,
    ):
        for program in (one, other):
            program.send("context(); answer([enabled(), sms()])")
        assert one.answer() == [1, 30], "half of 60"
        assert other.answer() == [1, 32]
        pipes = [program.ask("os.environ['CUDA_MPS_PIPE_DIRECTORY']") for program in (one, other)]
        assert pipes == [str(folder(large.uuid)), str(folder(small.uuid))]
        daemons = [mps_room.Daemon(folder(each.uuid), machine) for each in (large, small)]
        assert daemons[0].pid != daemons[1].pid
        os.kill(daemons[1].server, signal.SIGKILL)
        wait_until(lambda: other.ask("allocate(1)") == RPC_FAILURE)
        assert one.ask("allocate(1)") == 0, "the other instance is not concerned"


def test_the_end_of_a_server_is_said(capsys, machine, tmp_path):
    with mps_room.daemon(machine, tmp_path / "mps") as daemon, daemon.client() as client:
        client.send("context(); answer(enabled())")
        assert client.answer() == 1
        watcher = mps_daemon.DaemonWatcher(watched_daemon(daemon))
        watcher.poll()
        server = daemon.server
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: client.ask("allocate(1)") == RPC_FAILURE)
        watcher.poll()
        watcher.poll()
    said = capsys.readouterr().err
    assert re.fullmatch(
        rf"pyvgpu: the MPS server of device 0 has ended \(server\.log: .* Server {server} exited "
        r"with signal 9\); programs that used it get error 806 .*\n",
        said,
    ), said


def test_the_next_program_of_a_run_has_another_server(runner, name, machine):
    with tenant(runner, name) as program:
        program.send("context(); answer(enabled())")
        assert program.answer() == 1
        os.kill(daemon_of(machine).server, signal.SIGKILL)
        wait_until(lambda: program.ask("allocate(1)") == RPC_FAILURE)
        program.send(
            "import subprocess; answer(subprocess.run([sys.executable, '-c', sys.argv[1]], "
            "stdin=subprocess.DEVNULL, stdout=-1).stdout.decode())"
        )
        assert program.answer() == "0\n"


def watched_daemon(daemon):
    return mps_daemon.Daemon(
        mps_room.PROGRAM,
        daemon.folder,
        daemon.machine.devices[0].uuid,
        "device 0",
        daemon.machine.environment,
    )


def test_a_daemon_that_has_ended_is_started_again(runner, name, machine):
    with tenant(runner, name) as program:
        program.send("context(); answer(enabled())")
        assert program.answer() == 1
        daemon = daemon_of(machine)
        before = daemon.pid
        os.kill(before, signal.SIGKILL)
        said = program.process.stderr.readline()
        while "was started again" not in said:
            said = program.process.stderr.readline()
        assert daemon.pid != before
        wait_until(lambda: program.ask("allocate(1)") == RPC_FAILURE)
        with daemon.client() as client:
            assert client.ask("cuda.cuInit(0)") == 0


@pytest.mark.parametrize("ended", ["daemon", "server"])
def test_an_end_of_which_the_program_dies_is_said_at_the_end_of_the_run(
    capsys, machine, tmp_path, ended
):
    with mps_room.daemon(machine, tmp_path / "mps") as daemon, daemon.client() as client:
        client.send("context(); answer(enabled())")
        assert client.answer() == 1
        watcher = mps_daemon.DaemonWatcher(watched_daemon(daemon))
        watcher.poll()
        os.kill(daemon.pid if ended == "daemon" else daemon.server, signal.SIGKILL)
        wait_until(lambda: client.ask("allocate(1)") == RPC_FAILURE)
        watcher.stop()
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "device 0 has ended" in said
        assert "started again" not in said.partition(";")[0]


def test_a_fatal_error_is_said_once(capsys, machine, tmp_path):
    with (
        mps_room.daemon(machine, tmp_path / "mps") as daemon,
        daemon.client() as one,
        daemon.client() as two,
    ):
        for client in (one, two):
            client.send("context(); answer(allocate(1))")
            assert client.answer() == 0
        watcher = mps_daemon.DaemonWatcher(watched_daemon(daemon))
        watcher.poll()
        assert capsys.readouterr().err == ""
        assert one.ask("crash()") == 700
        watcher.poll()
        watcher.poll()
    said = capsys.readouterr().err
    assert said.count("a fatal error of one program ended all programs") == 1
