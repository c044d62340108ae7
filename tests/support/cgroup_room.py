"""Cgroups of version 2 of a test's own, and programs in them."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from typing import TYPE_CHECKING

import pytest
import rights

from pyvgpu import cgroups

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _lacks() -> str:
    own = cgroups.of_process()
    if own is None:
        return "a mounted cgroup of version 2"
    return "" if os.access(own, os.W_OK) and os.geteuid() == 0 else "us to make cgroups"


LACKS = _lacks()
needs_cgroups = pytest.mark.skipif(bool(LACKS), reason=f"{rights.WANTING} {LACKS}")


@contextlib.contextmanager
def cgroup(parent: Path | None = None) -> Iterator[Path]:
    """Make a cgroup below *parent*, or the test's own, and remove it when it is empty."""
    made = (parent or cgroups.of_process()) / f"test-{uuid.uuid4().hex[:8]}"
    made.mkdir()
    try:
        yield made
    finally:
        until = time.monotonic() + 10
        while not cgroups.remove(made) and time.monotonic() < until:
            time.sleep(0.01)  # a process that was killed leaves it in a moment


def joining(folder: Path) -> str:
    """Return a line of Python with which a program goes into a cgroup."""
    return f"open({str(folder / 'cgroup.procs')!r}, 'w').write('0')\n"
