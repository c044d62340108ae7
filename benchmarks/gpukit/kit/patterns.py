"""Realistic launch patterns: ``python -m kit.patterns NAME SECONDS``, one process each.

Each prints ``ready``, waits for a line, and prints one JSON object of figures. What runs beside
what is the point of each: streams that wait, streams whose kernels differ in length, many grids.
"""

import concurrent.futures
import ctypes
import json
import os
import random
import subprocess
import sys
import threading
import time

from kit import cuda

US, MS = 1_000, 1_000_000
AHEAD = 32


class Beside:
    """A stream of short kernels, launched as fast as it takes them, and what became of them."""

    def __init__(self, device, length):
        self.device, self.length = device, length
        self.stream = device.stream()
        self.events = [device.event() for _ in range(AHEAD)]
        self.count, self.longest = 0, 0.0

    def step(self):
        if self.count >= AHEAD:
            self.device.cuda.cuEventSynchronize(self.events[self.count % AHEAD])
        begun = time.perf_counter()
        self.device.work(self.length, self.stream)
        self.longest = max(self.longest, time.perf_counter() - begun)
        self.device.cuda.cuEventRecord(self.events[self.count % AHEAD], self.stream)
        self.count += 1

    def run(self, seconds):
        """Launch until *seconds* are over; return the figures."""
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            self.step()
        self.device.wait(self.stream)
        passed = time.monotonic() - begun
        return {
            "kernels beside": (self.count / passed, "1/s"),
            "device time beside": (100e-9 * self.count * self.length / passed, "%"),
            "longest launch call": (self.longest * 1000, "ms"),
        }


def held_by_host(device, seconds):
    """A stream is held by a host function, with a kernel behind it; 1 ms kernels beside."""
    gate, held = threading.Event(), device.stream()
    opened = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gate.wait())
    device.cuda.cuLaunchHostFunc(held, opened, None)
    device.work(MS, held)
    try:
        return Beside(device, MS).run(seconds)
    finally:
        gate.set()
        device.wait()


def held_by_value(device, seconds):
    """A stream waits for a value in memory, with 30 kernels behind it; 1 ms kernels beside."""
    held, place = device.stream(), device.allocate(4)
    device.cuda.cuMemsetD32_v2(place, 0, cuda.SIZE(1))
    device.cuda.cuStreamWaitValue32_v2(held, place, cuda.UINT(1), cuda.UINT(0))
    for _ in range(30):
        device.work(MS, held)
    try:
        return Beside(device, MS).run(seconds)
    finally:
        device.cuda.cuStreamWriteValue32_v2(device.stream(), place, cuda.UINT(1), cuda.UINT(0))
        device.wait()


def long_beside_short(device, seconds):
    """50 ms kernels one by one in a stream, 0.2 ms kernels in another, each from a thread."""
    long, over, counts = device.stream(), threading.Event(), [0]

    def launch():
        device.cuda.cuCtxSetCurrent(device.context)
        while not over.is_set():
            device.work(50 * MS, long, blocks=1)
            device.wait(long)
            counts[0] += 1

    thread = threading.Thread(target=launch)
    thread.start()
    try:
        found = Beside(device, 200 * US).run(seconds)
    finally:
        over.set()
        thread.join()
    return {**found, "long kernels": (counts[0] / seconds, "1/s")}


def many_grids(device, seconds):
    """10 us kernels in 3,000 grids, one after the other, as eager programs launch them."""
    stream, count, spent, begun = device.stream(), 0, 0.0, time.monotonic()
    while time.monotonic() - begun < seconds:
        before = time.perf_counter()
        device.work(10 * US, stream, blocks=1 + count % 3000)
        spent += time.perf_counter() - before
        count += 1
        if count % 256 == 0:
            device.wait(stream)
    device.wait(stream)
    return {"launch call": (1e6 * spent / count, "us"), "kernels": (count / seconds, "1/s")}


def threads(device, seconds):
    """8 threads with a stream each launch 64 kernels in 40 grids, of 2 to 500 us."""
    del seconds

    def launch(number):
        device.cuda.cuCtxSetCurrent(device.context)
        draw, stream, longest = random.Random(number), device.stream(), 0.0
        for _ in range(64):
            before = time.perf_counter()
            device.work(draw.randrange(2 * US, 500 * US), stream, blocks=draw.randrange(1, 41))
            longest = max(longest, time.perf_counter() - before)
        device.wait(stream)
        return longest

    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        longest = list(pool.map(launch, range(8)))
    return {
        "all threads": (1000 * (time.monotonic() - begun), "ms"),
        "longest launch call": (1000 * max(longest), "ms"),
    }


SHORT_LIVED = f"""
import os
from kit import cuda
device = cuda.Device()
device.calibrate()
stream = device.stream()
device.work({100 * MS}, stream)
while device.cuda.raw.cuStreamQuery(stream) == cuda.NOT_READY:
    pass
os._exit(0)
"""


def short_lived(device, seconds):
    """Four processes, one after the other: one kernel of 100 ms each, a query until it is done."""
    del seconds
    device.wait()
    begun = time.monotonic()
    for _ in range(4):
        subprocess.run([sys.executable, "-c", SHORT_LIVED], check=True, timeout=60)
    return {"four processes": (1000 * (time.monotonic() - begun), "ms")}


def copies(device, seconds):
    """Copies of 500 MB in both directions, from pinned memory, beside 1 ms kernels."""
    size = (32 if cuda.simulated() else 500) * 1_000_000
    streams, over, done = [device.stream(), device.stream()], threading.Event(), [0, 0]
    host, there = [cuda.P(), cuda.P()], [device.allocate(size), device.allocate(size)]
    for pointer in host:
        device.cuda.cuMemAllocHost_v2(ctypes.byref(pointer), cuda.SIZE(size))

    def copy(number):
        device.cuda.cuCtxSetCurrent(device.context)
        while not over.is_set():
            if number:
                device.cuda.cuMemcpyDtoHAsync_v2(host[1], there[1], cuda.SIZE(size), streams[1])
            else:
                device.cuda.cuMemcpyHtoDAsync_v2(there[0], host[0], cuda.SIZE(size), streams[0])
            device.wait(streams[number])
            done[number] += size

    started = [threading.Thread(target=copy, args=(number,)) for number in range(2)]
    for thread in started:
        thread.start()
    try:
        found = Beside(device, MS).run(seconds)
    finally:
        over.set()
        for thread in started:
            thread.join()
    return {
        **found,
        "copied to the device": (done[0] / seconds / 1e9, "GB/s"),
        "copied to the host": (done[1] / seconds / 1e9, "GB/s"),
    }


def cooperative(device, seconds):
    """Cooperative launches of 1 ms on every processor."""
    stream, count, begun = device.stream(), 0, time.monotonic()
    steps, out = cuda.U64(int(MS * device.steps_per_ns)), device.allocate(16)
    arguments = (cuda.P * 2)(ctypes.addressof(steps), ctypes.addressof(out))
    launch = device.cuda.raw.cuLaunchCooperativeKernel
    launch.argtypes = (cuda.P, *([cuda.UINT] * 7), cuda.P, cuda.P)
    while time.monotonic() - begun < seconds:
        code = launch(device.kernel, device.sms, 1, 1, 32, 1, 1, 0, stream, arguments)
        if code:
            raise cuda.CudaError("cuLaunchCooperativeKernel", code)
        count += 1
        if count % AHEAD == 0:
            device.wait(stream)
    device.wait(stream)
    return {"device time": (100e-9 * count * MS / (time.monotonic() - begun), "%")}


NAMES = {
    "nothing beside": lambda device, seconds: Beside(device, MS).run(seconds),
    "held by a host function": held_by_host,
    "held by a value": held_by_value,
    "long beside short": long_beside_short,
    "many grids": many_grids,
    "threads": threads,
    "short-lived processes": short_lived,
    "copies beside": copies,
    "cooperative": cooperative,
}


def main():
    name, seconds = sys.argv[1], float(sys.argv[2])
    device = cuda.Device()
    device.calibrate()
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        answer = NAMES[name](device, seconds)
    except cuda.CudaError as exc:
        answer = {"refused": str(exc)}
    print(json.dumps(answer), flush=True)
    os._exit(0)  # whatever a thread of it still waits for


if __name__ == "__main__":
    main()
