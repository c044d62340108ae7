"""What a finished mirror says of itself, and whether it is still true.

``manifest.json`` lies in the tree and names every entry: links with their target, files with
inode, size, time of change and the digest of their content. A tree that was copied, or in
which anything was changed, added or removed, no longer agrees with it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import stat
from typing import TYPE_CHECKING, Any

from pyvgpu.volumes import plan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE = "manifest.json"

_LAYOUT = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a tree as it was when the tree was finished."""

    target: str | None  # of a symbolic link; the rest is for files
    inode: int = 0
    size: int = 0
    mtime_ns: int = 0
    digest: str = ""  # SHA-256 of the content

    def is_still(self, path: Path) -> bool:
        """Return whether *path* is that entry, as far as a look without reading tells."""
        found = path.lstat()
        if self.target is not None:
            return stat.S_ISLNK(found.st_mode) and str(path.readlink()) == self.target
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        return stat.S_ISREG(found.st_mode) and seen == (self.inode, self.size, self.mtime_ns)


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """All entries of a tree, by their path in it."""

    entries: Mapping[str, Entry]

    @classmethod
    def observe(cls, tree: Path, intent: plan.Plan, digests: Mapping[str, str]) -> Manifest:
        """Look at the tree just made from *intent*; *digests* are by path, for its files."""
        entries = {}
        for entry in intent.entries:
            found = (tree / entry.path).lstat()
            if stat.S_ISLNK(found.st_mode):
                entries[entry.path] = Entry(str((tree / entry.path).readlink()))
                continue
            content = entry.file if isinstance(entry, plan.OtherName) else entry.path
            entries[entry.path] = Entry(
                None, found.st_ino, found.st_size, found.st_mtime_ns, digests[content]
            )
        return cls(entries)

    @classmethod
    def read(cls, tree: Path) -> Manifest | None:
        """Return what *tree* says of itself; None if it says nothing we understand."""
        try:
            document: Any = json.loads((tree / FILE).read_bytes())
            if document["layout"] != _LAYOUT:
                return None
            return cls({path: Entry(**fields) for path, fields in document["entries"].items()})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def write(self, tree: Path) -> None:
        """Put it into *tree*, on the disk."""
        entries = {path: dataclasses.asdict(entry) for path, entry in self.entries.items()}
        with (tree / FILE).open("x", encoding="utf-8") as file:
            json.dump({"layout": _LAYOUT, "entries": entries}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    def fits(self, tree: Path, intent: plan.Plan) -> bool:
        """Return whether *tree* holds exactly what *intent* wants, unchanged since it was made.

        Only the shim is read; the other files are recognised by inode, size and time.
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


def _listed(tree: Path) -> set[str]:
    """Return the path of everything in *tree* that is no folder, but for the manifest."""
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
