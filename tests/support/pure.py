"""The modules that Cython compiles, as the Python that they are.

With PYVGPU_PURE in the environment a whole run of tests has them so.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import types
    from collections.abc import Mapping
    from importlib.machinery import ModuleSpec

ROOT = Path(__file__).parents[2]
FOLDERS = {"pyvgpu": ROOT / "pyvgpu", "pyvgpu.controller": ROOT / "controller"}
WANTED = "PYVGPU_PURE"


def sources() -> Mapping[str, Path]:
    """Return the source of each module that has types for Cython."""
    return {
        ".".join((package, *path.relative_to(folder).with_suffix("").parts)): path.with_suffix(
            ".py"
        )
        for package, folder in FOLDERS.items()
        for path in folder.rglob("*.pxd")
    }


def load(name: str) -> types.ModuleType:
    """Return the module called *name* as Python, beside the one that is imported by this name."""
    found = importlib.util.spec_from_file_location(name, sources()[name])
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class Finder:
    """Finds the sources before anything else does."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        path = sources().get(name)
        return importlib.util.spec_from_file_location(name, path) if path else None


def prefer() -> None:
    """Let modules be imported as Python from now on, if that is wanted."""
    if os.environ.get(WANTED):
        sys.meta_path.insert(0, Finder)
