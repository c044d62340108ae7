"""Rows of `make bench-share` with realistic launch patterns, and the bounds of their figures.

A row is a program with a share, perhaps a neighbour, and bounds on figures of ratios.py: each is
a ratio to the same program without a share in the same run, or of programs with priorities, to the
first of them alone. Bounds that are not kept are shown as missed.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import laws
from ratios import Bound
from scene_runs import Tenant

from pyvgpu.quota import Priority

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP = "patterns"
US, MS = 1_000, 1_000_000
EVERYWHERE = laws.NAMES
TODAY = (laws.TODAY.name,)

RATE = Bound("kernels, % of what the share allows", least=95)
CALL = Bound("longest call beyond debt / rate, ms", most=10)
RETURNS = Bound("returned, ms", most=100)
TIME = Bound("time, of what the share allows", most=1 / 0.95)
PAID = Bound("time, of what was used divided by the share", least=0.9, most=1.1, shows_limit=True)
UNSEEN = Bound("other shapes, of the time of known ones", most=1.2)
MANY = Bound("other shapes, of the time of known ones", most=1.1)
KNOWN = Bound("known shapes, of the time that the share allows", most=1.05)
LATENCY = Bound("p99 of requests, of 1.3 times that alone and a slice", most=1, shows_limit=True)
SHORT_LATENCY = dataclasses.replace(LATENCY, shows_limit=False)  # a slice is much beside a request
LONG_REQUEST_NS = 30 * MS  # many slices under any law


@dataclasses.dataclass(frozen=True, slots=True)
class Pattern:
    """A program, and the claims about it."""

    name: str
    tenants: tuple[Tenant, ...]  # the first is the program
    bounds: tuple[Bound, ...]
    seconds: float = 3
    piece_ns: int = 0  # its longest kernel; 0: its length
    allowed: float | None = None  # percent of the device's time; None: its vcore
    laws: tuple[str, ...] = TODAY  # under which it is tried unless all are asked for
    quick: bool = False  # also in the short form, under the first of its laws
    everywhere: bool = False  # also in the short form under all of them
    witness_ns: int = 5 * MS

    @property
    def reference(self) -> tuple[Tenant, ...]:
        """Return the tenants of the run to which its figures are ratios."""
        if self._has_priorities:
            return (self.program,)  # alone, with the same share
        return (dataclasses.replace(self.program, vcore=None),)

    @property
    def control(self) -> tuple[Tenant, ...] | None:
        """Return the tenants of the run that must be past the bounds; None: the reference's."""
        if not self._has_priorities:
            return None
        return tuple(dataclasses.replace(each, priority=Priority.NORMAL) for each in self.tenants)

    @property
    def _has_priorities(self) -> bool:
        return any(each.priority is not Priority.NORMAL for each in self.tenants)

    @property
    def program(self) -> Tenant:
        """Return the program, as it is with its share."""
        return self.tenants[0]

    @property
    def due(self) -> float:
        """Return what the program may have, percent of the device's time."""
        return self.allowed if self.allowed is not None else float(self.program.vcore or 100)


def _share(vcore: int) -> Bound:
    return Bound("share, %", most=vcore + 1, shows_limit=True)


def _held(kind: str, vcore: int, behind: int, words: str, *, quick: bool = False) -> Pattern:
    return Pattern(
        f"{vcore}: 1 ms kernels beside a stream with {words}",
        (Tenant(vcore, kind, MS, more=(behind,)),),
        (RATE, _share(vcore), CALL),
        laws=EVERYWHERE if quick else TODAY,
        quick=quick,
        everywhere=quick,
    )


HELD = (
    _held("heldbyhost", 90, 1, "a kernel behind a host function", quick=True),
    _held("heldbyhost", 50, 1, "a kernel behind a host function"),
    _held("heldbyevent", 90, 30, "30 kernels behind an event that the host holds back"),
    _held("heldbyevent", 50, 1, "a kernel behind an event that the host holds back"),
    _held("heldbyvalue", 90, 30, "30 kernels behind cuStreamWaitValue32"),
    _held("heldbyvalue", 50, 1, "a kernel behind cuStreamWaitValue32"),
)


def _pair(length_ms: int, *, quick: bool = False) -> Pattern:
    return Pattern(
        f"99: 200 us kernels beside a stream with kernels of {length_ms} ms",
        (Tenant(99, "pair", 200 * US, more=(length_ms * MS,)),),
        (RATE, CALL),
        seconds=4,
        piece_ns=length_ms * MS,
        laws=EVERYWHERE if quick else TODAY,
        quick=quick,
    )


PAIRS = (
    *(_pair(each, quick=each == 10) for each in (50, 20, 10, 5)),
    *(
        Pattern(
            f"{vcore}: 200 us kernels, 32 under way at most, beside a stream of 50 ms ones",
            (Tenant(vcore, "pair", 200 * US, more=(50 * MS, 32)),),
            (RATE, CALL),
            seconds=4,
            piece_ns=50 * MS,
            laws=EVERYWHERE,
        )
        for vcore in (99, 50)
    ),
    Pattern(
        "no vcore: 200 us kernels beside a stream with kernels of 30 ms, and a neighbour of 5",
        (
            Tenant(100, "pair", 200 * US, more=(30 * MS,), end_s=3.5),
            Tenant(5, "async", 280 * US),
        ),
        (RATE, CALL),
        seconds=4,
        piece_ns=30 * MS,
        allowed=95,
    ),
    Pattern(
        "97: 8 threads, 64 kernels of 2 to 500 us each in 40 grids",
        (Tenant(97, "threads", 500 * US),),
        (TIME, CALL),
        laws=EVERYWHERE,
        quick=True,
    ),
    Pattern(
        "50: an unseen kernel behind a gate and beside it, before the gate opens",
        (Tenant(50, "gated", 100 * US),),
        (RETURNS, CALL),
        quick=True,
    ),
)


def _cycle(shapes: int) -> Pattern:
    return Pattern(
        f"99: 10 us kernels, {shapes:,} shapes over and over",
        (Tenant(99, "cycle", 10 * US, more=(shapes,)),),
        (RATE, CALL),
        seconds=2,
    )


SHAPES = (
    Pattern(
        "99: 10 us kernels, 1,000 unseen shapes after a known one",
        (Tenant(99, "unseen", 10 * US),),
        (UNSEEN, KNOWN, CALL),
        seconds=1,
        laws=EVERYWHERE,
        quick=True,
        everywhere=True,
    ),
    Pattern(
        "99: 10 us kernels, 100,000 shapes after few",
        (Tenant(99, "many", 10 * US, more=(100_000,)),),
        (MANY, KNOWN, CALL),
        seconds=10,
    ),
    _cycle(3_000),
    _cycle(6_000),
)


def _brief(words: str, killed: int, seconds: float, *, quick: bool = False) -> Pattern:
    return Pattern(
        f"10: eight processes, each one kernel of 500 ms, {words}",
        (Tenant(10, "brief", 500 * MS, more=(killed,)),),
        (PAID,),
        seconds=seconds,
        quick=quick,
        witness_ns=MS,
    )


BRIEF = (
    _brief("that end without another call", 0, 50, quick=True),
    _brief("that are killed at half", 1, 30),
)


def _requests(
    vcore: int, kernels: int, length_ns: int, period_ms: int, *low: Tenant, quick: bool = False
) -> Pattern:
    """Return a server beside programs of low priority that always have work."""
    request_ns = kernels * length_ns
    beside = ", ".join(f"low {one.kind} {one.length_ns // US} us" for one in low)
    server = Tenant(
        vcore,
        "requests",
        length_ns,
        more=(kernels, period_ms * MS),
        priority=Priority.HIGH,
    )
    return Pattern(
        f"high {vcore}: requests of {kernels} x {length_ns // US} us beside {beside}",
        (server, *(dataclasses.replace(one, priority=Priority.LOW) for one in low)),
        (LATENCY if request_ns >= LONG_REQUEST_NS else SHORT_LATENCY,),
        seconds=8 if request_ns >= LONG_REQUEST_NS else 4,
        laws=EVERYWHERE,
        quick=quick,
        everywhere=quick,
    )


PRIORITIES = (
    _requests(50, 16, 2 * MS, 120, Tenant(50, "async", 280 * US), quick=True),
    _requests(50, 320, 100 * US, 120, Tenant(50, "async", MS)),
    _requests(50, 1, 2 * MS, 10, Tenant(50, "graph", 5 * US)),
    _requests(50, 1, 2 * MS, 10, Tenant(50, "streams", 280 * US)),
    _requests(70, 1, 500 * US, 3, Tenant(30, "async", 100 * US)),
    _requests(100, 1, 100 * US, 2, Tenant(100, "async", 280 * US)),
    _requests(40, 4, 2 * MS, 40, *[Tenant(20, "async", 280 * US)] * 3),
)

PATTERNS = (*HELD, *PAIRS, *SHAPES, *BRIEF, *PRIORITIES)


def words(bound: Mapping[str, Any]) -> str:
    """Return the bounds of a figure in words."""
    parts = [("at least", bound["least"]), ("at most", bound["most"])]
    return ", ".join(f"{text} {value:.4g}" for text, value in parts if value is not None)
