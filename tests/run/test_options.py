"""Errors of `pyvgpu run` for wrong and missing options: one line and a distinct exit code."""

import re
import subprocess
from pathlib import Path

import pytest
from runner import PYVGPU

from pyvgpu import shim
from pyvgpu.simulation import simulator

from .conftest import reservation_folders


@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        pytest.param(["--vmemory", "-1GiB"], 64, "must be above zero", id="negative size"),
        pytest.param(["--vmemory=-1GiB"], 64, "must be above zero", id="negative size, joined"),
        pytest.param(["--vmemory", "0"], 64, "must be above zero", id="zero size"),
        pytest.param(["--vmemory", "1.5GiB"], 64, "must be a whole number", id="fraction"),
        pytest.param(["--vmemory", "9999PiB"], 64, "more than any device has", id="enormous"),
        pytest.param(["--vmemory", "4Gib"], 64, "did you mean 4GiB", id="misspelt"),
        pytest.param(["--vmemory", "100GiB"], 64, "has 79.1GiB; valid would be", id="too large"),
        pytest.param(
            ["--vmemory", "583MiB"], 64, "must be at least 584MiB", id="below the reserve"
        ),
        pytest.param(["--vcore", "-5"], 64, "whole percentage", id="negative vcore"),
        pytest.param(["--vcore", "0"], 64, "whole percentage", id="zero vcore"),
        pytest.param(["--vcore", "101"], 64, "whole percentage", id="vcore above a device"),
        pytest.param(["--vcore", "12.5"], 64, "whole percentage", id="fraction of a percent"),
        pytest.param(["--vcore", "half"], 64, "whole percentage", id="vcore in words"),
        pytest.param(["--policy", "soft"], 64, "must be hard or elastic", id="unknown policy"),
        pytest.param(["--vcore-limit", "0"], 64, "--vcore-limit '0': must be", id="zero limit"),
        pytest.param(
            ["--vcore", "20", "--vcore-limit", "50"],
            64,
            "vcore limit 50: needs the policy elastic, such as --policy elastic",
            id="limit of a hard share",
        ),
        pytest.param(
            ["--policy", "elastic", "--vcore-limit", "50"],
            64,
            "such as --vcore 25 --vcore-limit 50",
            id="limit without a share",
        ),
        pytest.param(["--device", "7"], 64, "there is no such device; valid: 0", id="device"),
        pytest.param(["--device", "GPU-0"], 64, "there is no such device", id="device UUID"),
        pytest.param(["--device", "0,1"], 64, "must be one device, so use sev", id="two devices"),
        pytest.param(
            ["--device", "0", "--device", "1"],
            64,
            "--device 0 and --device 1: must be one device, so use several runs, such as",
            id="a device twice",
        ),
        pytest.param(["--simulate", "h900"], 64, "unknown model 'h900'", id="unknown model"),
        pytest.param(["--simulate", "h100:0"], 64, "h100:2", id="no devices"),
        pytest.param(["--simulate", "h100:99"], 64, "h100:2", id="too many devices"),
        pytest.param(["--name", "My Run"], 64, "must be lower-case letters", id="name"),
        pytest.param(["--name", ""], 64, "must be lower-case letters", id="empty name"),
        pytest.param(["--driver-libraries", "/tmp"], 64, "one driver", id="two drivers"),
        pytest.param(["--driver-libraries", ""], 64, "must name a folder", id="no folder"),
        pytest.param(["--frobnicate"], 64, "--frobnicate", id="unknown option"),
        pytest.param(["--vmem", "4GiB"], 64, "--vmem", id="abbreviation"),
    ],
)
def test_wrong_option_is_refused_in_one_line(runner, options, code, problem):
    ran = runner(*options, "true")
    assert ran.returncode == code
    assert problem in ran.stderr
    assert re.fullmatch(r"pyvgpu: [^\n]+\n", ran.stderr)
    assert runner.trees() == []


@pytest.mark.parametrize("given", ["simulated", "installed"])
@pytest.mark.parametrize("options", [[], ["--device", "0"]], ids=["any", "named"])
def test_a_device_in_mig_mode_is_refused_with_what_to_do(runner, given, options):
    machine = simulator.open_machine("h100", runner.machines)
    simulator.set_faults(machine, "mig 0")
    command = [*runner.command(), *options, "true"]
    if given == "installed":  # NVML is asked
        command[2:4] = ["--driver-libraries", str(shim.simulator_libraries())]
    ran = subprocess.run(
        command,
        env={**runner.environment, **machine.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 69
    assert "device 0 (pyvgpu simulated H100) is in MIG mode" in ran.stderr
    assert "turn MIG off with `nvidia-smi -i 0 -mig 0`" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_missing_command_is_refused_with_an_example(runner):
    ran = runner("--vmemory", "2GiB", "--")
    assert ran.returncode == 64
    assert "no command is given, such as" in ran.stderr


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("", 127, "COMMAND '': must name a program, such as python"),
        ("train.py", 127, "train.py: no such file or directory; did you mean python train.py?"),
        ("./train.py", 126, "./train.py: permission denied; did you mean python ./train.py?"),
        ("serve", 127, "serve: no such file or directory; did you mean ./serve?"),
        ("./notes", 126, "permission denied; `chmod +x ./notes` makes a program executable"),
        (
            "python train.py",
            127,
            "no such file or directory; did you mean -- python train.py, without quotes?",
        ),
        ("absent.py", 127, "absent.py: no such file or directory"),
    ],
)
def test_a_script_as_the_command_is_answered_with_how_to_start_it(
    runner, tmp_path, command, code, said
):
    for name, mode in (("train.py", 0o644), ("serve", 0o755), ("notes", 0o644)):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(mode)
    ran = subprocess.run(
        [*runner.command(), "--vmemory", "2GiB", "--", command],
        env=runner.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr.count("\n")) == (code, 1)
    assert ran.stderr.endswith(f"{said}\n")


def test_options_after_the_command_are_the_commands(runner):
    ran = runner("--vmemory", "2GiB", "echo", "--vmemory", "x", "--", "-h")
    assert ran.stdout == "--vmemory x -- -h\n"
    ran = runner("--vmemory", "2GiB", "--", "echo", "--", "--help")
    assert ran.stdout == "-- --help\n"


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        pytest.param(["--vmemory", "2GiB"], [], id="nothing to say"),
        pytest.param(
            [],
            ["no quota is given: using all of device 0 (pyvgpu simulated H100), 79.1GiB"],
            id="the whole device",
        ),
        pytest.param(
            ["--vcore", "25"],
            [
                "--vmemory is not given: using 25 percent of device 0 (pyvgpu simulated H100), "
                "19.8GiB",
            ],
            id="percent of the device",
        ),
        pytest.param(
            ["--vcore", "25", "--vmemory", "2GiB", "--policy", "elastic"],
            [],
            id="time and memory",
        ),
    ],
)
def test_defaults_are_reported_in_one_line(runner, options, lines):
    ran = runner(*options, "true")
    said = ran.stderr.splitlines()
    assert len(said) == len(lines)
    for line, expected in zip(said, lines, strict=True):
        assert expected in line


@pytest.mark.parametrize(
    ("visible", "remedy"),
    [
        pytest.param("1", "choose a device by --device 1", id="an index"),
        pytest.param("3,0", "choose a device by --device 3", id="several indices"),
        pytest.param("GPU-1234", "choose it by --device GPU-1234", id="another UUID"),
        pytest.param("0", None, id="the device"),
        pytest.param("GPU-", None, id="a prefix of its UUID"),
        pytest.param("", None, id="no device: on purpose"),
    ],
)
def test_a_variable_that_hides_the_device_is_reported(runner, visible, remedy):
    ran = runner("--vmemory", "2GiB", "true", env={"CUDA_VISIBLE_DEVICES": visible})
    said = f"CUDA_VISIBLE_DEVICES={visible}: hides the run's device, whose index in the run is 0"
    assert ran.returncode == 0
    assert ran.stderr == ("" if remedy is None else f"pyvgpu: {said}; unset it, and {remedy}\n")


@pytest.mark.parametrize(
    "options", [[], ["--driver-libraries", "{empty}"]], ids=["usual", "given"]
)
def test_missing_driver_is_reported_in_one_line(runner, tmp_path, options):
    command = [PYVGPU, "run", *(option.format(empty=tmp_path) for option in options), "true"]
    ran = subprocess.run(
        command, env=runner.environment, capture_output=True, text=True, check=False
    )
    if ran.returncode == 0 and not options:
        pytest.skip("this machine has a driver")
    assert 64 <= ran.returncode <= 78
    assert "libcuda" in ran.stderr
    if not options:
        assert re.search("--simulate h100. Searched for libcuda.so.1 in /", ran.stderr)
    assert ("--simulate" in ran.stderr) == (not options)
    assert len(ran.stderr.splitlines()) == 1


def test_help_has_examples_and_succeeds(runner):
    ran = subprocess.run([PYVGPU, "run", "--help"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0
    assert "pyvgpu run --vmemory 8GiB -- python train.py" in ran.stdout


def test_documented_options_are_those_of_the_parser():
    page = (Path(__file__).parents[2] / "docs" / "run.md").read_text()
    shown = subprocess.run(
        [PYVGPU, "run", "--help"], capture_output=True, text=True, check=False
    ).stdout
    in_page = set(re.findall(r"^\| `(--[a-z-]+)", page, re.MULTILINE))
    in_help = set(re.findall(r"^  (--[a-z-]+)", shown, re.MULTILINE))
    assert in_page == in_help


def test_two_runs_with_one_name_are_refused(runner, name):
    with runner.started("--name", name, "--vmemory", "2GiB", "sh", "-c", "echo; read x") as first:
        first.stdout.readline()
        second = runner("--name", name, "--vmemory", "2GiB", "true")
        assert second.returncode == 64
        assert f"--name '{name}': another run of user" in second.stderr


def test_reservations_of_several_runs_add_up(runner, name):
    with runner.started("--name", name, "--vmemory", "70GiB", "sh", "-c", "echo; read x") as first:
        first.stdout.readline()
        second = runner("--vmemory", "20GiB", "true")
        assert second.returncode == 69
        assert "has 9.1GiB of 79.1GiB free" in second.stderr
        assert f"{name} 70GiB" in second.stderr
        fits = re.search(r"valid would be (--vmemory) (\S+)$", second.stderr.strip()).groups()
        assert runner(*fits, "true").returncode == 0


def test_read_only_home_falls_back_to_another_folder(runner, tmp_path):
    ran = runner(
        "--vmemory",
        "2GiB",
        "sh",
        "-c",
        "echo $LD_LIBRARY_PATH",
        env={"XDG_CACHE_HOME": "/proc/nowhere", "HOME": "/proc"},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("/var/tmp/pyvgpu-")


def test_name_and_command_are_in_the_registry(runner, name):
    with runner.started(
        "--name", name, "--vmemory", "2GiB", "sh", "-c", "echo; read x", "secret"
    ) as run:
        run.stdout.readline()
        (folder,) = reservation_folders(name)
        text = (folder / "reservation.json").read_text()
        assert '"command": "sh"' in text
        assert "secret" not in text
        assert f'"pid": {run.pid}' in text
