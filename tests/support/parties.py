"""Processes under a quota that evaluate CUDA calls line by line, to test shared memory."""

from __future__ import annotations

import ast
import contextlib
import time
from typing import TYPE_CHECKING

from pool_source import PROPERTIES
from shim_room import GIB
from vmm_source import VMM

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from shim_room import Room

QUOTA = 4 * GIB  # of a container with several such processes

SOURCE = """
def answer(value):  # not as JSON, which takes longer to import than all else here
    print(repr(value), flush=True)
context()
answer("ready")
for line in sys.stdin:
    answer(eval(line))
"""

# A forked child that keeps what its parent had.
LIVES = """
import signal
def lives():
    child = os.fork()
    if child == 0:
        os.closerange(0, 3)
        signal.pause()
    return child
"""

IPC = """
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]
def take_memory(size):
    result, pointer = alloc(size)
    return [result, pointer.value]
def give(address):
    handle = Handle()
    return [cuda.cuIpcGetMemHandle(byref(handle), U64(address)), bytes(handle).hex()]
def open_(handle, form=cuda.cuIpcOpenMemHandle_v2):
    pointer = U64()
    result = form(byref(pointer), Handle.from_buffer_copy(bytes.fromhex(handle)), UINT(1))
    return [result, pointer.value]
def close(address):
    return cuda.cuIpcCloseMemHandle(U64(address))
"""


POST = """
import _socket as socket  # the socket module takes as long to import as Python itself
mailbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
def expect(path):
    mailbox.bind(path)
def send(path, descriptor):  # and close it here
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor.to_bytes(4, sys.byteorder))
    mailbox.sendmsg([b"memory"], [rights], 0, path)
    os.close(descriptor)
def receive():
    _, ((_, _, descriptor),), _, _ = mailbox.recvmsg(16, socket.CMSG_SPACE(4))
    return int.from_bytes(descriptor, sys.byteorder)
"""

DESCRIPTORS = (
    VMM
    + POST
    + """
FILE, FABRIC = 1, 8
def make(size, kind=FILE):
    result, handle = create(size, on_device(handles=kind))
    return [result, handle.value]
def export(handle, kind=FILE):
    fd, fabric = INT(-1), (ctypes.c_ubyte * 64)()
    there = fd if kind == FILE else fabric
    result = cuda.cuMemExportToShareableHandle(byref(there), U64(handle), kind, U64(0))
    return [result, fd.value if kind == FILE else bytes(fabric).hex()]
def take(shared):
    handle, kind = U64(), FILE if isinstance(shared, int) else FABRIC
    if kind == FABRIC:
        shared = (ctypes.c_ubyte * 64).from_buffer_copy(bytes.fromhex(shared))
    result = cuda.cuMemImportFromShareableHandle(
        byref(handle), P(shared) if kind == FILE else shared, kind)
    return [result, handle.value]
def drop(handle):
    return release(U64(handle))
def show(handle, size):
    address = reserve(size)
    return [map(address, size, U64(handle)), address]
def close(descriptor):
    os.close(descriptor)
"""
)

POOLS = (
    DESCRIPTORS
    + PROPERTIES
    + """
class Data(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]
def make_pool():
    pool = P()
    wanted = PoolProperties(type=1, handles=FILE, place=(1, 0))
    return [cuda.cuMemPoolCreate(byref(pool), byref(wanted)), pool.value]
def export_pool(pool):
    fd = INT(-1)
    return [cuda.cuMemPoolExportToShareableHandle(byref(fd), P(pool), FILE, U64(0)), fd.value]
def take_pool(descriptor):
    pool = P()
    return [cuda.cuMemPoolImportFromShareableHandle(
        byref(pool), P(descriptor), FILE, U64(0)), pool.value]
def destroy_pool(pool):
    return cuda.cuMemPoolDestroy(P(pool))
def block(pool, size):
    address = U64()
    return [cuda.cuMemAllocFromPoolAsync(byref(address), SIZE(size), P(pool), None), address.value]
def give(address):
    data = Data()
    return [cuda.cuMemPoolExportPointer(byref(data), U64(address)), bytes(data).hex()]
def open_block(pool, data):
    address = U64()
    data = Data.from_buffer_copy(bytes.fromhex(data))
    return [cuda.cuMemPoolImportPointer(byref(address), P(pool), byref(data)), address.value]
"""
)

EXTERNAL = (
    DESCRIPTORS
    + """
class Description(ctypes.Structure):  # CUDA_EXTERNAL_MEMORY_HANDLE_DESC
    _fields_ = [("type", INT), ("pad", INT), ("fd", INT), ("rest", INT * 3), ("size", U64),
                ("flags", UINT), ("reserved", UINT * 16)]
def foreign(descriptor, size, type=1):
    memory = P()
    wanted = Description(type=type, fd=descriptor, size=size)
    return [cuda.cuImportExternalMemory(byref(memory), byref(wanted)), memory.value]
def make_file(size):
    descriptor = os.memfd_create("foreign")
    os.truncate(descriptor, size)
    return descriptor
def destroy(memory):
    return cuda.cuDestroyExternalMemory(P(memory))
"""
)


class Party:
    """One such process; tests send it Python expressions that call CUDA."""

    def __init__(self, room: Room, source: str) -> None:
        self.process: subprocess.Popen[str] = room.start(source + SOURCE)

    def answer(self):
        """Return its next answer."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait(120)}"
        return ast.literal_eval(line)

    def ask(self, expression: str):
        assert self.process.stdin
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return self.answer()

    def get(self, expression: str):
        """Evaluate a call that must succeed; return its value."""
        result, answer = self.ask(expression)
        assert result == 0, f"{expression}: {result}"
        return answer

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait(30)


@contextlib.contextmanager
def parties(*rooms: Room, source: str = IPC) -> Iterator[list[Party]]:
    """Start one party in each of the rooms; kill them at the end of the block."""
    started = [Party(room, source) for room in rooms]
    try:
        for party in started:
            assert party.answer() == "ready"
        yield started
    finally:
        for party in started:
            party.kill()
            party.process.stdin.close()
            party.process.stdout.close()


def held(party: Party, room: Room, contexts: int = 2) -> int:
    """Return the container's bytes beyond its *contexts*, from the free memory *party* sees."""
    return int(QUOTA - party.ask("available()") - contexts * room.reserve)


def opened(party: Party, room: Room) -> int:
    """Return the bytes that *party* has open and other processes of its container own."""
    (found,) = [slot for slot in room.usage().slots if slot.pid == party.process.pid]
    return found.opened[0]


def held_at_last(party: Party, room: Room, expected: int, contexts: int = 1) -> int:
    """Return held() once it is *expected*, or after the 1 s in which dead processes are reaped."""
    end = time.monotonic() + 1
    while held(party, room, contexts) != expected and time.monotonic() < end:
        time.sleep(0.01)
    return held(party, room, contexts)
