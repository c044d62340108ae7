"""The hook tables of the shim, read from their sources."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

CSRC = Path(__file__).parents[2] / "csrc"


@dataclasses.dataclass(frozen=True, slots=True)
class CudaHook:
    """One line of a table: what cuGetProcAddress is asked for, and what dlsym is."""

    base: str
    since: int
    symbol: str


def _text(table: str) -> str:
    return "".join(path.read_text() for path in sorted((CSRC / table / "hooks").glob("*.def")))


def cuda() -> list[CudaHook]:
    """Every hook of the CUDA driver API."""
    lines = re.findall(r"^HOOK\((\w+), (\d+), \w+, (\w+),", _text("cuda"), re.M)
    return [CudaHook(base, int(since), symbol) for base, since, symbol in lines]


def nvml() -> list[str]:
    """Every hook of NVML, by symbol."""
    return re.findall(r"^HOOK\(\w+, (\w+),", _text("nvml"), re.M)


def symbols() -> set[str]:
    """What dlsym finds in the shim."""
    return {hook.symbol for hook in cuda()} | set(nvml())
