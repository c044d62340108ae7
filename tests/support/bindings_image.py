"""Builds an image with NVIDIA's `cuda-bindings` on top of pyvgpu's image, which has Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAME = "localhost/cuda-bindings:1"
COMMAND = [f"/usr/local/bin/python3.{sys.version_info.minor}", "/program.py"]

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("cuda/bindings", "cuda/pathfinder")
_PROGRAM = """
# Allocates until refused; prints the driver's answers and what NVML reports of processes.
import json, os
import pynvml
from cuda.bindings import driver
STEP = 64 << 20
def check(answer):
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]
check(driver.cuInit(0))
check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
free, total = check(driver.cuMemGetInfo())
taken, error = 0, 0
while not int(error):
    error, _ = driver.cuMemAlloc(STEP)
    taken += 0 if int(error) else STEP
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
print(json.dumps({
    "total": total, "context": total - free, "taken": taken, "refused": error.name,
    "nvml": pynvml.nvmlDeviceGetMemoryInfo(device).total, "pid": os.getpid(),
    "pids": [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device)],
}))
"""


def make(folder: Path) -> None:
    """Build the image and load it into the cluster; needs the base image of `make images`."""
    import cuda.bindings

    site = Path(cuda.bindings.__path__[0]).parents[1]
    inside = f"/usr/local/lib/python3.{sys.version_info.minor}/site-packages"
    program = folder / "program.py"
    program.write_text(_PROGRAM)
    archive = folder / "bindings.tar"
    subprocess.run(
        [
            *(sys.executable, _ROOT / "deploy/image.py", archive, NAME),
            f"--on={_ROOT / 'dist/pyvgpu.tar'}",
            *(f"--file={site / package}={inside}/{package}" for package in _PACKAGES),
            f"--file={program}=/program.py",
        ],
        check=True,
    )
    cluster = _ROOT / "tests/e2e/cluster/cluster"
    subprocess.run([cluster, "image", archive], check=True, capture_output=True)
