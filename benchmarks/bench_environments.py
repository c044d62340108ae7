"""Environments of a measurement: the bare simulated driver, and the same driver behind the shim.

The shim's side has what `pyvgpu run` creates (mirror, region, the run's tree), without its
registry of reservations and without Python in the measured process. Each room is new, so no
measurement sees the slots of another one.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from pyvgpu.replay.environments import (
    MODEL,
    QUOTA_BYTES,
    ReplayRoom,
    bare,
    clean,
    container,
    place,
    share,
)
from pyvgpu.simulation import simulator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["MODEL", "ReplayRoom", "Room", "bare", "clean", "container", "make", "place", "share"]

SIDES = ("bare", "shim")
CHUNK_NS = 43_000  # of 256 MiB, by which a pool grew in 345 us with driver 580.159
FREE: dict[str, Any] = {"mode": "free"}


@dataclasses.dataclass(frozen=True, slots=True)
class Room:
    """The environments in which a program uses the driver of one machine, by side."""

    environments: Mapping[str, Mapping[str, str]]
    totals: Mapping[str, int]  # what cuMemGetInfo must say there is, bytes


@contextlib.contextmanager
def make(cache: Path, vcore: int = 100, *, timed: bool = False) -> Iterator[Room]:
    """Provide a new machine, and a new region on it, for the duration of the block.

    If it is *timed* its kernels take time, and so does growing and trimming a pool, as on an H100.
    """
    options = {"mode": "timed", "law": simulator.Law(pool_chunk_ns=CHUNK_NS)} if timed else FREE
    with place() as folder, contextlib.ExitStack() as stack:
        machine = simulator.open_machine(MODEL, folder / "machines", **options)
        made = stack.enter_context(container(folder / folder.name, cache, machine, vcore))
        folders = (bare(folder), made.folder)
        yield Room(
            {
                side: {**clean(machine), "LD_LIBRARY_PATH": str(libraries)}
                for side, libraries in zip(SIDES, folders, strict=True)
            },
            dict(zip(SIDES, (machine.devices[0].memory_bytes, QUOTA_BYTES), strict=True)),
        )
