"""Checks of a trace against the claims of rows.py or patterns.py. Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Generic, TypeVar

import ratios
import scores
import share_rows
from scene_runs import SECOND_NS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import laws
    from patterns import Pattern
    from scene_runs import Scene, Tenant, Trace

Claim = TypeVar("Claim", share_rows.Kept | share_rows.Settled, ratios.Bound)

THROUGHPUT = 0.97
UNUSED_POINTS = 2.0  # a program that uses less than its vcore by so much is not limited by it


@dataclasses.dataclass(frozen=True, slots=True)
class Finding(Generic[Claim]):
    """The result of one claim."""

    claim: Claim
    figures: Mapping[str, object]
    faults: tuple[str, ...]  # violations, a sentence each


def examine(
    scene: Scene,
    claim: share_rows.Kept | share_rows.Settled,
    due: scores.Due,
    trace: Trace,
    alone: float,
) -> Finding[share_rows.Kept | share_rows.Settled]:
    """Check a trace against a claim; *alone*: the program's share of a bare device."""
    tenant, law = scene.tenants[claim.tenant], scene.law
    had = scores.of(trace, claim.tenant)
    if isinstance(claim, share_rows.Settled):
        return _examine_settling(claim, due, tenant, had)
    mean_bound, worst_bound = (
        share_rows.mean_bound(tenant, law),
        share_rows.worst_bound(tenant, law),
    )
    begin = round(share_rows.warm_s(scene.tenants) * SECOND_NS)
    kept = scores.evaluate(had, due, begin, trace.at_ns[-1], share_rows.window_ns(tenant))
    # At its two ends, a piece may have been begun or not.
    piece = 100 * share_rows.piece_ns(tenant) / (len(kept.windows) * share_rows.window_ns(tenant))
    least = THROUGHPUT * due.least * alone / 100 - piece
    faults = []
    if alone >= claim.expected + UNUSED_POINTS and tenant.kind != "bursty":
        off, worst = kept.mean_error, kept.worst_error
    else:  # it has pauses of its own
        above = [max(0.0, share - claim.expected) for share in kept.windows]
        off, worst = sum(above) / len(above), max(above)
    if off > mean_bound:
        faults.append(f"off by {off:.2f} points on average, above {mean_bound:.2f}")
    if worst > worst_bound:
        faults.append(f"a window off by {worst:.2f}, above {worst_bound:.2f}")
    if kept.mean < least:
        faults.append(f"has {kept.mean:.2f} %, less than {least:.2f}")
    figures = {
        "mean": kept.mean,
        "mean_error": off,
        "mean_bound": mean_bound,
        "worst_error": worst,
        "worst_bound": worst_bound,
        "alone": alone,
        "throughput": 100 * kept.mean / (due.least * alone / 100),
        "windows": kept.windows,
    }
    return Finding(claim, figures, tuple(faults))


def _examine_settling(
    claim: share_rows.Settled, due: scores.Due, tenant: Tenant, had: scores.Had
) -> Finding[share_rows.Kept | share_rows.Settled]:
    found = scores.settle(
        had,
        due,
        round(claim.at_s * SECOND_NS),
        round(claim.until_s * SECOND_NS),
        share_rows.settling_window_ns(tenant),
    )
    bound, above = share_rows.settling_bound_ns(tenant), share_rows.overshoot_bound(tenant)
    faults = []
    if found.settled_ns is None or found.settled_ns > bound:
        when = "never" if found.settled_ns is None else f"in {found.settled_ns / 1e6:.0f} ms"
        faults.append(f"settles {when}, above {bound / 1e6:.0f} ms")
    if found.overshoot > above and not claim.gives_back:
        faults.append(f"{found.overshoot:.2f} points too much, above {above:.2f}")
    figures = {
        "settled_ms": None if found.settled_ns is None else found.settled_ns / 1e6,
        "settled_bound_ms": bound / 1e6,
        "overshoot": found.overshoot,
        "overshoot_bound": above,
    }
    return Finding(claim, figures, tuple(faults))


def of_pattern(
    pattern: Pattern, law: laws.Law, limited: Trace, bare: Trace, control: Trace
) -> tuple[Finding[ratios.Bound], ...]:
    """Hold a run of a pattern and its control against its bounds, as ratios to *bare*."""
    pair = ratios.Pair(
        _ran(pattern, limited),
        _ran(pattern, bare),
        pattern.due,
        pattern.piece_ns or pattern.program.length_ns,
        law.device.slice_ns,
    )
    past = dataclasses.replace(pair, limited=_ran(pattern, control))
    return tuple(_hold(bound, pair, past) for bound in pattern.bounds)


def _hold(bound: ratios.Bound, pair: ratios.Pair, past: ratios.Pair) -> Finding[ratios.Bound]:
    measure = ratios.FIGURES[bound.figure]
    value, control = measure(pair), measure(past)
    figures = {
        "value": value,
        "control": control,
        "control_kept": bound.is_kept(control),
    }
    return Finding(bound, figures, () if bound.is_kept(value) else ("missed",))


def _ran(pattern: Pattern, trace: Trace) -> ratios.Ran:
    begin = round(share_rows.WARM_S * SECOND_NS)
    end = trace.at_ns[-1] if pattern.program.end_s is None else pattern.program.end_s * SECOND_NS
    return ratios.Ran(trace.programs[0][0], scores.of(trace, 0), begin, round(end))
