"""The mirror that `pyvgpu run` uses: in a user's cache folder, made when it is wanted."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu.volumes import plan, store

if TYPE_CHECKING:
    from pathlib import Path

    from pyvgpu.volumes import find

_REMEDY = "name another folder in XDG_CACHE_HOME"


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
    """A finished mirror."""

    path: Path

    @property
    def lib64(self) -> Path:
        """The folder for LD_LIBRARY_PATH: the shim, and the driver's other libraries."""
        return self.path / plan.LIB64

    @property
    def origin(self) -> Path:
        """The folder of the driver's own CUDA and NVML, under their private names too."""
        return self.path / plan.ORIGIN


def ensure(
    driver: find.Driver, shim: Path, cache: Path, progress: store.Progress | None = None
) -> Tree:
    """Return the mirror of *driver* with *shim*, made below *cache* if it is not there.

    Raises what :meth:`store.Store.ensure` raises.
    """
    trees = store.Store(cache / "mirror", _REMEDY)
    return Tree(trees.ensure(plan.plan(driver, shim), progress))
