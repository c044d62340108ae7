"""Syntax trees of pyvgpu's Python files, to find texts in them without running the code."""

from __future__ import annotations

import ast
import dataclasses
import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDERS = ("pyvgpu", "volumes", "deviceplugin", "controller")
GAP = "…"  # stands for a value that is known only at run time


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A syntax node and its location."""

    path: str  # of its file, relative to the repository
    where: str  # the outermost class or function around it; empty if none
    node: ast.AST


def modules(root: Path) -> Iterator[str]:
    """Yield the import names of all modules."""
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            inside = parts if folder == "pyvgpu" else ("pyvgpu", *parts)
            if inside[-1] != "__main__":
                yield ".".join(inside).removesuffix(".__init__")


@functools.cache
def walk(root: Path) -> tuple[Found, ...]:
    """Return every syntax node of all files, in order."""
    return tuple(_walk(root))


def _walk(root: Path) -> Iterator[Found]:
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            path = str(file.relative_to(root))
            for top in ast.parse(file.read_text()).body:
                where = getattr(top, "name", "")
                for node in ast.walk(top):
                    yield Found(path, where, node)


def text_of(node: ast.AST) -> str | None:
    """Return a literal text, with GAP for interpolated values; None if it is not a literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(piece.value) if isinstance(piece, ast.Constant) else GAP for piece in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = text_of(node.left), text_of(node.right)
        return None if parts == (None, None) else "".join(part or GAP for part in parts)
    return None


def name_of(call: ast.Call) -> str:
    """Return the last part of the called function's name."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
