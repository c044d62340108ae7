"""Growth and shrinking of memory pools."""

import ctypes
import time

from kit import cuda

RESERVED, USED, THRESHOLD = 5, 7, 4  # CU_MEMPOOL_ATTR_*
MIB = 1 << 20


class Pool:
    def __init__(self, device):
        self.device = device
        self.handle = ctypes.c_void_p()
        device.cuda.cuDeviceGetDefaultMemPool(ctypes.byref(self.handle), 0)

    def get(self, attribute):
        value = ctypes.c_uint64()
        self.device.cuda.cuMemPoolGetAttribute(self.handle, attribute, ctypes.byref(value))
        return value.value

    def keep(self, size):
        value = ctypes.c_uint64(size)
        self.device.cuda.cuMemPoolSetAttribute(self.handle, THRESHOLD, ctypes.byref(value))

    def allocate(self, size, stream):
        pointer = ctypes.c_uint64()
        self.device.cuda.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(size), stream)
        return pointer

    def free(self, pointer, stream):
        self.device.cuda.cuMemFreeAsync(pointer, stream)

    def trim(self):
        self.device.cuda.cuMemPoolTrimTo(self.handle, ctypes.c_size_t(0))


def run(report):
    device = cuda.Device()
    pool, stream = Pool(device), device.stream()
    for size in (1, MIB, 31 * MIB, 32 * MIB, 33 * MIB, 100 * MIB):
        taken = pool.allocate(size, stream)
        report.figure(f"reserved after {size}", pool.get(RESERVED), "bytes")
        pool.free(taken, stream)
        report.figure(f"reserved after {size} was freed", pool.get(RESERVED), "bytes")
        device.wait(stream)
        report.figure(
            f"reserved after {size} was freed and waited for", pool.get(RESERVED), "bytes"
        )
        pool.trim()
        report.figure(f"reserved after {size} and a trim", pool.get(RESERVED), "bytes")
    regrowth(report, device, pool, stream)


def regrowth(report, device, pool, stream):
    pool.keep((1 << 64) - 1)
    trims, growths = [], []
    for _ in range(10):
        begun = time.perf_counter()
        taken = pool.allocate(256 * MIB, stream)
        device.wait(stream)
        growths.append((time.perf_counter() - begun) * 1e6)
        pool.free(taken, stream)
        device.wait(stream)
        begun = time.perf_counter()
        pool.trim()
        trims.append((time.perf_counter() - begun) * 1e6)
    report.median("time to grow by 256 MiB", growths, "us")
    report.median("time to trim 256 MiB", trims, "us")
    pool.keep(0)
