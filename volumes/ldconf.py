"""Parser for the dynamic loader's configuration, /etc/ld.so.conf: additional library folders."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyvgpu.volumes import root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MOST_BYTES = 1 << 20


def folders(configuration: Path, within: root.Root) -> Iterator[Path]:
    """Yield the folders of *configuration*, parsed like ldconfig; none if it is not readable."""
    yield from _folders(configuration, within, seen=set())


def _folders(configuration: Path, within: root.Root, seen: set[Path]) -> Iterator[Path]:
    """Parse one file: a folder per line, and includes, each file once."""
    try:
        real = within.real(configuration)
        text = root.read_regular(real, _MOST_BYTES)
    except OSError:
        return
    if real in seen:
        return
    seen.add(real)
    for line in os.fsdecode(text).splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["include"]:
            for pattern in words[1:]:
                base = configuration.parent if pattern[0] != "/" else within.path
                for path in within.matching(base, pattern.lstrip("/")):
                    yield from _folders(path, within, seen)
        elif len(words) == 1 and words[0].startswith("/"):
            yield within.outside(words[0])
