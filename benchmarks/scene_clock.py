"""Virtual clock of a scene, with the locally built library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import built

from pyvgpu.replay import virtualclock

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = virtualclock.VARIABLE


class Clock(virtualclock.Clock):
    """The file of a virtual clock; real until it is started."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, built.tool(f"share/{virtualclock.LIBRARY}"))
