"""Memory under the shim: what is shown, and what is refused."""

import json

from kit import shimmed

GIB = 1 << 30
QUOTA = 4 * GIB
OUT_OF_MEMORY = 2

# Fill the quota in ever smaller steps, by one family of calls, each directly and by
# cuGetProcAddress; then free half of it and take it again.
FILL = """
import ctypes, json, sys
from kit import cuda
family, routed = sys.argv[1], sys.argv[2] == "routed"
device = cuda.Device()
raw, stream = device.cuda.raw, device.stream()
def function(name):
    if not routed:
        return getattr(raw, name)
    pointer = ctypes.c_void_p()
    base = name.removesuffix("_v2")
    code = raw.cuGetProcAddress(base.encode(), ctypes.byref(pointer), 12000, ctypes.c_uint64(0))
    assert code == 0, f"cuGetProcAddress of {base} returned {code}"
    return ctypes.CFUNCTYPE(ctypes.c_int)(pointer.value) if pointer.value else None
def plain(size):
    pointer = ctypes.c_uint64()
    call = function("cuMemAlloc_v2")
    return call(ctypes.byref(pointer), ctypes.c_size_t(size)), pointer
def managed(size):
    pointer = ctypes.c_uint64()
    return function("cuMemAllocManaged")(ctypes.byref(pointer), ctypes.c_size_t(size), 1), pointer
def pitched(size):
    pointer, pitch = ctypes.c_uint64(), ctypes.c_size_t()
    call = function("cuMemAllocPitch_v2")
    return call(ctypes.byref(pointer), ctypes.byref(pitch), ctypes.c_size_t(1 << 20),
                ctypes.c_size_t(max(1, size >> 20)), 4), pointer
def pooled(size):
    pointer = ctypes.c_uint64()
    code = function("cuMemAllocAsync")(ctypes.byref(pointer), ctypes.c_size_t(size), stream)
    return code, pointer
take = {"plain": plain, "managed": managed, "pitched": pitched, "pooled": pooled}[family]
give = (lambda p: raw.cuMemFreeAsync(p, stream)) if family == "pooled" else raw.cuMemFree_v2
free, total = device.memory()
held, codes, size = [], [], 1 << 30
while size >= 1 << 21:
    code, pointer = take(size)
    if code == 0:
        held.append((pointer, size))
    else:
        codes.append(code)
        size //= 2
taken = sum(size for _, size in held)
for pointer, size in held[: len(held) // 2]:
    give(pointer)
device.wait(stream)
given = sum(size for _, size in held[: len(held) // 2])
again = [take(size)[0] for _, size in held[: len(held) // 2]]
print(json.dumps({"total": total, "free": free, "taken": taken, "codes": sorted(set(codes)),
                  "given": given, "again": again, "left": device.memory()[0]}))
"""


def run(report):
    for family in ("plain", "managed", "pitched", "pooled"):
        for way in ("direct", "routed"):
            fill(report, family, way)


def fill(report, family, way):
    name = f"{family} memory, {way}"
    done = shimmed.run(
        ["--vmemory", f"{QUOTA >> 30}GiB"], shimmed.python(FILL, family, way), seconds=60
    )
    if done.returncode:
        report.promise(f"{name}: works under a quota", False, (done.stderr or done.stdout)[-300:])
        return
    seen = json.loads(done.stdout.splitlines()[-1])
    report.figure(f"{name}: taken", seen["taken"], "bytes")
    report.promise(
        f"{name}: the quota is shown as the device", seen["total"] == QUOTA,
        f"total {seen['total']}, quota {QUOTA}",
    )  # fmt: skip
    report.promise(
        f"{name}: more is refused as out of memory", seen["codes"] == [OUT_OF_MEMORY],
        f"results {seen['codes']}",
    )  # fmt: skip
    report.promise(
        f"{name}: nothing beyond the quota", seen["taken"] <= seen["free"],
        f"taken {seen['taken']} of {seen['free']}",
    )  # fmt: skip
    report.promise(
        f"{name}: nearly all of it can be had", seen["taken"] >= 0.97 * seen["free"],
        f"taken {seen['taken']} of {seen['free']}",
    )  # fmt: skip
    report.promise(
        f"{name}: what was freed can be had again", not any(seen["again"]),
        f"results {seen['again']} for {seen['given']} bytes",
    )  # fmt: skip
