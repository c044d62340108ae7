"""Delay of NVML's figures: memory in use, processes, utilization."""

import itertools
import os
import subprocess
import sys
import time

from kit import cuda, watch

ROUNDS = 10
WITHIN_SECONDS = 5
BUSY_SECONDS = 3
IDLE_SECONDS = 8  # in which utilization is expected to fall to nothing

HOLDER = """
import sys
from kit import cuda
device = cuda.Device()
print("ready", flush=True)
sys.stdin.readline()
"""

SAMPLED_SECONDS = 2
NOT_FOUND = 6  # NVML_ERROR_NOT_FOUND: nothing to tell yet


def run(report):
    device, seen = cuda.Device(), watch.Watch()
    device.calibrate()
    memory_in_use(report, device, seen)
    watch.attempt(report, "processes by NVML", lambda: processes(report, seen))
    watch.attempt(report, "utilization by NVML", lambda: utilization(report, device, seen))
    watch.attempt(report, "samples of NVML", lambda: samples(report, device, seen))
    watch.attempt(report, "processes' utilization", lambda: of_process(report, device, seen))


def memory_in_use(report, device, seen):
    size = min(512 << 20, device.memory()[0] // 4)
    appeared, went = [], []
    for _ in range(ROUNDS):
        empty = seen.used()
        taken = device.allocate(size)
        appeared.append(cuda.until(lambda e=empty: seen.used() >= e + size // 2, WITHIN_SECONDS))
        device.free(taken)
        went.append(cuda.until(lambda e=empty: seen.used() < e + size // 2, WITHIN_SECONDS))
    figure(report, "allocation until memory in use shows it", appeared)
    figure(report, "free until memory in use shows it", went)


def figure(report, name, seconds):
    known = [1000 * one for one in seconds if one is not None]
    if len(known) < len(seconds):
        report.fact(f"{name}: never within {WITHIN_SECONDS} s", len(seconds) - len(known))
    report.median(name, known, "ms")


def processes(report, seen):
    appeared, went, by_pid = [], [], []
    for _ in range(3):
        before = seen.processes()
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        process.stdout.readline()
        appeared.append(
            cuda.until(lambda b=before: set(seen.processes()) - set(b), WITHIN_SECONDS)
        )
        new = set(seen.processes()) - set(before)
        by_pid.append(process.pid in new)
        process.kill()
        process.wait()
        went.append(cuda.until(lambda n=new: not n & set(seen.processes()), WITHIN_SECONDS))
    report.fact("NVML shows a process by the pid that it has here", all(by_pid))
    figure(report, "context until the process is listed", appeared)
    figure(report, "kill -9 until the process is not listed", went)


def utilization(report, device, seen):
    stream = device.stream()
    time.sleep(2)
    report.figure("utilization of an idle device", seen.load(), "%")
    begun = time.monotonic()
    reached = {}
    while time.monotonic() - begun < BUSY_SECONDS:
        device.work(2_000_000, stream)
        load = seen.load()
        for mark in (1, 50, 90):
            if load >= mark:
                reached.setdefault(mark, 1000 * (time.monotonic() - begun))
        device.wait(stream)
    for mark, ms in reached.items():
        report.figure(f"busy until utilization is {mark} percent or more", ms, "ms")
    device.wait(stream)
    report.figure("utilization of a busy device", seen.load(), "%")
    fell = cuda.until(lambda: seen.load() == 0, IDLE_SECONDS)
    if fell is None:
        report.fact("idle until utilization is 0", f"not within {IDLE_SECONDS} s")
    else:
        report.figure("idle until utilization is 0", 1000 * fell, "ms")


def samples(report, device, seen):
    """How often NVML samples the utilization, and how old the newest sample is."""
    times, ages = set(), []
    for newest in busy(device, seen.samples):
        times.update(newest)
        ages.append(time.time() * 1000 - newest[-1] / 1000)
    spaces = [(b - a) / 1000 for a, b in itertools.pairwise(sorted(times))]
    report.median("between two samples of utilization", spaces, "ms")
    report.median("age of the newest sample of utilization", ages, "ms")


def of_process(report, device, seen):
    """How often NVML tells the utilization of a process, and what it says of one that is alone."""
    known = dict(one for found in busy(device, lambda: seen.use(os.getpid())) for one in found)
    spaces = [(b - a) / 1000 for a, b in itertools.pairwise(sorted(known))]
    report.median("between two figures of a process's utilization", spaces, "ms")
    report.median("utilization of the one busy process", known.values(), "%")


def busy(device, probe):
    """Keep the device busy for some seconds; give what *probe* returns, if it is anything."""
    stream, begun = device.stream(), time.monotonic()
    while time.monotonic() - begun < SAMPLED_SECONDS:
        device.work(2_000_000, stream)
        try:
            found = probe()
        except cuda.CudaError as exc:
            if exc.code != NOT_FOUND:
                raise
            found = []
        if found:
            yield found
        device.wait(stream)
