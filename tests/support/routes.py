"""Lists every symbol lookup that lookups.py is to try for a driver."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hook_table

from pyvgpu.volumes import elf

if TYPE_CHECKING:
    from pyvgpu.volumes import find

LOOKUPS = Path(__file__).with_name("lookups.py")
STEPS = (*range(11000, 11090, 10), *range(12000, 12100, 10), *range(13000, 13030, 10))


def exports(driver: find.Driver) -> list[str]:
    """Return every entry point of *driver*."""
    entries = elf.exported_functions(driver.libcuda) | elf.exported_functions(driver.libnvidia_ml)
    return sorted(name for name in entries if name.startswith(("cu", "nvml")))


def question(driver: find.Driver) -> dict[str, Any]:
    """Return the input of lookups.py: all names that exist, and some that do not."""
    names = exports(driver)
    plain = {re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", name) for name in names}
    bases = {name for name in plain | set(names) if name.startswith("cu")}
    bases |= {hook.base for hook in hook_table.cuda()} | {"cuNoSuchFunction", ""}
    return {
        "exports": names,
        "bases": sorted(bases),
        "versions": sorted({hook.since for hook in hook_table.cuda()} | set(STEPS)),
        "hooks": sorted(hook_table.symbols()),
    }
