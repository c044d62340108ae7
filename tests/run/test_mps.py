"""`pyvgpu run --sharing mps`: the daemon, its limits, the shim's quota, and what fails."""

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import checkpoints
import mps_room
import pytest
from runner import PYVGPU
from waiting import WHOLE, wait_until

from pyvgpu import errors, quota, shim
from pyvgpu.device import Device
from pyvgpu.machine import mps_daemon, mps_limits, reservations
from pyvgpu.run import janitor
from pyvgpu.share import MPS_SERVER_BYTES, Share
from pyvgpu.simulation import simulator

from .conftest import reservation_folders

MIB, GIB = 1 << 20, 1 << 30
OUT_OF_MEMORY, NOT_PERMITTED, RPC_FAILURE = 2, 800, 806
CLIENT = checkpoints.SERVER + checkpoints.TARGET + mps_room.CLIENT + checkpoints.LOOP
HELD = "2GiB"
INIT = CLIENT.replace('answer("ready")', "answer(cuda.cuInit(0))")


@pytest.fixture(name="machine")
def fixture_machine(runner):
    return simulator.open_machine("h100", runner.machines)


@pytest.fixture(name="registries")
def fixture_registries():
    """Registries of its own: the runs of other tests end unused daemons of the machine's."""
    with tempfile.TemporaryDirectory(prefix="pyvgpu-test-") as folder:
        yield reservations.Registries(Path(folder, "root"), Path(folder, "shared"))


def mps_folders(machine, registries=None):
    uuid = machine.devices[0].uuid
    return [
        folder
        for registry in (registries or reservations.Registries()).paths
        for folder in registry.glob(f"mps-*-{uuid}")
    ]


def daemon_of(machine):
    (folder,) = mps_folders(machine)
    return mps_room.Daemon(folder, machine)


@contextlib.contextmanager
def tenant(runner, name, *options, client=CLIENT):
    """Run a program that executes lines."""
    arguments = ("--sharing", "mps", "--vmemory", HELD, "--name", name, *options)
    with runner.started(*arguments, "--", sys.executable, "-c", client, INIT) as process:
        yield checkpoints.Lines(process)


def test_a_program_has_its_part_of_the_sms_and_its_memory(runner, name, machine):
    with tenant(runner, name, "--vcore", "50") as program:
        program.send("context(); answer([enabled(), sms(), allocate(1 << 30), allocate(1 << 30)])")
        assert program.answer() == [1, 66, 0, OUT_OF_MEMORY]
        variables = program.ask("{k: v for k, v in os.environ.items() if k.startswith('CUDA_')}")
        assert variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
        assert variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2048M"
        listed = runner.listed(name)
        held = GIB + machine.devices[0].context_bytes
        assert (listed["isolation"], listed["vcore"], listed["held_bytes"]) == ("mps", 50, held)


def test_clients_are_not_suspended_and_go_on(runner, name, machine):
    with tenant(runner, name, "--vcore", "50") as program:
        assert program.ask("context() or allocate(1 << 30)") == 0
        said = subprocess.run(
            [PYVGPU, "suspend", name],
            env=runner.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (said.returncode, said.stdout) == (69, "")
        assert said.stderr.endswith(
            "its processes use MPS, and the driver cannot suspend clients of MPS\n"
        )
        with checkpoints.caller(machine) as caller:
            assert caller.ask(f"state({program.ask('os.getpid()')})") == "state 0"
        assert program.ask("allocate(1 << 20)") == 0


def test_the_quota_bounds_the_sum_over_the_processes(runner, name):
    """MPS's own limit is one of each process, so two would have twice as much."""
    two = (
        "import subprocess, sys\n"
        "made = [subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdin=-1, stdout=-1, "
        "text=True) for _ in range(2)]\n"
        "for one in made:\n"
        "    one.stdout.readline()\n"
        "    one.stdin.write('context(); answer(allocate(900 << 20))\\n')\n"
        "    one.stdin.flush()\n"
        "    print(one.stdout.readline().strip(), flush=True)\n"
    )
    done = runner(
        *("--sharing", "mps", "--vmemory", HELD, "--name", name),
        *("--", sys.executable, "-c", two, CLIENT),
    )
    assert done.stdout.split() == ["0", str(OUT_OF_MEMORY)], done.stderr


MEASURED = CLIENT.replace(
    'answer("ready")',
    f"""
def available():
    free, total = SIZE(), SIZE()
    check(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value
module = P()
image = b".version 8.0\\n.target sm_70\\n.address_size 64\\n" \\
        b".visible .global .align 4 .b8 big[{512 * MIB}];\\n.visible .entry nop() {{ ret; }}\\n"
answer("ready")
""",
)


def test_measured_memory_of_a_client_is_counted_once_and_no_longer_than_nvml_sees_it(
    runner, name, machine
):
    """NVML lists clients apart from the server, whose memory belongs to no run."""
    context = machine.devices[0].context_bytes
    with (
        tenant(runner, name, "--vcore", "50", client=MEASURED) as program,
        tenant(runner, f"{name}-b", "--vcore", "30") as other,
    ):
        for one in (program, other):
            one.send("context(); answer(enabled())")
            assert one.answer() == 1
        before = program.ask("available()")
        assert before == 2 * GIB - context
        program.send("answer(cuda.cuModuleLoadData(byref(module), image))")
        assert program.answer() == 0
        wait_until(lambda: program.ask("available()") == before - 512 * MIB)
        assert runner.listed(name)["held_bytes"] == context + 512 * MIB
        assert program.ask(f"allocate({before - 256 * MIB})") == OUT_OF_MEMORY
        program.send("answer(cuda.cuModuleUnload(module))")
        assert program.answer() == 0
        wait_until(lambda: program.ask("available()") == before)
        assert program.ask(f"allocate({before})") == 0
        assert runner.listed(f"{name}-b")["held_bytes"] == context


@pytest.mark.parametrize(
    ("vcore", "sms"),
    [pytest.param(40, 34, id="lowered"), pytest.param(25, 32, id="kept")],
)
def test_sms_that_are_doubtful_on_hopper_are_lowered_and_said(runner, name, vcore, sms):
    done = runner(
        *("--sharing", "mps", "--vcore", vcore, "--name", name, "--", sys.executable, "-c"),
        CLIENT.replace('answer("ready")', "context(); answer(sms())"),
    )
    assert done.stdout.split()[0] == str(sms), done.stderr
    assert ("instead of 40: 34 SMs" in done.stderr) is (vcore == 40)


def test_a_program_that_would_not_be_in_mps_does_not_start(runner, name):
    for unset, said in (
        ("CUDA_MPS_PIPE_DIRECTORY", "the driver does not use MPS"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "must be above 0 and at most 50"),
    ):
        done = runner(
            *("--sharing", "mps", "--vcore", "50", "--vmemory", HELD, "--name", name),
            *("--", "env", "-u", unset, sys.executable, "-c", INIT),
        )
        assert done.stdout.split() == [str(NOT_PERMITTED)], unset
        assert said in done.stderr
    done = runner(
        *("--sharing", "mps", "--vcore", "50", "--vmemory", HELD, "--name", name),
        *("--", "env", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=60", sys.executable, "-c", INIT),
    )
    assert done.stdout.split() == [str(NOT_PERMITTED)]


def test_an_index_of_the_user_does_not_hide_the_device(runner, name):
    done = runner(
        *("--sharing", "mps", "--vmemory", HELD, "--name", name, "--", "env"),
        *("CUDA_VISIBLE_DEVICES=0", sys.executable, "-c"),
        CLIENT.replace('answer("ready")', "context(); answer(enabled())"),
    )
    assert done.stdout.split() == ["1"], done.stderr


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
        monkeypatch.setattr(mps_daemon, "PATIENCE_SECONDS", 0.05)
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


def test_a_pid_file_that_names_another_process_harms_none(machine, registries):
    daemon, pid = lone_daemon(machine, registries)
    (daemon.folder / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")
    mps_daemon.end_unused(registries)
    assert mps_folders(machine, registries) == []
    os.kill(pid, signal.SIGKILL)


def test_runs_of_a_device_share_it_by_one_means(runner, name, machine):
    with tenant(runner, name, "--vcore", "30"):
        done = runner("--vmemory", HELD, "--", "true")
        assert done.returncode == 69
        assert f"{name} uses device 0 (pyvgpu simulated H100) with sharing mps" in done.stderr
    wait_until(lambda: mps_folders(machine) == [])
    other = f"{name}-2"
    with runner.started("--vmemory", HELD, "--name", other, "--", "cat") as process:
        wait_until(lambda: reservation_folders(other))
        done = runner("--sharing", "mps", "--vmemory", HELD, "--", "true")
        assert done.returncode == 69
        assert f"{other} uses device 0 (pyvgpu simulated H100) with sharing quota" in done.stderr
        process.stdin.close()
        process.wait(60)


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


@pytest.mark.parametrize(
    ("setup", "terminated"),
    [
        pytest.param("", True, id="a program that SIGTERM kills"),
        pytest.param(
            "import signal; signal.signal(15, lambda *_: exit(0))", False, id="one that handles it"
        ),
    ],
)
def test_program_is_terminated_by_mps_before_a_signal_kills_it(
    runner, name, machine, setup, terminated
):
    arguments = ("--sharing", "mps", "--vmemory", HELD, "--name", f"{name}-2")
    with (
        tenant(runner, name) as other,
        runner.started(*arguments, "--", sys.executable, "-c", CLIENT, INIT) as process,
    ):
        program = checkpoints.Lines(process)
        for each in (program, other):
            each.send("context(); answer(enabled())")
            assert each.answer() == 1
        if setup:
            program.send(f"{setup}; answer(0)")
            assert program.answer() == 0
        pid = program.ask("os.getpid()")
        said = daemon_of(machine).folder / "control.log"
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert (f"Client {pid} terminated" in said.read_text()) is terminated
        assert other.ask("allocate(1)") == 0


def test_the_end_of_a_server_is_said(capsys, machine, tmp_path):
    with mps_room.daemon(machine, tmp_path / "mps") as daemon, daemon.client() as client:
        client.send("context(); answer(enabled())")
        assert client.answer() == 1
        watcher = mps_daemon.DaemonWatcher(watched_daemon(daemon))
        watcher.look()
        server = daemon.server
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: client.ask("allocate(1)") == RPC_FAILURE)
        watcher.look()
        watcher.look()
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
        watcher.look()
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
        watcher.look()
        assert capsys.readouterr().err == ""
        assert one.ask("crash()") == 700
        watcher.look()
        watcher.look()
    said = capsys.readouterr().err
    assert said.count("a fatal error of one program ended all programs") == 1


def test_a_device_that_prohibits_processes_is_refused(runner, machine):
    simulator.set_faults(machine, "compute_mode 0 2")
    done = runner("--sharing", "mps", "--vmemory", HELD, "--", "true")
    assert done.returncode == 69
    assert "the compute mode of device 0 (pyvgpu simulated H100) is PROHIBITED" in done.stderr
    wait_until(lambda: mps_folders(machine) == [])


def test_a_driver_without_the_daemon_is_refused(runner, machine, tmp_path, monkeypatch):
    folder = tmp_path / "driver"
    folder.mkdir()
    for library in shim.simulator_libraries().glob("lib*"):
        shutil.copy2(library, folder)
    if mps_daemon.shutil.which("nvidia-cuda-mps-control", path="/usr/bin:/usr/local/bin:/bin"):
        pytest.skip("this machine has NVIDIA's")
    done = subprocess.run(
        [*runner.command()[:2], "--driver-libraries", folder, "--sharing", "mps", "--", "true"],
        env={**runner.environment, **machine.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 69
    assert "there is no nvidia-cuda-mps-control beside" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--policy", "elastic", "--vcore", "50"), "must be hard under MPS"),
        (("--priority", "low"), "must be normal under MPS"),
    ],
)
def test_options_of_time_are_refused(runner, options, said):
    done = runner("--sharing", "mps", *options, "--", "true")
    assert done.returncode == 64
    assert said in done.stderr


@pytest.mark.parametrize("text", ["", "MPS", "mig", "hardware"])
def test_another_sharing_is_refused(runner, text):
    done = runner("--sharing", text, "--", "true")
    assert done.returncode == 64
    assert "must be quota or mps, such as quota" in done.stderr


def test_only_less_memory_can_be_set(runner, name):
    def set_to(*arguments):
        return subprocess.run(
            [runner.command()[0], "set", name, *arguments],
            env=runner.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    with tenant(runner, name, "--vcore", "50"):
        wait_until(lambda: all((x / "control").exists() for x in reservation_folders(name)))
        assert "under MPS only --vmemory can change" in set_to("--vcore", "60").stderr
        assert "must be at most 2GiB under MPS" in set_to("--vmemory", "3GiB").stderr
        assert set_to("--vmemory", "1GiB").returncode == 0


def test_the_server_has_room_of_its_own(runner, machine):
    done = runner("--sharing", "mps", "--vmemory", machine.devices[0].memory_bytes, "--", "true")
    assert done.returncode == 64
    assert "valid would be" in done.stderr
    whole = machine.devices[0].memory_bytes - MPS_SERVER_BYTES
    assert runner("--sharing", "mps", "--vmemory", whole, "--", "true").returncode == 0


FACTS = mps_limits.DeviceFacts(False, (9, 0), 132)
A100 = mps_limits.DeviceFacts(False, (8, 0), 108)


@pytest.mark.parametrize(
    ("vcore", "facts", "percent", "sms"),
    [
        pytest.param(100, FACTS, 100, 132, id="all"),
        pytest.param(1, FACTS, 1, 8, id="the least of Hopper"),
        pytest.param(50, FACTS, 50, 66, id="above no doubtful one"),
        pytest.param(90, FACTS, 90, 118, id="the first behind the doubtful ones"),
        pytest.param(89, FACTS, 51, 66, id="doubtful: 116"),
        pytest.param(30, FACTS, 27, 34, id="doubtful: 38"),
        pytest.param(20, FACTS, 13, 16, id="doubtful: 26"),
        pytest.param(30, A100, 30, 32, id="not on other devices"),
        pytest.param(1, A100, 1, 2, id="the least of others"),
    ],
)
def test_vcore_is_a_percentage_of_the_sms(vcore, facts, percent, sms):
    limit = mps_limits.limit_sms(vcore, facts)
    assert (limit.percent, limit.sms, limit.lowered) == (percent, sms, percent < vcore)


def test_a_device_before_volta_is_refused():
    old = mps_limits.DeviceFacts(False, (6, 1), 20)
    with pytest.raises(errors.UnavailableError, match=r"6\.1; must be at least 7\.0"):
        mps_limits.check_device(old, "device 0")


def test_the_memory_limit_is_not_below_the_quota():
    device = Device("GPU-00000000-0000-0000-0000-000000000001", 0, "H100", 80 * GIB, GIB)
    share = Share(device, 100, 2 * GIB + 1, isolation=quota.Isolation.MPS)
    found = mps_limits.variables(share, mps_limits.limit_sms(100, FACTS), Path("/pipe"))
    assert found == {
        "CUDA_MPS_PIPE_DIRECTORY": "/pipe",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2049M",
    }
