"""Private cgroup v2 groups for tests, and programs in them."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from typing import TYPE_CHECKING

import pytest
import rights

from pyvgpu.machine import cgroups

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _lacks() -> str:
    own = cgroups.of_process()
    if own is None:
        return "a mounted cgroup v2 hierarchy"
    return "" if os.access(own, os.W_OK) and os.geteuid() == 0 else "us to make cgroups"


LACKS = _lacks()
needs_cgroups = pytest.mark.skipif(bool(LACKS), reason=f"{rights.WANTING} {LACKS}")


@contextlib.contextmanager
def cgroup(parent: Path | None = None) -> Iterator[Path]:
    """Create a cgroup below *parent*, by default this process's; remove it once empty."""
    made = (parent or cgroups.of_process()) / f"test-{uuid.uuid4().hex[:8]}"
    made.mkdir()
    try:
        yield made
    finally:
        until = time.monotonic() + 10
        while not cgroups.remove(made) and time.monotonic() < until:
            time.sleep(0.01)  # a killed process leaves its cgroup after a moment


def joining(folder: Path) -> str:
    """Return a line of Python that moves its process into a cgroup."""
    return f"open({str(folder / 'cgroup.procs')!r}, 'w').write('0')\n"
