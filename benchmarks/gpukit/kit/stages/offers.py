"""Features of driver and kernel themselves: memory limits, checkpoints, time slices.

It sets nothing. Checkpointed is a child of this stage, and nothing else.
"""

import ctypes
import pathlib
import shutil
import subprocess
import sys

from kit import cuda, watch
from kit.stages import symbols

# The names by which they may come; those that are there are reported.
FUNCTIONS = {
    "nvml": ("MemoryLimit", "Cgroup", "TimeSlice", "ComputePolicy", "Mps", "VgpuScheduler", "Gpm"),
    "cuda": ("cuCheckpoint", "cuGreenCtx", "cuDevSmResource", "cuCoredump", "cuMulticast"),
}
CGROUPS = pathlib.Path("/sys/fs/cgroup")
STATES = ("running", "locked", "checkpointed", "failed", "checkpointing", "restoring")
LOCK_MS = 5000
HELD = 64 << 20

CHILD = f"""
import sys
from kit import cuda
device = cuda.Device()
pointer = device.allocate({HELD})
device.cuda.cuMemsetD8_v2(pointer, 7, cuda.SIZE({HELD}))
device.wait()
print("ready", flush=True)
sys.stdin.readline()
device.work(1000)
device.wait()
print(hex(device.read(pointer, 1)[0]), flush=True)
"""


def run(report):
    device = cuda.Device()
    seen = watch.Watch()
    functions(report)
    cgroups(report)
    time_slice(report)
    checkpoint(report, device, seen)


def functions(report):
    with open("/proc/self/maps", encoding="utf-8") as file:
        paths = {line.split()[-1] for line in file if "/lib" in line}
    for library, parts in (("libnvidia-ml", FUNCTIONS["nvml"]), ("libcuda.", FUNCTIONS["cuda"])):
        path = next((one for one in sorted(paths) if library in one), None)
        if path is None:
            report.missing(library, "not among the mapped files")
            continue
        prefix = "nvml" if library == "libnvidia-ml" else "cu"
        names = symbols.names_of(path, prefix)
        for part in parts:
            found = [name for name in names if part in name]
            if found:
                report.fact(f"functions with {part}", found)
            else:
                report.missing(f"functions with {part}", f"none in {pathlib.Path(path).name}")


def cgroups(report):
    try:
        report.fact("cgroup controllers", (CGROUPS / "cgroup.controllers").read_text().split())
    except OSError as exc:
        report.missing("cgroup v2", exc.strerror)
        return
    regions = CGROUPS / "dmem.capacity"
    if regions.exists():
        report.fact("dmem regions", regions.read_text().splitlines())
    else:
        report.missing("dmem", "the kernel has no such controller, or the driver has no region")


def time_slice(report):
    if not shutil.which("nvidia-smi"):
        report.missing("compute-policy", "no nvidia-smi in PATH")
        return
    try:
        done = subprocess.run(
            ["nvidia-smi", "compute-policy", "-l"],
            capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as exc:
        report.missing("compute-policy", exc)
        return
    report.fact("compute-policy", (done.stdout + done.stderr)[:4000])


class Checkpoint:
    """The four steps on one process, which has to be ours: a child of this stage."""

    def __init__(self, driver, pid):
        self.driver, self.pid = driver, pid

    def state(self):
        value = ctypes.c_int(-1)
        self.driver.cuCheckpointProcessGetState(self.pid, ctypes.byref(value))
        return STATES[value.value] if 0 <= value.value < len(STATES) else str(value.value)

    def step(self, name, milliseconds=0):
        arguments = (ctypes.c_uint32 * 16)(milliseconds)  # the rest is reserved, and must be 0
        getattr(self.driver, f"cuCheckpointProcess{name}")(self.pid, arguments)


def checkpoint(report, device, seen):
    driver = device.cuda
    if not hasattr(driver.raw, "cuCheckpointProcessGetState"):
        report.missing("checkpoint", "the driver has no cuCheckpointProcess: release 570 or later")
        return
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    try:
        watch.attempt(
            report, "checkpoint", lambda: steps(report, Checkpoint(driver, process.pid), seen)
        )
        answer, _ = process.communicate("\n", timeout=20)
        report.guarantee(
            "a process is whole after what was done to it",
            answer.strip() == hex(0x0707070707070707), f"read {answer.strip()!r}",
        )  # fmt: skip
    finally:
        process.kill()
        process.wait()


def steps(report, it, seen):
    report.fact("checkpoint: state at first", it.state())
    it.step("Lock", LOCK_MS)
    report.fact("checkpoint: state after lock", it.state())
    before = seen.used()
    try:
        it.step("Checkpoint")
        report.fact("checkpoint: state after checkpoint", it.state())
        report.figure("checkpoint: bytes that came free", before - seen.used(), "bytes")
        it.step("Restore")
        report.fact("checkpoint: state after restore", it.state())
    finally:
        it.step("Unlock")
    report.fact("checkpoint: state after unlock", it.state())
