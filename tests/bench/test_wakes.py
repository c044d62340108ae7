"""The program that only wakes periodically, the baseline of the arbiter's measurement."""

import subprocess
from pathlib import Path

import built
import pytest
from waiting import wait_until


def wakes(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))


def test_program_keeps_waking():
    with subprocess.Popen([built.tool("wakes"), "1000000"]) as program:
        try:
            before = wakes(program.pid)
            wait_until(lambda: wakes(program.pid) > before + 20)
        finally:
            program.kill()


@pytest.mark.parametrize("often", [(), ("0",), ("soon",), ("1000",), ("1000000", "2")])
def test_invalid_sleep_time_is_refused(often):
    done = subprocess.run(
        [built.tool("wakes"), *often], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "such as wakes 20000000" in done.stderr
