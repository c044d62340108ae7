"""Manifest of a finished mirror, for detecting changes.

``manifest.json`` in the tree lists every entry: links with their target, files with inode, size,
modification time and the digest of their content. A tree that was copied, or in which anything was
changed, added or removed, no longer matches it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import stat
from typing import TYPE_CHECKING, Any

from pyvgpu.volumes import mirror_plan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE = "manifest.json"

_LAYOUT = 1


@dataclasses.dataclass(frozen=True, slots=True)
class TreeEntry:
    """One entry of a tree, at the time when the tree was finished."""

    target: str | None  # of a symbolic link; the other fields are for files
    inode: int = 0
    size: int = 0
    mtime_ns: int = 0
    digest: str = ""  # SHA-256 of the content

    def is_still(self, path: Path) -> bool:
        """Return whether *path* is unchanged, without reading its content."""
        found = path.lstat()
        if self.target is not None:
            return stat.S_ISLNK(found.st_mode) and str(path.readlink()) == self.target
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        return stat.S_ISREG(found.st_mode) and seen == (self.inode, self.size, self.mtime_ns)


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """All entries of a tree, by their path in it."""

    entries: Mapping[str, TreeEntry]

    @classmethod
    def observe(
        cls, tree: Path, intent: mirror_plan.MirrorPlan, digests: Mapping[str, str]
    ) -> Manifest:
        """Describe a *tree* just created from *intent*; *digests* are by path, for its files."""
        entries = {}
        for entry in intent.entries:
            found = (tree / entry.path).lstat()
            if stat.S_ISLNK(found.st_mode):
                entries[entry.path] = TreeEntry(str((tree / entry.path).readlink()))
                continue
            content = entry.file if isinstance(entry, mirror_plan.OtherName) else entry.path
            entries[entry.path] = TreeEntry(
                None, found.st_ino, found.st_size, found.st_mtime_ns, digests[content]
            )
        return cls(entries)

    @classmethod
    def read(cls, tree: Path) -> Manifest | None:
        """Return the manifest in *tree*; None if there is no valid one."""
        try:
            document: Any = json.loads((tree / FILE).read_bytes())
            if document["layout"] != _LAYOUT:
                return None
            return cls({path: _entry(fields) for path, fields in document["entries"].items()})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def write(self, tree: Path) -> None:
        """Write it to *tree*, and flush it to disk."""
        entries = {path: dataclasses.asdict(entry) for path, entry in self.entries.items()}
        with (tree / FILE).open("x", encoding="utf-8") as file:
            json.dump({"layout": _LAYOUT, "entries": entries}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    def fits(self, tree: Path, intent: mirror_plan.MirrorPlan) -> bool:
        """Return whether *tree* has exactly the entries of *intent*, unchanged since its creation.

        Only the shim is read; other files are compared by inode, size and time.
        """
        try:
            return (
                _listed(tree) == self.entries.keys() == {entry.path for entry in intent.entries}
                and all((tree / folder).is_dir() for folder in intent.empty)
                and all(entry.is_still(tree / path) for path, entry in self.entries.items())
                and all(
                    digest_of(tree / file.path) == self.entries[file.path].digest
                    for file in intent.files
                    if file.ours
                )
            )
        except OSError:
            return False


def _entry(found: Mapping[str, Any]) -> TreeEntry:
    """Return an entry without the fields that only a later version knows."""
    return TreeEntry(**{name: found[name] for name in TreeEntry.__slots__ if name in found})


def _listed(tree: Path) -> set[str]:
    """Return the paths of everything in *tree* except folders and the manifest."""
    found = set()
    waiting = [""]
    while waiting:
        within = waiting.pop()
        for entry in os.scandir(tree / within):
            path = f"{within}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{path}/")
            else:
                found.add(path)
    return found - {FILE}


def digest_of(path: Path) -> str:
    """Return the SHA-256 of the content of *path*, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
