"""Exported memory from outside: descriptors, their locks, and the process that NVML charges.

The importer is a separate process; it reports when it has the memory and waits for a line.
"""

import ctypes
import fcntl
import os
import pathlib
import struct
import subprocess
import sys

from kit import cuda, watch

SIZE = 256 << 20
POSIX, DMA_BUF, FAR = 1, 1, 1 << 62
LIKE_DEVICE = ("/dev/nvidia", "anon_inode", "/dmabuf", "/memfd")

IMPORTER = "import sys; from kit.stages import descriptors as d; d.importer(sys.argv[1])"


class Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("place", ctypes.c_int),
                ("id", ctypes.c_int), ("meta", ctypes.c_void_p),
                ("flags", ctypes.c_ubyte * 8)]  # fmt: skip


class PoolProperties(ctypes.Structure):  # CUmemPoolProps
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("place", ctypes.c_int),
                ("id", ctypes.c_int), ("security", ctypes.c_void_p), ("most", ctypes.c_size_t),
                ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 54)]  # fmt: skip


class Access(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = [("place", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int)]


def links():
    """Return what the open descriptors of this process are, by what they lead to."""
    found = {}
    for path in pathlib.Path("/proc/self/fd").iterdir():
        try:
            target = str(path.readlink())
        except OSError:
            continue
        if target.startswith(LIKE_DEVICE):
            found[target] = found.get(target, 0) + 1
    return found


def lock(report, name, fd):
    question = struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, FAR, 1, 0)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, question)
        report.fact(f"lock of an open file description on {name}", "taken")
    except OSError as exc:
        report.fact(f"lock of an open file description on {name}", exc.strerror)


def describe(report, name, fd):
    report.fact(f"{name}: descriptor", str(pathlib.Path(f"/proc/self/fd/{fd}").readlink()))
    with open(f"/proc/self/fdinfo/{fd}", encoding="utf-8") as file:
        report.fact(f"{name}: fdinfo", file.read())
    lock(report, name, fd)


def map_memory(device, handle):
    address = cuda.U64()
    device.cuda.cuMemAddressReserve(
        ctypes.byref(address), cuda.SIZE(SIZE), cuda.SIZE(0), cuda.U64(0), cuda.U64(0)
    )
    device.cuda.cuMemMap(address, cuda.SIZE(SIZE), cuda.SIZE(0), handle, cuda.U64(0))
    access = Access(1, 0, 3)
    device.cuda.cuMemSetAccess(address, cuda.SIZE(SIZE), ctypes.byref(access), cuda.SIZE(1))
    return address


class Physical:
    """Memory of cuMemCreate, passed by a descriptor."""

    name = "memory of cuMemCreate"

    def __init__(self, device):
        self.device, self.handle, self.fd = device, cuda.U64(), ctypes.c_int(-1)
        wanted = Properties(type=1, handles=POSIX, place=1, id=0)
        device.cuda.cuMemCreate(
            ctypes.byref(self.handle), cuda.SIZE(SIZE), ctypes.byref(wanted), cuda.U64(0)
        )
        self.address = map_memory(device, self.handle)
        device.cuda.cuMemExportToShareableHandle(
            ctypes.byref(self.fd), self.handle, POSIX, cuda.U64(0)
        )

    def pass_on(self):
        return f"physical:{self.fd.value}", (self.fd.value,)

    def free(self):
        os.close(self.fd.value)
        self.device.cuda.cuMemUnmap(self.address, cuda.SIZE(SIZE))
        self.device.cuda.cuMemRelease(self.handle)


class Linear:
    """Memory of cuMemAlloc, passed by a handle of bytes."""

    name = "memory of cuMemAlloc"

    def __init__(self, device):
        self.device, self.pointer = device, device.allocate(SIZE)
        self.handle = (ctypes.c_ubyte * 64)()
        device.cuda.cuIpcGetMemHandle(self.handle, self.pointer)

    def pass_on(self):
        return f"linear:{bytes(self.handle).hex()}", ()

    def free(self):
        self.device.free(self.pointer)


class Handle(ctypes.Structure):  # CUipcMemHandle, which is passed by value
    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


def importer(what):
    """Have the memory of another process until a line comes."""
    device = cuda.Device()
    print("ready", flush=True)
    sys.stdin.readline()
    kind, _, key = what.partition(":")
    if kind == "physical":
        handle = cuda.U64()
        device.cuda.cuMemImportFromShareableHandle(ctypes.byref(handle), cuda.P(int(key)), POSIX)
        map_memory(device, handle)
        os.close(int(key))
    else:
        handle = Handle((ctypes.c_ubyte * 64)(*bytes.fromhex(key)))
        device.cuda.cuIpcOpenMemHandle_v2(ctypes.byref(cuda.U64()), handle, 1)
    print("has it", flush=True)
    sys.stdin.readline()


def run(report):
    report.fact("descriptors of the driver before cuInit", links())
    device, seen = cuda.Device(), watch.Watch()
    report.fact("descriptors of the driver with a context", links())
    if device.memory()[0] < 4 * SIZE:
        report.missing("room", f"less than {4 * SIZE} bytes are free")
        return
    for name, export in (("pool", pool), ("dma-buf", dma_buf)):
        watch.attempt(report, name, lambda n=name, e=export: describe(report, n, e(device)))
    for kind in (Physical, Linear):
        watch.attempt(report, kind.name, lambda k=kind: shared(report, seen, k(device)))
    managed(report, device, seen)


def pool(device):
    handle, fd = cuda.P(), ctypes.c_int(-1)
    wanted = PoolProperties(type=1, handles=POSIX, place=1, id=0)
    device.cuda.cuMemPoolCreate(ctypes.byref(handle), ctypes.byref(wanted))
    device.cuda.cuMemPoolExportToShareableHandle(ctypes.byref(fd), handle, POSIX, cuda.U64(0))
    return fd.value


def dma_buf(device):
    fd, taken = ctypes.c_int(-1), device.allocate(2 << 20)
    device.cuda.cuMemGetHandleForAddressRange(
        ctypes.byref(fd), taken, cuda.SIZE(2 << 20), DMA_BUF, cuda.U64(0)
    )
    return fd.value


def shared(report, seen, memory):
    """Share *memory* with another process; record NVML's figures after each step."""
    key, descriptors = memory.pass_on()
    if descriptors:
        describe(report, memory.name, descriptors[0])
    process = subprocess.Popen(
        [sys.executable, "-c", IMPORTER, key],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=descriptors,
    )  # fmt: skip
    process.stdout.readline()
    steps = [charges(seen, process.pid)]
    process.stdin.write("import\n")
    process.stdin.flush()
    if process.stdout.readline() != "has it\n":
        report.missing(f"{memory.name}: import", f"exit code {process.wait()}; see log.txt")
        return
    steps.append(charges(seen, process.pid))
    memory.free()
    steps.append(charges(seen, process.pid))
    process.kill()
    process.wait()
    cuda.until(lambda: process.pid not in seen.processes(), 2)
    steps.append(charges(seen, process.pid))
    titles = (
        "before the import", "after the import", "after the owner freed it",
        "after the importer was killed",
    )  # fmt: skip
    for title, (used, own, other) in zip(titles, steps, strict=True):
        name = f"{memory.name} of {SIZE >> 20} MiB, {title}"
        report.figure(f"{name}: in use on the device", used, "bytes")
        for whose, held in (("owner", own), ("importer", other)):
            if held is not None:
                report.figure(f"{name}: charged to the {whose}", held, "bytes")


def charges(seen, importer_pid):
    """Return the bytes in use, and those that NVML charges to this process and to the importer.

    NVML's pids may be of another namespace; then there is no figure of a process.
    """
    listed = seen.processes()
    return seen.used(), listed.get(os.getpid()), listed.get(importer_pid)


def managed(report, device, seen):
    """Managed memory: what it takes when it is made, and when the device has touched it."""
    before, pointer = seen.used(), cuda.U64()
    code = device.cuda.raw.cuMemAllocManaged(ctypes.byref(pointer), cuda.SIZE(SIZE), 1)
    if code:
        report.missing("managed memory", f"cuMemAllocManaged returned {code}")
        return
    report.figure("managed memory of 256 MiB, made", seen.used() - before, "bytes")
    device.cuda.cuMemsetD8_v2(pointer, 1, cuda.SIZE(SIZE))
    device.wait()
    report.figure("managed memory of 256 MiB, written", seen.used() - before, "bytes")
    own = seen.processes().get(os.getpid())
    if own is not None:
        report.figure("managed memory of 256 MiB: charged to its process", own, "bytes")
    device.free(pointer)
