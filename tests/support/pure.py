"""Imports the Python sources of the modules that Cython compiles.

With PYVGPU_PURE in the environment a whole test run uses the sources.
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
    """Return the source of each module that has a .pxd file for Cython."""
    return {
        ".".join((package, *path.relative_to(folder).with_suffix("").parts)): path.with_suffix(
            ".py"
        )
        for package, folder in FOLDERS.items()
        for path in folder.rglob("*.pxd")
    }


def load(name: str) -> types.ModuleType:
    """Load the source of module *name* as a second module beside the imported one."""
    found = importlib.util.spec_from_file_location(name, sources()[name])
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class Finder:
    """Meta path finder that prefers the sources."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        path = sources().get(name)
        return importlib.util.spec_from_file_location(name, path) if path else None


def prefer() -> None:
    """Import these modules from source from now on, if PYVGPU_PURE is set."""
    if os.environ.get(WANTED):
        sys.meta_path.insert(0, Finder)
