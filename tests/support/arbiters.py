"""Reservations and their arbiters in a private folder, without any program or device."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from waiting import wait_until

from pyvgpu import device, locks, quota
from pyvgpu._region import ffi
from pyvgpu.machine import arbiter, holders, reservations

if TYPE_CHECKING:
    from collections.abc import Iterator

GIB = 1 << 30
UUIDS = tuple(f"GPU-{i}f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0" for i in range(2))
WORK_UNIT_NS = ffi.integer_const("WORK_UNIT_NS")


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A reservation, and the attendant that keeps an arbiter running for it."""

    made: holders.OwnReservation
    attendant: arbiter.Attendant

    def clock(self) -> Path:
        return self.made.folder / "clock.0"

    def own(self, slot: int, pid: int) -> None:
        """Record that a process owns a slot, as its shim does."""
        place = ffi.offsetof("struct usage_file", "slots") + slot * ffi.sizeof("struct usage_slot")
        with (self.made.folder / "usage").open("r+b", 0) as file:
            os.pwrite(file.fileno(), pid.to_bytes(4, "little"), place)

    def work(self, slot: int, begun_ns: int, finished_ns: int = 0) -> None:
        """Publish the work that a process has begun and finished, as a shim does."""
        place = ffi.offsetof("struct usage_file", "work") + 8 * slot
        words = [ns // WORK_UNIT_NS for ns in (begun_ns, finished_ns)]
        raw = b"".join(word.to_bytes(4, "little") for word in words)
        with (self.made.folder / "usage").open("r+b", 0) as file:
            os.pwrite(file.fileno(), raw, place)

    @contextlib.contextmanager
    def process(self, slot: int) -> Iterator[None]:
        """Hold the slot lock of a live process."""
        with (self.made.folder / "usage").open("r+b", 0) as file:
            assert locks.take(file.fileno(), ffi.integer_const("USAGE_LOCK_SLOT") + slot)
            yield


def registries_in(place: Path) -> reservations.Registries:
    return reservations.Registries(place / "root", place / "all")


@contextlib.contextmanager
def run_in(
    place: Path,
    vcore: int | None = 10,
    uuid: str = UUIDS[0],
    nvml: arbiter.Nvml | None = None,
    **more: object,
) -> Iterator[Run]:
    """Make a reservation in the registries of *place*, released at the end of the block.

    An arbiter that is started for it uses *nvml*.
    """
    registries = registries_in(place)
    request = holders.RunRequest(
        quota.Quota(vcore, GIB, **more), (device.Device(uuid, 0, "H100", 80 * GIB, GIB // 2),), "9"
    )
    made = registries.reserve(request, holders.Holder("", "train", tree="/nowhere"))
    run = Run(made, arbiter.Attendant(registries, made.folder, made.quota, nvml))
    try:
        yield run
    finally:
        run.attendant.stop()
        os.close(made.quota)
        registries.forget(made.folder)


def living(place: Path) -> tuple[arbiter.Arbiter, ...]:
    return arbiter.find((place / "root", place / "all"))


def processes(place: Path) -> list[int]:
    """Return the pids of all arbiters of *place*, also of those that find() does not return."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{place}/all".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def read_clock(path: Path):
    """Return a consistent copy of a clock file, once it exists."""
    page = ffi.new("struct clock_file *")

    def read() -> bool:
        if not path.exists():
            return False
        ffi.buffer(page)[:] = path.read_bytes()
        again = path.read_bytes()[: ffi.sizeof("struct clock_file")]
        return page.sequence % 2 == 0 and bytes(ffi.buffer(page))[:64] == again[:64]

    wait_until(read)
    return page
