"""When memory of a killed process is free, with a forked child and without."""

import os
import signal
import subprocess
import sys
import time

from kit import cuda
from kit.stages import memory

ROUNDS = 10
WITHIN_SECONDS = 10

HOLDER = """
import os, sys, time
from kit import cuda
device = cuda.Device()
device.allocate(int(sys.argv[1]))
if sys.argv[2] == "fork" and os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
if sys.argv[2] != "fork":
    print(0, flush=True)
time.sleep(60)
"""


def run(report):
    nvml = cuda.nvml()
    handle = memory.first_handle(nvml)
    device = cuda.Device()
    size = min(10 << 30, device.memory()[0] // 4)
    report.figure("held by the parent", size, "bytes")

    def used():
        return memory.used(nvml, handle)

    alone = [killed(used, size, "alone") for _ in range(ROUNDS)]
    report.median("kill -9 until memory is free", [1000 * s for s in alone if s is not None], "ms")
    report.promise(
        "memory of a killed process is free within ten seconds", None not in alone,
        f"{alone.count(None)} of {ROUNDS} were not",
    )  # fmt: skip
    with_child(report, used, size)


def start(size, kind):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(size), kind], stdout=subprocess.PIPE, text=True
    )
    return process, int(process.stdout.readline())


def killed(used, size, kind):
    before = used()
    process, _ = start(size, kind)
    held = used()
    begun = time.monotonic()
    process.kill()
    process.wait()
    if cuda.until(lambda: used() < held - size // 2, WITHIN_SECONDS) is None:
        return None
    assert used() < before + size // 2
    return time.monotonic() - begun


def with_child(report, used, size):
    process, child = start(size, "fork")
    held = used()
    process.kill()
    process.wait()
    gone = cuda.until(lambda: used() < held - size // 2, 3)
    report.fact(
        "memory of a killed process with a forked child",
        "stays while the child lives" if gone is None else f"free after {1000 * gone:.0f} ms",
    )
    begun = time.monotonic()
    os.kill(child, signal.SIGKILL)
    if gone is None:
        after = cuda.until(lambda: used() < held - size // 2, WITHIN_SECONDS)
        if after is not None:
            report.figure(
                "then, when the child has ended", 1000 * (time.monotonic() - begun), "ms"
            )
        report.promise(
            "it is free when the child has ended", after is not None, f"{after} s after it"
        )
