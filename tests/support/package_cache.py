"""Cache of downloaded packages for tests, unpacked and never installed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def folder(name: str, fill: Callable[[Path], None]) -> Path:
    """Return the cache folder *name*; if it does not exist, *fill* fills a new one."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyvgpu-packages"
    cache.mkdir(parents=True, exist_ok=True)
    kept = cache / (name if len(name) < 200 else hashlib.sha256(name.encode()).hexdigest())
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            draft = cache / ".new"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            fill(draft)
            draft.rename(kept)
    return kept
