"""Guarantees of README.md and docs/, checked against a record.

Each guarantee is a row of CHECKS, with its words and the file that has them. Tests of the kit that
no other check claims belong to the last one.

A measured value is evaluated by verdict(), here and in the kit, which imports this module: so it
needs only the standard library. The worst try counts for a limit that each try must keep.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyvgpu.calibration.calibration_record import KitRecord

POINTS = 5  # percentage points by which a share may be off within a few seconds
SHORTEST_US = 100  # shorter kernels leave the device idle until the host launches more
CLOCK_NS = 20  # resolution of Python loops on a busy host
_WITHIN_MS = 1000
LATE = "launched late for lack of a processor"  # figure of a tenant, in percent of the time
_TENANT = re.compile(r"((\d+) percent, ([\d.]+) us)( \(\d+\))?$")  # the last: of several alike
# Calls: the quota, and the overhead of the shim that docs/performance.md allows, ns.
OVERHEAD = (
    ("launch", "with 99 percent of the time", 15),
    ("allocate and free", "with memory limited", 60),
    ("allocate and free in a stream", "with memory limited", 80),
)


@dataclasses.dataclass(frozen=True, slots=True)
class TimeShare:
    """A tenant's requested and achieved share of time, in percent."""

    stage: str
    tenant: str
    wanted: int
    had: float
    scatter: float  # by which parts of the measured time differ; 0 if not known
    late: float  # percent of the time by which a lack of processors delayed its launches
    guaranteed: bool  # not beside programs without a quota, nor if the host is too slow to use it


@dataclasses.dataclass(frozen=True, slots=True)
class TestOutcome:
    """The outcome of one test."""

    what: str
    held: bool | None  # None: inconclusive
    seen: str


@dataclasses.dataclass(frozen=True, slots=True)
class GuaranteeCheck:
    """A guarantee: its name, its words, their file, and the check of a record."""

    name: str
    words: str
    source: str
    read: Callable[[KitRecord], Iterator[TestOutcome]]
    kit: str = ""  # regular expression for the names of the kit's tests that belong to it


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluatedGuarantee:
    """A guarantee and its outcomes in a record; it was not tried if there are none."""

    name: str
    words: str
    source: str
    outcomes: tuple[TestOutcome, ...]

    @property
    def broken(self) -> tuple[TestOutcome, ...]:
        """The outcomes that did not hold."""
        return tuple(outcome for outcome in self.outcomes if outcome.held is False)

    @property
    def verdict(self) -> str:
        """The overall verdict."""
        if not self.outcomes:
            return "not tried"
        if self.broken:
            return "did not hold"
        return "held" if all(outcome.held for outcome in self.outcomes) else "inconclusive"


def verdict(value: float, limit: float, below: float = 0, above: float = 0) -> bool | None:
    """Return whether *value* is within *limit*; None if the measurement cannot tell.

    The true value may be lower than *value* by *below*, and higher by *above*.
    """
    if value + above <= limit:
        return True
    return False if value - below > limit else None


def evaluate(record: KitRecord) -> tuple[EvaluatedGuarantee, ...]:
    """Evaluate each guarantee by *record*."""
    return tuple(
        EvaluatedGuarantee(
            check.name,
            check.words,
            check.source,
            (*_of_kit(record, check), *check.read(record)),
        )
        for check in CHECKS
    )


def _of_kit(record: KitRecord, check: GuaranteeCheck) -> Iterator[TestOutcome]:
    for guarantee in record.guarantees:
        claiming = (
            candidate
            for candidate in CHECKS
            if candidate.kit and re.search(candidate.kit, guarantee.name)
        )
        if next(claiming, CHECKS[-1]) is check:
            yield TestOutcome(
                f"{guarantee.stage}: {guarantee.name}", guarantee.held, guarantee.detail
            )


def _nothing(_: KitRecord) -> Iterator[TestOutcome]:
    return iter(())


def shares(record: KitRecord) -> Iterator[TimeShare]:
    """Yield every share of time in *record*."""
    for stage in ("alone", "tenants"):
        found = record.stages.get(stage)
        for figure in found.figures.values() if found else ():
            scene, _, last = figure.name.rpartition(": ")
            tenant, prefix = (scene, scene) if stage == "alone" else (last, figure.name)
            wanted = _TENANT.match(tenant)
            if wanted is None or figure.unit != "%":
                continue
            others = scene.split(" beside ") if stage == "tenants" else [wanted[1]]
            if wanted[1] in others:
                others.remove(wanted[1])
            late = record.figure(stage, f"{prefix}: {LATE}")
            yield TimeShare(
                stage,
                f"{tenant}, beside {' and '.join(others)}" if others else f"{tenant}, alone",
                int(wanted[2]),
                figure.value,
                figure.scatter,
                0 if late is None else late.value,
                "without a quota" not in scene and float(wanted[3]) >= SHORTEST_US,
            )


def _given(record: KitRecord) -> Iterator[TestOutcome]:
    """Check that no tenant had less than its share, but for what a lack of processors explains.

    That is at most the share of the time by which its launches were late: a tenant that waits for
    a processor while the device has work of it loses nothing.
    """
    for share in shares(record):
        if share.guaranteed:
            seen = f"{share.had:.1f} of {share.wanted}"
            if share.scatter:
                seen += f", parts of the time differ by {share.scatter:.1f}"
            explained = share.wanted * min(share.late, 100) / 100
            if share.late:
                seen += (
                    f"; it launched late for lack of a processor for {share.late:.1f} percent of "
                    f"the time, which explains {explained:.1f}"
                )
            yield TestOutcome(
                f"{share.stage}: {share.tenant}",
                verdict(
                    share.wanted - share.had, POINTS, share.scatter + explained, share.scatter
                ),
                seen,
            )


def _freed(record: KitRecord) -> Iterator[TestOutcome]:
    figure = record.figure("fork", "kill -9 until memory is free")
    if figure is not None:
        yield TestOutcome(
            f"fork: {figure.name}",
            verdict(figure.most, _WITHIN_MS),
            f"{figure.most:.0f} ms at most",
        )


def _added(record: KitRecord) -> Iterator[TestOutcome]:
    """Check the overhead goals."""
    for call, way, goal in OVERHEAD:
        bare = record.figure("overhead", f"{call}, without the shim: median")
        shim = record.figure("overhead", f"{call}, {way}: median")
        if bare is not None and shim is not None:
            scatter = max(bare.scatter, shim.scatter)
            yield TestOutcome(
                f"overhead: {call}, {way}",
                verdict(shim.value - bare.value, goal + CLOCK_NS, scatter, scatter),
                f"{shim.value - bare.value:.0f} ns added, rounds differ by {scatter:.0f}; "
                f"the goal is {goal}",
            )


CHECKS = (
    GuaranteeCheck(
        "memory is held", "holds each program to its quota of device memory", "README.md",
        _nothing,
        r"nothing beyond|more is refused|refused twice|quota is held|nearly all|had again"
        r"|nothing more is charged|stays charged|holds no more|all that is free is served"
        r"|free at the end|exporter is charged|charged again|gives nothing back"
        r"|importer has closed it|memory is held$",
    ),
    GuaranteeCheck(
        "the quota is shown", "CUDA and NVML answer with the quota", "docs/enforced.md", _nothing,
        r"quota is shown|shows the quota",
    ),
    GuaranteeCheck(
        "time is held", "and of the device's time", "README.md", _nothing,
        r"not over its share|time is held$",
    ),
    GuaranteeCheck(
        "time is given", "has its 60 at all times, and never more", "docs/vcore.md", _given
    ),
    GuaranteeCheck(
        "results are the same", "no change to the program", "README.md", _nothing,
        r"the same|runs? under|works under|calls work|: (work|runs)$|copies come back"
        r"|what was written|read like that|can be (opened|reset)|as without a quota"
        r"|sum is right|by the bare driver|ends by (its signal|itself)|parent goes on"
        r"|model learns",
    ),
    GuaranteeCheck(
        "no way past the shim", "cannot find the bare driver by another name",
        "docs/enforced.md", _nothing, r"exported name",
    ),
    GuaranteeCheck(
        "death gives back", "memory of a killed process is reclaimed within a second",
        "README.md", _freed,
        r"killed process|child has ended|another (follows|gets its memory)",
    ),
    GuaranteeCheck(
        "the shim costs little", "*added* is held against the goal", "docs/performance.md", _added
    ),
    GuaranteeCheck("other guarantees of the kit", "", "", _nothing),
)  # fmt: skip
