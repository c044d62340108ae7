"""The mirror for `pyvgpu run`: in the user's cache folder, created on demand."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu.volumes import mirror_plan, mirror_store

if TYPE_CHECKING:
    from pathlib import Path

    from pyvgpu.volumes import find

_REMEDY = "name another folder in XDG_CACHE_HOME"


@dataclasses.dataclass(frozen=True, slots=True)
class MirrorTree:
    """A finished mirror."""

    path: Path

    @property
    def lib64(self) -> Path:
        """The folder for LD_LIBRARY_PATH: the shim, and the driver's other libraries."""
        return self.path / mirror_plan.LIB64

    @property
    def origin(self) -> Path:
        """The folder of the driver's own CUDA and NVML, including their private names."""
        return self.path / mirror_plan.ORIGIN


def ensure(
    driver: find.Driver, shim: Path, cache: Path, progress: mirror_store.Progress | None = None
) -> MirrorTree:
    """Return the mirror of *driver* with *shim*, created below *cache* if it does not exist.

    Raises like :meth:`store.Store.ensure`.
    """
    trees = mirror_store.Store(cache / "mirror", _REMEDY)
    return MirrorTree(trees.ensure(mirror_plan.plan(driver, shim), progress))
