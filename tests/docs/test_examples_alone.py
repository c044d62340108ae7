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


@pytest.mark.slow
def test_server_and_batch_example_runs_with_each_priority(tmp_path):
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYVGPU_SIMULATED_MACHINES": str(tmp_path / "machines"),
        "SIMULATE": "h100",
        "TIMES": "3",
        "NAMED": f"-{secrets.token_hex(4)}",
        "PORT": str(free_port()),
        "PYVGPU": str(runner.PYVGPU),
        "PYTHON": sys.executable,
    }
    script = example_files.FOLDER / "server-and-batch.sh"
    done = subprocess.run(["sh", script], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    headings = [line.partition(":")[0] for line in done.stdout.splitlines()]
    beside = "beside a job of"
    batch = f"batch{environment['NAMED']}"
    assert headings == ["alone", f"{beside} normal priority", batch, f"{beside} low priority"]
    assert "vcore 40, priority low, vmemory 8GiB of " in done.stdout
