"""Overhead of the shim on calls: the same loop without it, with it, and with a time share."""

import json

from kit import shimmed

LOOP = """
import ctypes, json, time
from kit import cuda
device = cuda.Device()
stream, event, pool = device.stream(), device.event(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
raw = device.cuda.raw
def asynchronous():
    raw.cuMemAllocAsync(ctypes.byref(pool), ctypes.c_size_t(1 << 20), stream)
    raw.cuMemFreeAsync(pool, stream)
host, there = (ctypes.c_char * 64)(), device.allocate(64)
calls = {
    "launch": (lambda: device.work(0, stream), 20000),
    "allocate and free": (lambda: device.free(device.allocate(4096)), 2000),
    "allocate and free in a stream": (asynchronous, 2000),
    "copy of 64 bytes": (lambda: raw.cuMemcpyHtoD_v2(there, host, ctypes.c_size_t(64)), 2000),
    "cuMemGetInfo": (lambda: raw.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), 2000),
    "record": (lambda: raw.cuEventRecord(event, stream), 5000),
    "query": (lambda: raw.cuEventQuery(event), 5000),
}
found = {}
for name, (call, many) in calls.items():
    spent = []
    for _ in range(many):
        begun = time.perf_counter_ns()
        call()
        spent.append(time.perf_counter_ns() - begun)
        if name == "launch" and len(spent) % 256 == 0:
            device.wait(stream)
    device.wait(stream)
    spent.sort()
    found[name] = [spent[len(spent) // 2], spent[len(spent) * 99 // 100]]
print(json.dumps(found))
"""
WAYS = {
    "without the shim": None,
    "with memory limited": ["--vmemory", "4GiB"],
    "with half of the time": ["--vmemory", "4GiB", "--vcore", "50"],
    "with 99 percent of the time": ["--vmemory", "4GiB", "--vcore", "99"],
}
ROUNDS = 3


def run(report):
    found = {way: [] for way in WAYS}
    for _ in range(ROUNDS):  # in turns, since the host's pace changes
        for way, options in WAYS.items():
            done = shimmed.run(options, shimmed.python(LOOP))
            if done.returncode:
                report.guarantee(f"calls work {way}", False, done.stderr[-300:])
                return
            found[way].append(json.loads(done.stdout.splitlines()[-1]))
    for way, rounds in found.items():
        for call in rounds[0]:
            for title, place in (("median", 0), ("99th percentile", 1)):
                report.median(
                    f"{call}, {way}: {title}", [one[call][place] for one in rounds], "ns"
                )
