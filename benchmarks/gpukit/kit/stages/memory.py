"""Device memory of contexts and allocations."""

import ctypes

from kit import cuda

SIZES = (1, 512, 513, 4096, 65536, 1 << 18, 1 << 19, (1 << 20) - 1, 1 << 20, (1 << 20) + 1,
         2 << 20, (2 << 20) + 1, 3 << 20, 31 << 20, 64 << 20)  # fmt: skip
MANY = 8192


def used(nvml, handle):
    """Return the bytes in use on the device, as NVML says."""
    return cuda.nvml_memory(nvml, handle).used


def run(report):
    nvml = cuda.nvml()
    handle = cuda.nvml_handle(nvml)
    before = used(nvml, handle)
    device = cuda.Device()
    report.figure("primary context, by NVML", used(nvml, handle) - before, "bytes")
    contexts(report, device, nvml, handle)
    sizes(report, device)
    survivors(report, device)
    granularity(report, device)


def contexts(report, device, nvml, handle):
    before, second = used(nvml, handle), ctypes.c_void_p()
    code = device.cuda.raw.cuCtxCreate_v2(ctypes.byref(second), 0, 0)
    if code:
        report.missing("second context", f"cuCtxCreate_v2 returned {code}")
        return
    report.figure("second context, by NVML", used(nvml, handle) - before, "bytes")
    device.cuda.cuCtxDestroy_v2(second)
    device.cuda.cuCtxSetCurrent(device.context)


def sizes(report, device):
    """Each size many times, so that what is taken in blocks shows on average."""
    for size in SIZES:
        count = max(1, min(MANY, (256 << 20) // max(size, 1 << 15)))
        before = device.memory()[0]
        taken = [device.allocate(size) for _ in range(count)]
        report.figure(f"allocation of {size}", (before - device.memory()[0]) / count, "bytes each")
        for pointer in taken:
            device.free(pointer)


def survivors(report, device):
    """Small allocations, of which the first in each 2 MiB stays; what was begun before, none."""
    before = device.memory()[0]
    taken = [device.allocate(512) for _ in range(MANY)]
    kept = [pointer for pointer in taken if pointer.value % (2 << 20) == 0]
    for pointer in taken:
        if pointer not in kept:
            device.free(pointer)
    if not kept:
        report.missing("survivors", f"{MANY} allocations of 512 bytes, none at the begin of 2 MiB")
        return
    report.figure(
        "512 bytes that survive in a block of 2 MiB",
        (before - device.memory()[0]) / len(kept),
        "bytes each",
    )
    for pointer in kept:
        device.free(pointer)


def granularity(report, device):
    class Location(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]

    class Properties(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location),
                    ("meta", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]  # fmt: skip

    wanted = Properties(type=1, location=Location(1, 0))
    for title, option in (("minimum", 0), ("recommended", 1)):
        size = ctypes.c_size_t()
        device.cuda.cuMemGetAllocationGranularity(ctypes.byref(size), ctypes.byref(wanted), option)
        report.figure(f"granularity of cuMemCreate, {title}", size.value, "bytes")
