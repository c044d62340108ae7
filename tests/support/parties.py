"""Processes under a quota that do what they are told, line by line: parties to shared memory."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from vmm_source import VMM

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from shim_room import Room

SOURCE = """
answer("ready")
for line in sys.stdin:
    answer(eval(line))
"""

IPC = """
context()
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
import socket
mailbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
def expect(path):
    mailbox.bind(path)
def send(path, descriptor):  # and have it no more
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor.to_bytes(4, sys.byteorder))
    mailbox.sendmsg([b"memory"], [rights], 0, path)
    os.close(descriptor)
def receive():
    return socket.recv_fds(mailbox, 16, 1)[1][0]
"""

DESCRIPTORS = (
    VMM
    + POST
    + """
context()
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


class Party:
    """One such process. What it is asked is an expression of Python over CUDA."""

    def __init__(self, room: Room, source: str) -> None:
        self.process: subprocess.Popen[str] = room.start(source + SOURCE)

    def answer(self):
        """Return what it says next."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait(10)}"
        return json.loads(line)

    def ask(self, expression: str):
        assert self.process.stdin
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return self.answer()

    def get(self, expression: str):
        """Ask for what is to succeed: [0, answer]."""
        result, answer = self.ask(expression)
        assert result == 0, f"{expression}: {result}"
        return answer

    def kill(self) -> None:
        """End it by SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait(30)


@contextlib.contextmanager
def parties(*rooms: Room, source: str = IPC) -> Iterator[list[Party]]:
    """One party in each of the rooms, ended with the block."""
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
