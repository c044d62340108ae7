"""Make the pyvgpu of a Python a later version: its records have fields that this one lacks.

later_image adds this file to an image, with a .pth file by which Python imports it at its start,
before any module of pyvgpu. It wraps the functions that write records.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIELD = "laterField"
EXTRA = {FIELD: {"any": [1]}}

# Functions that return a record, as an object or as text.
WRITERS = {
    "pyvgpu.allocator.annotations": ("publish", "_unsealed"),
    "pyvgpu.deviceplugin.grants.grant": ("dump",),
    "pyvgpu.controller.sidecar.records": ("write",),
}
# Modules of which each JSON document is a record.
DOCUMENTS = (
    "pyvgpu.machine.memory_limit",
    "pyvgpu.volumes.manifest",
    "pyvgpu.volumes.node_mirror",
)


def _extended(write: Callable[..., Any]) -> Callable[..., Any]:
    def written(*given: Any, **named: Any) -> Any:
        record = write(*given, **named)
        if isinstance(record, dict):
            return {**record, **EXTRA}
        document = json.loads(record)
        for device in document.get("devices", ()):
            device.update(EXTRA)
        return json.dumps({**document, **EXTRA})

    return written


def _json() -> types.SimpleNamespace:
    def dump(document: Any, file: Any, **named: Any) -> None:
        json.dump({**document, **EXTRA}, file, **named)

    def dumps(document: Any, **named: Any) -> str:
        return json.dumps({**document, **EXTRA}, **named)

    return types.SimpleNamespace(dump=dump, dumps=dumps, loads=json.loads)


class _Finder(importlib.abc.MetaPathFinder):
    """Extends modules once they are loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in WRITERS and name not in DOCUMENTS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert isinstance(spec.loader, importlib.abc.Loader)
        load = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            load(module)
            for function in WRITERS.get(name, ()):
                setattr(module, function, _extended(getattr(module, function)))
            if name in DOCUMENTS:
                module.json = _json()  # type: ignore[attr-defined]

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())
