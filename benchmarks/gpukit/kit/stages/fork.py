"""Time until memory of a killed process is free, with and without a forked child."""

import fcntl
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time

from kit import cuda
from kit.stages import memory

ROUNDS = 10
LOCK_ROUNDS = 20
WITHIN_SECONDS = 10

HOLDER = """
import ctypes, fcntl, mmap, os, struct, sys, time
from kit import cuda
kind = sys.argv[2]
if kind == "lock":  # as the shim's slot: before the device's files, and kept by a mapping alone
    libc = ctypes.CDLL(None)
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.mmap.restype = ctypes.c_void_p
    with open(sys.argv[3], "r+b") as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0))
        libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
device = cuda.Device()
device.allocate(int(sys.argv[1]))
if kind in ("fork", "exit"):
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(60)
        os._exit(0)
else:
    print(0, flush=True)
sys.stdin.read()
"""


def run(report):
    nvml = cuda.nvml()
    handle = cuda.nvml_handle(nvml)
    device = cuda.Device()
    size = min(10 << 30, device.memory()[0] // 4)
    report.figure("held by the parent", size, "bytes")

    def used():
        return memory.used(nvml, handle)

    alone = [killed(used, size, "alone") for _ in range(ROUNDS)]
    report.median("kill -9 until memory is free", [1000 * s for s in alone if s is not None], "ms")
    report.guarantee(
        "memory of a killed process is free within ten seconds", None not in alone,
        f"{alone.count(None)} of {ROUNDS} were not",
    )  # fmt: skip
    slot_and_memory(report, used, size)
    with_child(report, used, size, "fork")
    with_child(report, used, size, "exit")


def slot_and_memory(report, used, size):
    """Measure which a killed process loses first: its locks, or its memory."""
    locks, memories = [], []
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(LOCK_ROUNDS):
            process, _ = start(size, "lock", file.name)
            held, begun = used(), time.monotonic()
            process.kill()
            times = {}
            while len(times) < 2 and time.monotonic() - begun < WITHIN_SECONDS:
                if "lock" not in times and lock_is_free(file.fileno()):
                    times["lock"] = time.monotonic() - begun
                if "memory" not in times and used() < held - size // 2:
                    times["memory"] = time.monotonic() - begun
            process.wait()
            if len(times) == 2:
                locks.append(1000 * times["lock"])
                memories.append(1000 * (times["memory"] - times["lock"]))
    report.median("kill -9 until a lock of the process is free", locks, "ms")
    report.median("from then until its memory is free", memories, "ms")


def lock_is_free(fd):
    question = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0)
    return (
        struct.unpack_from("h", fcntl.fcntl(fd, fcntl.F_OFD_GETLK, question))[0] == fcntl.F_UNLCK
    )


def start(size, kind, path=""):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(size), kind, path],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
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


def with_child(report, used, size, kind):
    process, child = start(size, kind)
    held = used()
    process.kill() if kind == "fork" else process.stdin.close()
    process.wait()
    gone = cuda.until(lambda: used() < held - size // 2, 3)
    title = "a killed process" if kind == "fork" else "a process that exited"
    report.fact(
        f"memory of {title} with a forked child",
        "stays while the child lives" if gone is None else f"free after {1000 * gone:.0f} ms",
    )
    begun = time.monotonic()
    os.kill(child, signal.SIGKILL)
    if gone is None:
        after = cuda.until(lambda: used() < held - size // 2, WITHIN_SECONDS)
        if after is not None:
            report.figure(
                f"end of the child until memory of {title} is free",
                1000 * (time.monotonic() - begun), "ms",
            )  # fmt: skip
        report.guarantee(
            f"memory of {title} is free when the child has ended", after is not None,
            f"{after} s after it",
        )  # fmt: skip
