"""Examples that need no cluster: the systemd unit and the server beside a batch job."""

import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import example_files
import pytest
import rights
import runner

GIB = 1 << 30
UNIT = (example_files.FOLDER / "answers.service").read_text()
STARTS = shlex.split(re.search(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)[1])


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def test_unit_is_valid_for_systemd(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze (apt-get install systemd)")
    file = tmp_path / "answers.service"
    file.write_text(UNIT.replace(STARTS[0], shutil.which("true")))
    command = ["systemd-analyze", "verify", file]
    done = subprocess.run(command, capture_output=True, text=True)
    said = (done.stdout + done.stderr).splitlines()
    assert [
        line for line in said if file.name in line
    ] == []  # others may be about this machine's units


def test_command_of_the_unit_serves_until_sigterm(tmp_path):
    starts, (*program, script, _) = STARTS[: STARTS.index("--")], STARTS[STARTS.index("--") + 1 :]
    assert (starts[:2], program) == (["/opt/pyvgpu/bin/pyvgpu", "run"], ["/usr/bin/python3"])
    name = starts[starts.index("--name") + 1]
    ours = [f"{name}-{secrets.token_hex(4)}" if start == name else start for start in starts[2:]]
    command = [
        *(runner.PYVGPU, "run", "--simulate", "h100", *ours, "--"),
        *(sys.executable, example_files.PROGRAMS / Path(script).name, "0"),  # any port
    ]
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYVGPU_SIMULATED_MACHINES": str(tmp_path / "machines"),
    }
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            said = process.stdout.readline()
            port = int(said.removeprefix("StandIn answers on port "))
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=120) as answer:
                answered = json.load(answer)
        finally:
            process.send_signal(signal.SIGTERM)
    assert answered == {"model": "StandIn", "answer": 0.5, "memory": 20 * GIB}
    assert process.returncode == 0


@pytest.fixture
def example(tmp_path):
    """Return a function that runs a script of examples/ on a simulated device."""
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYVGPU_SIMULATED_MACHINES": str(tmp_path / "machines"),
        "SIMULATE": "h100",
        "NAMED": f"-{secrets.token_hex(4)}",
        "PORT": str(free_port()),
        "PYVGPU": str(runner.PYVGPU),
        "PYTHON": sys.executable,
    }

    def run(script, **variables):
        done = subprocess.run(
            ["sh", example_files.FOLDER / script],
            env={**environment, **variables},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.replace(environment["NAMED"], ""), rights.without_line(done.stderr)

    return run


def test_vectors_are_computed_on_a_simulated_device(example, tmp_path):
    command = [*(runner.PYVGPU, "run", "--simulate", "h100", "--vmemory", "1GiB", "--")]
    command += [sys.executable, str(example_files.PROGRAMS / "vectors.py")]
    environment = {**os.environ, "PYVGPU_SIMULATED_MACHINES": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, "computes nothing" in done.stderr) == (0, False)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["copy", "add", "saxpy"]


@pytest.mark.slow
def test_server_and_batch_example_runs_with_each_priority(example):
    output, errors = example("server-and-batch.sh", TIMES="3")
    assert errors == ""
    headings = [line.partition(":")[0] for line in output.splitlines()]
    beside = "beside a job of"
    assert headings == ["alone", f"{beside} normal priority", "batch", f"{beside} low priority"]
    assert "vcore 40, priority low, vmemory 8GiB of " in output


@pytest.mark.slow
def test_server_and_batch_example_ends_if_a_run_is_refused():
    command = ["sh", example_files.FOLDER / "server-and-batch.sh"]
    environment = {**os.environ, "SIMULATE": "h10", "PYVGPU": runner.PYVGPU}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)
    assert done.returncode != 0
    assert "machine 'h10': unknown model" in done.stderr


@pytest.mark.slow
def test_notebooks_of_three_users_have_quotas_of_their_own(example):
    output, _ = example("notebooks/run.sh", BUSY="0.3")
    lines = output.splitlines()
    assert lines[1:4] == [f"{user}: 8 GiB of GPU memory" for user in ("alice", "bob", "carol")]
    assert "bob: MemoryError: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY" in lines
    assert {"carol: sum: 3.0", "alice: has computed"} <= set(lines)
    assert re.search(r"^ notebook-bob.* 30-100 +8\.00 GiB", output, re.MULTILINE)


@pytest.mark.slow
def test_llm_server_reserves_its_share_and_training_fits_beside_it(example):
    output, _ = example("inference-and-training/run.sh", CLIENTS="2", REQUESTS="2")
    blocks = int(re.match(r"(\d+) KV cache blocks", output)[1])
    assert 0.8 * 40 * GIB < blocks << 26 < 0.9 * 40 * GIB
    for words in ("alone", "beside the training"):
        assert re.search(rf"^{words}: 4 requests, \d+ tokens/s", output, re.MULTILINE)
    assert re.search(r"^ training.* 30-100 low +30\.00 GiB", output, re.MULTILINE)


@pytest.mark.slow
def test_ci_job_that_allocates_too_much_fails_alone(example):
    output, _ = example("ci-runners/run.sh", JOBS="5", STEPS="5")
    *jobs, verdict = output.splitlines()
    right = [
        f"job {number}: exit code 0: done, and the weights are right" for number in (1, 2, 3, 4)
    ]
    assert jobs[:4] == right
    assert re.match(r"job 5: exit code 1: MemoryError: .*CUDA_ERROR_OUT_OF_MEMORY", jobs[4])
    assert verdict == "1 of 5 jobs failed"


def test_ci_job_keeps_its_own_exit_code_and_waits_only_for_a_device(tmp_path):
    script = example_files.FOLDER / "ci-runners" / "gpu-job.sh"
    fake = tmp_path / "pyvgpu"  # refuses always
    fake.write_text("#!/bin/sh\necho 'pyvgpu: nothing is free' >&2\nexit 69\n")
    fake.chmod(0o755)
    environment = {**os.environ, "PYVGPU": str(fake), "WAIT": "0"}
    command = ["sh", script, "job", "true"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (69, "pyvgpu: nothing is free\n")
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    command = ["sh", script, "job", "sh", "-c", "echo lost >&2; exit 69"]
    environment["WAIT"] = "3600"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (69, "lost\n")


@pytest.mark.slow
def test_students_share_a_device_and_one_more_is_refused(example):
    output, errors = example("class/run.sh", STUDENTS="4")
    for number in range(1, 5):
        result = f"student {number} with 3072 MiB: {number} * 2 + 1 = {number * 2 + 1}.0 is right"
        assert result in output.splitlines()
    assert re.search(r"vcore 25: .* has 0 of 100 free, the rest is reserved: student-\d", errors)
