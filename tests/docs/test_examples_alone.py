"""The example of a service: systemd takes it, and what it starts answers."""

import json
import os
import re
import secrets
import shlex
import shutil
import signal
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


def test_unit_is_one_that_systemd_takes(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze (apt-get install systemd)")
    file = tmp_path / "answers.service"
    file.write_text(UNIT.replace(STARTS[0], shutil.which("true")))
    command = ["systemd-analyze", "verify", file]
    done = subprocess.run(command, capture_output=True, text=True)
    said = (done.stdout + done.stderr).splitlines()
    assert [it for it in said if file.name in it] == []  # others may be of the machine's own units


def test_what_the_unit_starts_answers_until_it_is_told_to_end(tmp_path):
    starts, (*program, script, _) = STARTS[: STARTS.index("--")], STARTS[STARTS.index("--") + 1 :]
    assert (starts[:2], program) == (["/opt/pyvgpu/bin/pyvgpu", "run"], ["/usr/bin/python3"])
    name = starts[starts.index("--name") + 1]
    ours = [f"{name}-{secrets.token_hex(4)}" if it == name else it for it in starts[2:]]
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
                told = json.load(answer)
        finally:
            process.send_signal(signal.SIGTERM)
    assert told == {"model": "StandIn", "answer": 0.5, "memory": 20 * GIB}
    assert process.returncode == 0
