"""Cache of ELF properties by file identity, so that no file is parsed twice.

The cache can be saved for the next process, which then needs no parser.
"""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from pyvgpu.volumes import elf, root

if TYPE_CHECKING:
    from pathlib import Path

_LAYOUT = 1
# A recently written file may be written again within one tick of the file system's clock.
_SETTLED_SECONDS = 2.0

_Known: TypeAlias = dict[root.Identity, elf.Elf]
_known: _Known = {}
_asked: _Known = {}  # the entries that this process has used


def read(path: Path) -> elf.Elf:
    """Return, or raise, the result of :func:`pyvgpu.volumes.elf.read_elf` for *path*."""
    found = path.stat()
    identity = root.identity(found)
    facts = _known.get(identity) or elf.read_elf(path)
    if found.st_mtime < time.time() - _SETTLED_SECONDS and root.identity(path.stat()) == identity:
        _known[identity] = _asked[identity] = facts
    return facts


def recall(saved: bytes) -> None:
    """Load the cache *saved* by another process; invalid content is ignored."""
    _known.update(_parse(saved))


def parse(saved: bytes) -> bytes:
    """Return the cache to save: the entries that were used, or *saved* if they are the same.

    Entries that were not used are of files that are gone.
    """
    if _parse(saved) == _asked:
        return saved
    files = [[*identity, dataclasses.asdict(facts)] for identity, facts in _asked.items()]
    return json.dumps({"layout": _LAYOUT, "files": files}).encode()


def _parse(saved: bytes) -> _Known:
    try:
        document: Any = json.loads(saved)
        if document["layout"] != _LAYOUT:
            return {}
        return {_identity(numbers): _facts(**fields) for *numbers, fields in document["files"]}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}


def _identity(numbers: list[int]) -> root.Identity:
    device, inode, size, mtime_ns = map(int, numbers)
    return device, inode, size, mtime_ns


def _facts(needed: list[str], kernel: list[int], **fields: Any) -> elf.Elf:
    return elf.Elf(**fields, needed=tuple(needed), kernel=tuple(kernel))
