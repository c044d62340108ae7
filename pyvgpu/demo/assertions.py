"""The claims of the demonstration, each checked by the observations alone.

A claim holds only if it was tested: a tenant that never held memory proves nothing about its
quota, whatever its samples show.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, TypeVar

from pyvgpu import errors
from pyvgpu.demo import shares
from pyvgpu.demo.observations import SHARERS, STEP, TENANTS, EventKind, Observations, Role, gib
from pyvgpu.quantity import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyvgpu.demo.oversubscribe.notebook_scenario import NotebookObservations

Seen = TypeVar("Seen")
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
BACK_SECONDS = 1.0  # limit for reclaiming a dead tenant's memory
POINTS = 3.0  # tolerance of a share of time, in percentage points
COUNT_POINTS = 6.0  # tolerance of the charged time relative to the measured share
LEFT_OVER = 5.0  # points of the device's time that the sharers may leave idle


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimVerdict:
    """Whether a claim holds, and the evidence."""

    claim: str
    holds: bool
    seen: str


class FailedError(Exception):
    """The claim does not hold; the text says why."""


def evaluate(seen: Observations) -> tuple[ClaimVerdict, ...]:
    """Return the verdict on every claim, in the order of the table."""
    return evaluate_each(seen, CLAIMS)


def evaluate_each(
    seen: Seen, claims: Sequence[tuple[str, Callable[[Seen], str]]]
) -> tuple[ClaimVerdict, ...]:
    """Return the verdict on each of *claims*, in their order; a check raises FailedError."""
    verdicts = []
    for claim, check in claims:
        try:
            verdicts.append(ClaimVerdict(claim, holds=True, seen=check(seen)))
        except FailedError as exc:
            verdicts.append(ClaimVerdict(claim, holds=False, seen=str(exc)))
    return tuple(verdicts)


def _quota_kept(seen: Observations) -> str:
    parts = []
    for role in TENANTS:
        _require_start(seen, role)
        holdings = [sample.of(role) for sample in seen.samples]
        ledger = max((holding.charged for holding in holdings), default=0)
        driver = max((holding.held for holding in holdings), default=0)
        if not ledger or not driver:
            unseen = "its ledger" if driver else "the driver"
            raise FailedError(f"{role} was never seen holding memory by {unseen}")
        largest, quota = max(ledger, driver), seen.plan.quota(role)
        if largest > quota:
            source = "the driver" if driver > ledger else "its ledger"
            raise FailedError(f"{role} had {largest} bytes of {quota}, says {source}")
        parts.append(f"{role} {gib(largest)} of {gib(quota)}")
    return f"largest seen: {', '.join(parts)}, in {len(seen.samples)} samples"


def _steady_undisturbed(seen: Observations) -> str:
    _require_start(seen, Role.STEADY)
    rounds = seen.of(Role.STEADY, EventKind.ROUND)
    wrong = sum(event.number for event in rounds)
    if wrong:
        raise FailedError(f"{wrong} bytes were not as computed, in {len(rounds)} rounds")
    killed = seen.first(Role.DOOMED, EventKind.KILLED)
    if killed is None:
        raise FailedError("no neighbour was killed, so nothing could disturb it")
    after = sum(event.seconds > killed.seconds for event in rounds)
    if not after:
        raise FailedError(f"of {len(rounds)} rounds none ended after the neighbour's death")
    _require_good_end(seen, Role.STEADY)
    return (
        f"computed in {gib(rounds[0].size)} {len(rounds)} times, every byte read back and right; "
        f"{after} of them after the neighbour's death"
    )


def _grower_refused(seen: Observations) -> str:
    _require_start(seen, Role.GROWER)
    refused = seen.of(Role.GROWER, EventKind.REFUSED)
    if not refused:
        raise FailedError("it was never refused")
    first = refused[0]
    others = [event for event in refused if event.number != OUT_OF_MEMORY]
    if others:
        raise FailedError(f"it was refused with {others[0].text}, not CUDA_ERROR_OUT_OF_MEMORY")
    if first.free >= STEP:
        raise FailedError(f"it was refused with {gib(first.free)} of its quota free")
    if seen.first(Role.GROWER, EventKind.GROWN, first.seconds):
        raise FailedError("it was given more after it had been refused")
    sample = next((sample for sample in seen.samples if sample.seconds >= first.seconds), None)
    free = seen.plan.memory - sample.used if sample else 0
    if free < STEP:
        raise FailedError(f"the device had {gib(free)} free, so the quota proves nothing")
    _require_good_end(seen, Role.GROWER)
    return (
        f"holding {gib(first.size)} and a context: {first.text}, although the device had "
        f"{gib(free)} free; {len(refused)} requests refused, and the program went on"
    )


def _dead_give_back(seen: Observations) -> str:
    _require_start(seen, Role.DOOMED)
    killed = seen.first(Role.DOOMED, EventKind.KILLED)
    if killed is None:
        raise FailedError("it never held its memory")
    took = seconds_until_back(seen, killed.seconds)
    if took is None:
        raise FailedError("its memory was never reclaimed")
    # Samples may be late on a busy machine: only a late sample with the memory in use counts.
    kept = [
        sample.seconds - killed.seconds
        for sample in seen.samples
        if sample.seconds < killed.seconds + took
    ]
    if kept and kept[-1] > BACK_SECONDS:
        raise FailedError(f"its memory was still in use {kept[-1]:.2f} s later")
    again = seen.first(Role.DOOMED, EventKind.HELD, killed.seconds)
    if again is None or again.size < killed.size:
        raise FailedError("the next process of the same run did not get the same bytes")
    return (
        f"{gib(killed.size)} were free again in the first sample, {took:.2f} s later, "
        "and the run's next process got as much"
    )


def _late_turned_away(seen: Observations) -> str:
    event = seen.first(Role.LATE, EventKind.START_REFUSED)
    if event is None:
        raise FailedError("it was not tried")
    free = format_size(event.free)
    if event.number != errors.UnavailableError.exit_code:
        raise FailedError(f"its exit code is {event.number}; it said {event.text!r}")
    for needed in (free, *(seen.plan.name(role) for role in TENANTS)):
        if needed not in event.text:
            raise FailedError(f"its error does not name {needed}: {event.text!r}")
    return (
        f"{gib(event.size)} requested, {gib(event.free)} not reserved: refused before it "
        f"started, exit code {event.number}, with the names of the holders"
    )


def _time_divided(seen: Observations) -> str:
    window = _require_window(seen)
    lost = 100 * shares.lost(seen, window)
    parts = []
    for role, vcore in SHARERS.items():
        done, counted = (100 * share for share in shares.of(seen, role, window))
        # A simulated device idles while a busy machine does not schedule the launching threads.
        if not vcore - POINTS - lost <= done <= vcore + POINTS:
            raise FailedError(f"{role} had {done:.1f} % of {vcore}{_of_machine(lost)}")
        if abs(counted - done) > COUNT_POINTS:
            raise FailedError(
                f"{role} had {done:.1f} % by the kernels it completed, and {counted:.1f} % by "
                "its own count"
            )
        parts.append(f"{role} {done:.1f} % of {vcore} (by its own count {counted:.1f} %)")
    return (
        f"by the kernels they completed in {window.seconds:.1f} s: {', '.join(parts)}"
        f"{_of_machine(lost)}"
    )


def _of_machine(lost: float) -> str:
    """Describe the time that sharers lost because the machine was busy."""
    if lost < 1:
        return ""
    return f"; for {lost:.0f} % of the time the machine was too busy to run them"


def _idle_takes_nothing(seen: Observations) -> str:
    _require_start(seen, Role.IDLE)
    window = _require_window(seen)
    holding = [sample.of(Role.IDLE).held for sample in window.samples(seen)]
    if not holding or not all(holding):
        raise FailedError("it was not running all the time, so it proves nothing")
    _, counted = shares.of(seen, Role.IDLE, window)
    if counted > 0:
        raise FailedError(f"it had {100 * counted:.1f} % of the device's time")
    others = 100 * sum(shares.of(seen, role, window)[0] for role in SHARERS)
    if others < 100 - LEFT_OVER - 100 * shares.lost(seen, window):
        raise FailedError(f"beside it the others had only {others:.1f} % together")
    return f"it held {gib(min(holding))} and the others had {others:.1f} % of the time together"


def nothing_left(seen: Observations | NotebookObservations) -> str:
    """Return that nothing is left after the end; FailedError lists what is."""
    if seen.left:
        raise FailedError("; ".join(seen.left))
    return "no reservation, no process, no memory in use"


def seconds_until_back(seen: Observations, since: float) -> float | None:
    """Return the seconds from the kill at *since* until the doomed tenant's memory is reclaimed.

    It is reclaimed when the driver counts no more than the memory of the other tenants.
    """
    for sample in seen.samples:
        others = sum(x.held for x in sample.holdings if x.role is not Role.DOOMED)
        if sample.seconds > since and sample.used <= others:
            return sample.seconds - since
    return None


def _require_start(seen: Observations, role: Role) -> None:
    failed = seen.first(role, EventKind.FAILED)
    if failed:
        raise FailedError(f"{role}: {failed.text}")
    if not seen.first(role, EventKind.START):
        said = "; ".join(text for tenant, text in seen.remarks if tenant is role)
        raise FailedError(f"{role} did not start: {said or 'it printed nothing'}")


def _require_window(seen: Observations) -> shares.Window:
    for role in SHARERS:
        _require_start(seen, role)
    window = shares.window(seen)
    if window is None:
        raise FailedError(f"they did not run concurrently for {shares.LEAST_SECONDS:g} s")
    return window


def _require_good_end(seen: Observations, role: Role) -> None:
    ended = seen.first(role, EventKind.ENDED)
    if ended is None or ended.number:
        raise FailedError(
            f"{role} did not end by itself"
            if ended is None
            else f"{role} ended with exit code {ended.number}"
        )


# The claims, as displayed.
CLAIMS: tuple[tuple[str, Callable[[Observations], str]], ...] = (
    ("no tenant exceeded its quota", _quota_kept),
    ("a tenant within its quota is not disturbed", _steady_undisturbed),
    ("an allocation over the quota is refused, and the program goes on", _grower_refused),
    ("memory of a killed process is reclaimed within a second", _dead_give_back),
    ("the device is never overcommitted", _late_turned_away),
    ("each tenant gets its share of the time", _time_divided),
    ("an idle tenant takes no time", _idle_takes_nothing),
    ("nothing is left behind", nothing_left),
)


def document(seen: Observations, verdicts: tuple[ClaimVerdict, ...]) -> str:
    """Return the whole demonstration as JSON."""
    plan, window = seen.plan, shares.window(seen)
    return json.dumps(
        {
            "device": {"name": plan.device, "memory_bytes": plan.memory},
            "tenants": [
                {
                    "name": str(role),
                    "vcore": SHARERS.get(role),
                    "share": shares.of(seen, role, window)[0]
                    if window and role in SHARERS
                    else None,
                    "vmemory_bytes": plan.quota(role),
                    "largest_charged_bytes": max(
                        (sample.of(role).charged for sample in seen.samples), default=0
                    ),
                    "largest_held_bytes": max(
                        (sample.of(role).held for sample in seen.samples), default=0
                    ),
                }
                for role in TENANTS
            ],
            "samples": len(seen.samples),
            "claims": [dataclasses.asdict(verdict) for verdict in verdicts],
            "holds": all(verdict.holds for verdict in verdicts),
        },
        indent=2,
    )
