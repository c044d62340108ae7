"""Where a measurement runs: the bare simulated driver, and the same driver behind the shim.

The shim's side is what `pyvgpu run` makes (mirror, region, the run's tree) without its book of
promises and without Python in the process that is measured. Each room is new, so no
measurement meets the slots that another one used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import device, region, shim, simulator, tree
from pyvgpu.share import Share
from pyvgpu.volumes import find, mirror

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MODEL = "h100"
QUOTA_BYTES = 16 << 30  # room for eight contexts
SIDES = ("bare", "shim")


@dataclasses.dataclass(frozen=True, slots=True)
class Room:
    """The environments in which a program meets the driver of one machine, by side."""

    environments: Mapping[str, Mapping[str, str]]
    totals: Mapping[str, int]  # what cuMemGetInfo must say there is, bytes


@contextlib.contextmanager
def make(cache: Path) -> Iterator[Room]:
    """Have a new machine, and a new region on it, for the length of the block."""
    with contextlib.ExitStack() as stack:
        # In memory, as the book of promises and simulated machines are.
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_memory_folder())))
        machine = simulator.open_machine(MODEL, place / "machines", mode="free")
        shimmed = stack.enter_context(_shimmed(place, cache, machine))
        bare = place / "driver"
        bare.mkdir()
        for library in shim.simulator_libraries().glob("lib*.so.*.*"):
            (bare / f"{library.name.split('.so.')[0]}.so.1").symlink_to(library)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYVGPU_", "CUDA_"))}
        yield Room(
            {
                side: {**kept, **machine.environment, "LD_LIBRARY_PATH": str(folder)}
                for side, folder in zip(SIDES, (bare, shimmed), strict=True)
            },
            dict(zip(SIDES, (machine.devices[0].memory_bytes, QUOTA_BYTES), strict=True)),
        )


@contextlib.contextmanager
def _shimmed(place: Path, cache: Path, machine: simulator.Machine) -> Iterator[Path]:
    driver = find.find_driver(shim.simulator_libraries())
    folder = place / "region"
    folder.mkdir()
    handle = os.open(folder, os.O_RDONLY)
    shares = [Share(device.simulated(machine)[0], 100, QUOTA_BYTES)]
    quota = region.create(handle, driver.release, shares)
    os.close(handle)
    made = mirror.ensure(driver, shim.shim_library(), cache)
    source = tree.Source(made.lib64, made.origin, machine.folder)
    run, lock = tree.make(cache, place.name, source, folder)
    try:
        yield run / "lib64"
    finally:
        os.close(lock)
        os.close(quota)
        tree.remove(run)


def _memory_folder() -> str | None:
    folder = Path("/dev/shm")
    return str(folder) if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) else None
