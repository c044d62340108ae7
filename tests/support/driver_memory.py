"""Reads the memory in use on a simulated machine's devices, independently of the shim.

It parses the machine's state file (``csrc/simulator/machine.h``) by the offsets in its header. The
peak is exact: the driver records it together with the charge, after removing dead processes.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import sys
from typing import TYPE_CHECKING

import machine_room

from pyvgpu import locks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyvgpu.simulation import simulator

_HEAD = struct.Struct("QIIQIIQQQQQ")  # magic, version, devices, size; struct machine_index
_LINE = 64
_LOCKS = 1 << 40  # LOCK_OFFSET of csrc/simulator/slot.c
_HOLDERS = 1 << 41  # HELD_OFFSET of csrc/simulator/share.c
_SHARE = struct.Struct("IIIIQQ")  # state, device, slot, kind, id, bytes
_LIVE = 1
_FREE, _LEFT = 0, 2
_MAKE = "import ctypes; assert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0"


def watch(machine: simulator.Machine, device: int = 0) -> None:
    """Start recording the peak bytes in use on the device."""
    if not (machine.folder / "state").exists():
        machine_room.run(machine, sys.executable, "-c", _MAKE)
    with _state(machine) as state:
        struct.pack_into("Q", state, _account(state, device) + 8, 0)


def peak_bytes(machine: simulator.Machine, device: int = 0) -> int:
    """Return the peak bytes in use since watch(), including the bytes in use at watch()."""
    return max(noted_bytes(machine, device), used_bytes(machine, device))


def noted_bytes(machine: simulator.Machine, device: int = 0) -> int:
    """Return the peak bytes in use just after an allocation since watch().

    Unlike the sum of used_bytes(), this is of one instant even while processes run.
    """
    with _state(machine) as state:
        (peak,) = struct.unpack_from("Q", state, _account(state, device) + 8)
    assert peak != (1 << 64) - 1, "watch() was not called for this device"
    return int(peak)


def counted_bytes(machine: simulator.Machine, samples: int, device: int = 0) -> list[int]:
    """Return *samples* samples of the driver's own count of the bytes in use on the device.

    Each sample is of one instant, and includes processes that have just died.
    """
    with _state(machine) as state:
        place = _account(state, device)
        return [struct.unpack_from("Q", state, place)[0] for _ in range(samples)]


def used_bytes(machine: simulator.Machine, device: int = 0) -> int:
    """Return the bytes in use on the device now."""
    return sum(bytes_by_process(machine, device).values()) + left_bytes(machine, device)


def left_bytes(machine: simulator.Machine, device: int = 0) -> int:
    """Return the bytes whose owner is gone, but which a process has open or may still open."""
    left = 0
    with _state(machine) as state, (machine.folder / "state").open("rb") as file:
        *_, count, size, slots, _, _, shares, share_count = _HEAD.unpack_from(state)
        live = {
            slot
            for slot in range(count)
            if struct.unpack_from("I", state, slots + slot * size)[0] == _LIVE
            and locks.is_held(file.fileno(), _LOCKS + slot)
        }
        for share in range(share_count):
            status, where, owner, _, _, held = _SHARE.unpack_from(state, shares + share * _LINE)
            is_left = status == _LEFT or (status != _FREE and owner not in live)
            if where == device and is_left and locks.is_locked(file.fileno(), _HOLDERS + share, 1):
                left += held
    return left


def bytes_by_process(machine: simulator.Machine, device: int = 0) -> dict[int, int]:
    """Return each live process's bytes on the device, by its pid in its own namespace."""
    held: dict[int, int] = {}
    with _state(machine) as state, (machine.folder / "state").open("rb") as file:
        *_, count, size, slots, _, uses, _, _ = _HEAD.unpack_from(state)
        for slot in range(count):
            live, pid = struct.unpack_from("II", state, slots + slot * size)
            (used,) = struct.unpack_from("Q", state, uses + (device * count + slot) * _LINE)
            if live == _LIVE and used and locks.is_held(file.fileno(), _LOCKS + slot):
                held[pid] = held.get(pid, 0) + used
    return held


def _account(state: mmap.mmap, device: int) -> int:
    accounts: int = _HEAD.unpack_from(state)[7]
    return accounts + device * _LINE


@contextlib.contextmanager
def _state(machine: simulator.Machine) -> Iterator[mmap.mmap]:
    with (
        (machine.folder / "state").open("r+b") as file,
        mmap.mmap(file.fileno(), 0) as state,
    ):
        yield state
