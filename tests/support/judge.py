"""The judge of a simulated machine: what is in use on its devices, whatever a shim believes.

It reads the machine's own state (``csrc/simulator/machine.h``), by the offsets at its head. The
peak is exact: the driver notes it in the instant of the charge, with the dead taken out first.
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

    from pyvgpu import simulator

_HEAD = struct.Struct("QIIQIIQQQQQ")  # magic, version, devices, size; struct machine_index
_LINE = 64
_LOCKS = 1 << 40  # LOCK_OFFSET of csrc/simulator/slot.c
_HOLDERS = 1 << 41  # HELD_OFFSET of csrc/simulator/share.c
_SHARE = struct.Struct("IIIIQQ")  # state, device, slot, kind, id, bytes
_LIVE = 1
_FREE, _LEFT = 0, 2
_MAKE = "import ctypes; assert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0"


def watch(machine: simulator.Machine, device: int = 0) -> None:
    """Note from now on the most bytes that are in use on the device."""
    if not (machine.folder / "state").exists():
        machine_room.run(machine, sys.executable, "-c", _MAKE)
    with _state(machine) as state:
        struct.pack_into("Q", state, _account(state, device) + 8, 0)


def peak_bytes(machine: simulator.Machine, device: int = 0) -> int:
    """Return the most bytes that were in use since watch(), what was in use then included."""
    return max(noted_bytes(machine, device), used_bytes(machine, device))


def noted_bytes(machine: simulator.Machine, device: int = 0) -> int:
    """Return the most bytes that were in use since watch() just after somebody took some.

    Unlike the sum that used_bytes() makes, this is of one instant even while processes go on.
    """
    with _state(machine) as state:
        (peak,) = struct.unpack_from("Q", state, _account(state, device) + 8)
    assert peak != (1 << 64) - 1, "nobody called watch() on this device"
    return int(peak)


def counted_bytes(machine: simulator.Machine, looks: int, device: int = 0) -> list[int]:
    """Return the bytes in use on the device as the driver counts them, at so many moments.

    Each is of one instant, with what processes have that have died just then.
    """
    with _state(machine) as state:
        place = _account(state, device)
        return [struct.unpack_from("Q", state, place)[0] for _ in range(looks)]


def used_bytes(machine: simulator.Machine, device: int = 0) -> int:
    """Return the bytes in use on the device now."""
    return sum(bytes_by_process(machine, device).values()) + left_bytes(machine, device)


def left_bytes(machine: simulator.Machine, device: int = 0) -> int:
    """Return the bytes that nobody owns any more and somebody still has open, or may open."""
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
    """Return what each live process has on the device, by its pid in its own namespace."""
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
