"""Locations of the built programs of csrc/bench."""

from __future__ import annotations

from pathlib import Path

from pyvgpu import errors

BUILD = Path(__file__).parents[1] / "build"
TIMEOUT_SECONDS = 600


def tool(name: str) -> Path:
    """Return a program below csrc/bench, the newest if there are several."""
    found = sorted(BUILD.glob(f"*/csrc/bench/{name}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise errors.UnavailableError(f"no csrc/bench/{name} below {BUILD}: run make build")
    return found[-1]
