"""The Python files of pyvgpu, read as syntax: what they say is found without running it."""

from __future__ import annotations

import ast
import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDERS = ("pyvgpu", "volumes", "deviceplugin", "controller")
GAP = "…"  # where a text has something that is known only when it is said


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A piece of syntax, and where it stands."""

    path: str  # of its file, in the project
    where: str  # the outermost class or function around it; empty: none
    node: ast.AST


def modules(root: Path) -> Iterator[str]:
    """Give the names by which all of them are imported."""
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            inside = parts if folder == "pyvgpu" else ("pyvgpu", *parts)
            if inside[-1] != "__main__":
                yield ".".join(inside).removesuffix(".__init__")


def walk(root: Path) -> Iterator[Found]:
    """Give all syntax of all files, in their order."""
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            path = str(file.relative_to(root))
            for top in ast.parse(file.read_text()).body:
                where = getattr(top, "name", "")
                for node in ast.walk(top):
                    yield Found(path, where, node)


def text_of(node: ast.AST) -> str | None:
    """Return a literal text, with GAP for what is put in; None where it is no literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(it.value) if isinstance(it, ast.Constant) else GAP for it in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = text_of(node.left), text_of(node.right)
        return None if parts == (None, None) else "".join(it or GAP for it in parts)
    return None


def name_of(call: ast.Call) -> str:
    """Return the last word of what is called."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
