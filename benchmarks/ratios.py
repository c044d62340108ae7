"""Figures of a program with a share, as ratios to the same program without one.

Pure functions of the results of both runs. FIGURES has each figure by its name.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scores import Had

MS = 1_000_000
LONGER = 1.3  # times what a request takes alone, and a slice of the device, beside low priority


@dataclasses.dataclass(frozen=True, slots=True)
class Ran:
    """One run of a program: what it says it did, and what it had of the device."""

    said: Mapping[str, int]
    had: Had  # of the tenant
    begin_ns: int  # between the two the program was in full swing
    end_ns: int


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """The same program with a share and without one."""

    limited: Ran
    bare: Ran
    allowed: float  # percent of the device's time, of the limited one
    piece_ns: int  # its longest kernel
    slice_ns: int  # of the device: what another process may have before it


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """A figure and its bounds; either may be left out."""

    figure: str  # of FIGURES
    least: float | None = None
    most: float | None = None
    shows_limit: bool = False  # a program without a share is past it

    def is_kept(self, value: float) -> bool:
        """Return whether *value* is within the bounds."""
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )


def kernel_rate(pair: Pair) -> float:
    """Kernels per second, percent of what the share allows."""
    bare = _per_second(pair.bare)
    return 100 * _per_second(pair.limited) / (bare * pair.allowed / 100)


def _per_second(ran: Ran) -> float:
    return 1e9 * ran.said["launches"] / ran.said["elapsed_ns"]


def share(pair: Pair) -> float:
    """Percent of the device's time."""
    return pair.limited.had.share(pair.limited.begin_ns, pair.limited.end_ns)


def slowness(pair: Pair) -> float:
    """Time for the same work, times what the share allows it to be."""
    limited, bare = pair.limited.said, pair.bare.said
    time = math.inf if limited.get("returned") == 0 else limited["work_ns"]
    return time * pair.allowed / 100 / bare["work_ns"]


def other_shapes(pair: Pair) -> float:
    """Time for launches of many or unseen shapes, times that for as many of a few known ones."""
    said = pair.limited.said
    return said["other_ns"] / said["few_ns"] if said["other_ns"] and said["few_ns"] else math.inf


def known_shapes(pair: Pair) -> float:
    """Time for launches of a few known shapes, times what the share allows it to be."""
    limited, bare = pair.limited.said["few_ns"], pair.bare.said["few_ns"]
    return limited * pair.allowed / 100 / bare if limited else math.inf


def return_ms(pair: Pair) -> float:
    """Milliseconds until all calls of the program had returned."""
    said = pair.limited.said
    return said["elapsed_ns"] / MS if said["returned"] else math.inf


def paid(pair: Pair) -> float:
    """Time that passed, times that in which the share allows what was used."""
    used = pair.limited.had.had_ns[-1]
    return pair.limited.said["work_ns"] * pair.allowed / 100 / used if used else math.inf


def excess_call_ms(pair: Pair) -> float:
    """Milliseconds by which the longest launch call was longer than debt divided by rate."""
    rate = pair.allowed / 100
    owed = max(debt_ns(pair.limited.had, rate), pair.piece_ns)
    return (pair.limited.said["longest_ns"] - owed / rate) / MS


def debt_ns(had: Had, rate: float) -> float:
    """Return the most that was had in any span above *rate* times the span."""
    least, most = math.inf, 0.0
    for at, ns in zip(had.at_ns, had.had_ns, strict=True):
        over = ns - rate * at
        least = min(least, over)
        most = max(most, over - least)
    return most


def latency(pair: Pair) -> float:
    """Return the p99 of requests, of what priorities guarantee: see LONGER."""
    guaranteed = LONGER * pair.bare.said["p99_ns"] + pair.slice_ns
    return float(pair.limited.said["p99_ns"] / guaranteed)


FIGURES: dict[str, Callable[[Pair], float]] = {
    "kernels, % of what the share allows": kernel_rate,
    "share, %": share,
    "time, of what the share allows": slowness,
    "other shapes, of the time of known ones": other_shapes,
    "known shapes, of the time that the share allows": known_shapes,
    "returned, ms": return_ms,
    "time, of what was used divided by the share": paid,
    "longest call beyond debt / rate, ms": excess_call_ms,
    f"p99 of requests, of {LONGER} times that alone and a slice": latency,
}
