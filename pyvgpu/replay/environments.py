"""Environments for programs on the simulated driver: bare, or in a container with the shim.

A container is like that of `pyvgpu run` (mirror, region, the run's tree), without its reservations
and without Python in the process that runs in it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import device, quota, region, shim
from pyvgpu.run import run_files
from pyvgpu.share import Share
from pyvgpu.volumes import find, mirror

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyvgpu.simulation import simulator

MODEL = "h100"
QUOTA_BYTES = 16 << 30  # enough for eight contexts


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayRoom:
    """A quota on the first device of a machine, and the libraries that enforce it."""

    folder: Path  # of the libraries
    region: Path
    quota: int  # the open file, with the supervisor's lock


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """Yield a temporary folder, in memory like reservations and simulated machines."""
    shared = Path("/dev/shm")  # noqa: S108 - a folder of its own below it
    usable = shared.is_dir() and os.access(shared, os.W_OK | os.X_OK)
    with tempfile.TemporaryDirectory(dir=shared if usable else None) as folder:
        yield Path(folder)


def bare(folder: Path) -> Path:
    """Create a folder with the simulated driver under the names that programs load."""
    made = folder / "driver"
    made.mkdir()
    for library in shim.simulator_libraries().glob("lib*.so.*.*"):
        (made / f"{library.name.split('.so.')[0]}.so.1").symlink_to(library)
    return made


def clean(machine: simulator.Machine) -> dict[str, str]:
    """Return the environment of a program on the machine, without our own variables."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYVGPU_", "CUDA_"))}
    return {**kept, **machine.environment}


@contextlib.contextmanager
def container(
    region_folder: Path,
    cache: Path,
    machine: simulator.Machine,
    vcore: int = 100,
    limit: int | None = None,
    priority: quota.Priority = quota.Priority.NORMAL,
) -> Iterator[ReplayRoom]:
    """Create a region in a new folder, and the tree through which programs use it."""
    driver = find.find_driver(shim.simulator_libraries())
    region_folder.mkdir()
    handle = os.open(region_folder, os.O_RDONLY)
    made_quota = region.create(handle, driver.release, [share(machine, vcore, limit, priority)])
    os.close(handle)
    made = mirror.ensure(driver, shim.shim_library(), cache)
    source = run_files.RunSource(made.lib64, made.origin, machine.folder)
    run, lock = run_files.make(cache, region_folder.name, source, region_folder)
    try:
        yield ReplayRoom(run / "lib64", region_folder, made_quota)
    finally:
        os.close(lock)
        os.close(made_quota)
        run_files.remove(run)


def share(
    machine: simulator.Machine,
    vcore: int,
    limit: int | None = None,
    priority: quota.Priority = quota.Priority.NORMAL,
) -> Share:
    """Return a share of the machine's first device; elastic up to *limit*, if there is one."""
    policy = quota.TimePolicy.HARD if limit is None else quota.TimePolicy.ELASTIC
    return Share(device.simulated(machine)[0], vcore, QUOTA_BYTES, policy, limit, priority)
