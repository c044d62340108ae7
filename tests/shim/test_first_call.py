"""Any hook may be the first call of a program: it loads the driver."""

import json
import subprocess
import sys

import hook_table
import pytest
import shim_room

pytestmark = pytest.mark.slow

# Each in a child that has called nothing yet; prints the symbols in which a child died.
EACH_FIRST = """
import ctypes, json, os, sys
libraries = {name: ctypes.CDLL(name) for name in ("libcuda.so.1", "libnvidia-ml.so.1")}
died = []
for symbol in json.load(sys.stdin):
    pid = os.fork()
    if not pid:
        name = "libnvidia-ml.so.1" if symbol.startswith("nvml") else "libcuda.so.1"
        libraries[name][symbol](*(ctypes.c_void_p() for _ in range(12)))
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        died.append(symbol)
json.dump(died, sys.stdout)
"""


def died(environment):
    done = subprocess.run(
        [sys.executable, "-c", EACH_FIRST],
        input=json.dumps(sorted(hook_table.symbols())),
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(json.loads(done.stdout))


def test_no_first_call_crashes_only_with_the_shim(make_room, machine):
    assert died(make_room(machine).environment()) <= died(shim_room.bare_environment(machine))
