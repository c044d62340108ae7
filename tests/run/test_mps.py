"""`pyvgpu run --sharing mps`: a program's limits, the shim's quota, and what is refused."""

import shutil
import signal
import subprocess
import sys

import checkpoints
import pytest
from mps_runs import CLIENT, HELD, INIT, daemon_of, mps_folders, tenant
from runner import PYVGPU
from waiting import wait_until

from pyvgpu import shim
from pyvgpu.machine import mps_daemon
from pyvgpu.share import MPS_SERVER_BYTES
from pyvgpu.simulation import simulator

from .conftest import reservation_folders

MIB, GIB = 1 << 20, 1 << 30
OUT_OF_MEMORY, NOT_PERMITTED = 2, 800


@pytest.fixture(name="machine")
def fixture_machine(runner):
    return simulator.open_machine("h100", runner.machines)


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


def test_a_device_that_prohibits_processes_is_refused(runner, machine):
    simulator.set_faults(machine, "compute_mode 0 2")
    done = runner("--sharing", "mps", "--vmemory", HELD, "--", "true")
    assert done.returncode == 69
    assert "the compute mode of device 0 (pyvgpu simulated H100) is PROHIBITED" in done.stderr
    wait_until(lambda: mps_folders(machine) == [])


def test_a_run_takes_the_first_device_that_can_have_mps(runner, name):
    runner.machine = "h100:2"
    machine = simulator.open_machine(runner.machine, runner.machines)
    simulator.set_faults(machine, "compute_mode 0 2")
    done = runner(
        *("--sharing", "mps", "--vmemory", HELD, "--name", name, "--", sys.executable, "-c"),
        "import os; print(os.environ['CUDA_MPS_PIPE_DIRECTORY'])",
    )
    assert done.stdout.rstrip().endswith(machine.devices[1].uuid), done.stderr


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
        (("--vcore", "20", "--vcore-limit", "50"), "vcore limit 50: has no meaning under MPS"),
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
