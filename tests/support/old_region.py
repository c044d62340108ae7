"""Writes region files of layout 1 byte by byte, independently of region.h."""

from __future__ import annotations

import struct

REGION_ID = bytes(range(16))
QUOTA_SIZE, USAGE_SIZE = 133008, 332480


def _checksum(content: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in content:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def quota(uuid: bytes, vmemory: int, release: str, generation: int = 1) -> bytes:
    """Return a quota file of one device."""
    copy = struct.pack("<QII32s", generation, 1, 0, release.encode())
    copy += struct.pack("<16sQQQIIII", uuid, vmemory, 512 << 20, 80 << 30, 100, 100, 0, 0)
    copy = copy.ljust(944, b"\0")
    copy += struct.pack("<Q", _checksum(copy))
    file = bytearray(QUOTA_SIZE)
    file[0:32] = struct.pack("<8sII16s", b"pyvgpuQ1", 1, QUOTA_SIZE, REGION_ID)
    file[32 : 32 + len(copy)] = copy
    return bytes(file)


def usage(charged: dict[int, int], orphaned: int = 0) -> bytes:
    """Return a usage file: bytes by slot, and orphaned bytes, on the first device."""
    file = bytearray(USAGE_SIZE)
    file[0:32] = struct.pack("<8sII16s", b"pyvgpuU1", 1, USAGE_SIZE, REGION_ID)
    file[32:36] = struct.pack("<I", max(charged, default=-1) + 1)
    file[176:184] = struct.pack("<Q", orphaned)
    for slot, held in charged.items():
        file[704 + 64 * slot : 708 + 64 * slot] = struct.pack("<I", 4711)
        file[66240 + 8 * slot : 66248 + 8 * slot] = struct.pack("<Q", held)
    return bytes(file)
