"""GPU models of the simulator: one table of public figures.

The boards are those of the data sheets: memory as NVML reports it (``board_mib``), of which
the firmware reserves a part (``reserved_mib``, rounded) and CUDA sees the rest. The memory of a
context is typical, not exact. The C side of the simulator has no table: it reads these figures
from ``machine.conf``.
"""

from __future__ import annotations

import dataclasses

MIB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """One GPU model, from its data sheet."""

    key: str  # the name on the command line: "h100"
    compute_capability: str
    board_mib: int  # NVML's total
    reserved_mib: int  # part of it that the firmware reserves
    context_mib: int  # memory of one CUDA context
    sm_count: int
    sm_clock_mhz: int
    memory_clock_mhz: int
    memory_bus_bits: int
    memory_gbps: int  # 10^9 bytes per second
    pcie_generation: int
    l2_mib: int
    power_limit_w: int
    nvlinks: int

    @property
    def title(self) -> str:
        """The device's name, after "pyvgpu simulated"."""
        return self.key.upper().replace("-", " ")

    @property
    def memory_bytes(self) -> int:
        """Bytes available to CUDA programs."""
        return (self.board_mib - self.reserved_mib) * MIB

    @property
    def pcie_bandwidth(self) -> int:
        """Bytes per second of sixteen lanes, as measured copies reach."""
        return {3: 12_300_000_000, 4: 25_000_000_000, 5: 55_000_000_000}[self.pcie_generation]


# fmt: off
_ROWS = (
    # key, cc, board kept context MiB, SMs, SM memory MHz, bus, GB/s, PCIe, L2 MiB, W, links
    ("t4",       "7.5",   15360, 258, 104,  40, 1590, 5001,  256,  320, 3,   4,   70,  0),
    ("a10",      "8.6",   23028, 512, 256,  72, 1695, 6251,  384,  600, 4,   6,  150,  0),
    ("a100",     "8.0",   40960, 454, 420, 108, 1410, 1215, 5120, 1555, 4,  40,  400, 12),
    ("a100-80g", "8.0",   81920, 730, 420, 108, 1410, 1593, 5120, 2039, 4,  40,  400, 12),
    ("l4",       "8.9",   23034, 480, 204,  58, 2040, 6251,  192,  300, 4,  48,   72,  0),
    ("l40s",     "8.9",   46068, 602, 384, 142, 2520, 9001,  384,  864, 4,  96,  350,  0),
    ("h100",     "9.0",   81559, 551, 520, 132, 1980, 2619, 5120, 3350, 5,  50,  700, 18),
    ("h200",     "9.0",  143771, 615, 520, 132, 1980, 3201, 6144, 4800, 5,  60,  700, 18),
    ("b200",     "10.0", 183359, 727, 620, 148, 1965, 3996, 7680, 7700, 5, 126, 1000, 18),
)
# fmt: on

MODELS: tuple[Model, ...] = tuple(Model(*row) for row in _ROWS)
BY_KEY = {model.key: model for model in MODELS}
