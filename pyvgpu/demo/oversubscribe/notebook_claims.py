"""The claims of the scenario, each checked by the observations alone; pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyvgpu import oversubscription
from pyvgpu.demo import assertions
from pyvgpu.demo.assertions import FailedError
from pyvgpu.demo.observations import EventKind, Role, gib
from pyvgpu.demo.oversubscribe import notebook_scenario
from pyvgpu.demo.oversubscribe.notebook_scenario import NOTEBOOKS, RULES, WAIT_SECONDS, WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.demo.assertions import ClaimVerdict
    from pyvgpu.demo.oversubscribe.notebook_scenario import NotebookObservations

_REFUSED = 69  # exit code of a run that found no room


def evaluate(seen: NotebookObservations) -> tuple[ClaimVerdict, ...]:
    """Return the verdict on every claim."""
    return assertions.evaluate_each(seen, CLAIMS)


def _more_than_fits(seen: NotebookObservations) -> str:
    most = max((sample.admitted for sample in seen.samples), default=0)
    if most * seen.plan.quota <= seen.plan.memory:
        raise FailedError(f"at most {most} runs started: they fit on the device{_said(seen)}")
    return (
        f"{most} runs of {gib(seen.plan.quota)} started: {gib(most * seen.plan.quota)} on a "
        f"device of {gib(seen.plan.memory)}"
    )


def _never_more_on_device(seen: NotebookObservations) -> str:
    if not seen.samples:
        raise FailedError("nothing was observed")
    reserved = max(sample.reserved for sample in seen.samples)
    used = max(sample.used for sample in seen.samples)
    for size, source in ((reserved, "the reservations"), (used, "the driver")):
        if size > seen.plan.memory:
            raise FailedError(f"{gib(size)} of {gib(seen.plan.memory)}, says {source}")
    return (
        f"at most {gib(reserved)} reserved and {gib(used)} in use, in {len(seen.samples)} samples"
    )


def _longest_idle_first(seen: NotebookObservations) -> str:
    start = seen.first(Role.THIRD, EventKind.START)
    if start is None:
        raise FailedError(f"the third run did not start{_said(seen)}")
    suspended = [
        event
        for role in NOTEBOOKS
        for event in seen.of(role, EventKind.SUSPENDED)
        if event.seconds <= start.seconds
    ]
    if [event.role for event in suspended] != [Role.FIRST]:
        names = ", ".join(event.role for event in suspended) or "none"
        raise FailedError(f"suspended for the third run: {names}; it should be the first")
    return (
        f"the first run was suspended for the third, {gib(suspended[0].size)} moved to host "
        "memory; the second had worked later, and stayed"
    )


def _comes_back(seen: NotebookObservations) -> str:
    cells = [event for role in NOTEBOOKS for event in seen.of(role, EventKind.CELL)]
    wrong = sum(event.number for event in cells)
    if wrong:
        raise FailedError(f"{wrong} bytes were not as they had been")
    away = seen.first(Role.FIRST, EventKind.SUSPENDED)
    asked = away and seen.first(Role.FIRST, EventKind.ASKED, away.seconds)
    back = asked and seen.first(Role.FIRST, EventKind.CELL, asked.seconds)
    if not asked or not back:
        raise FailedError("the first run was not suspended, asked to work, and done with it")
    if not seen.first(Role.FIRST, EventKind.RESUMED):
        raise FailedError("the first run was never seen to be resumed")
    return (
        f"the first run was done {back.seconds - asked.seconds:.1f} s after it was asked to work; "
        f"{gib(back.size)} verified {len(cells)} times in all, every byte right"
    )


def _workers_stay(seen: NotebookObservations) -> str:
    late = seen.first(Role.LATE, EventKind.START_REFUSED)
    asked = seen.first(Role.LATE, EventKind.ASKED)
    if late is None or asked is None:
        raise FailedError("the late run was not refused")
    if late.number != _REFUSED or "no room within" not in late.text:
        raise FailedError(f"the late run ended with exit code {late.number}: {late.text}")
    for role in WORKERS:
        for event in seen.of(role, EventKind.SUSPENDED):
            if asked.seconds <= event.seconds <= late.seconds:
                raise FailedError(f"the {role} run was suspended although it worked")
        cell = seen.first(role, EventKind.CELL, asked.seconds)
        if cell is None:
            raise FailedError(f"the {role} run did not work meanwhile, so it proves nothing")
    return (
        f"the first and the third run worked, and the late one waited for {WAIT_SECONDS} s: "
        f"refused before it started, exit code {late.number}"
    )


def _few_moves(seen: NotebookObservations) -> str:
    moves = sorted(
        {(at, view.role) for sample in seen.samples for view in sample.views for at in view.moves}
    )
    if not moves:
        raise FailedError("no run was moved")
    most = max(
        sum(end - oversubscription.MINUTE < at <= end for at, _ in moves) for end, _ in moves
    )
    if most > RULES.moves_per_minute:
        raise FailedError(f"{most} moves in a minute, {RULES.moves_per_minute} are allowed")
    return f"{most} moves in a minute, {RULES.moves_per_minute} are allowed"


def _said(seen: NotebookObservations) -> str:
    said = next((text for role, text in reversed(seen.remarks) if role in NOTEBOOKS), "")
    return f": {said}" if said else ""


# The claims, as displayed.
CLAIMS: tuple[tuple[str, Callable[[NotebookObservations], str]], ...] = (
    ("the runs together reserve more than the device has", _more_than_fits),
    ("runs on the device never reserve more than it has", _never_more_on_device),
    ("a start suspends the run that is idle for the longest time", _longest_idle_first),
    ("a suspended run that wants to work is resumed, every byte the same", _comes_back),
    ("a run that works is not suspended for a start", _workers_stay),
    ("there are no more moves per minute than allowed", _few_moves),
    ("nothing is left behind", assertions.nothing_left),
)


def document(seen: NotebookObservations, verdicts: tuple[ClaimVerdict, ...]) -> str:
    """Return the whole demonstration as JSON."""
    return json.dumps(
        {
            "device": {"name": seen.plan.device, "memory_bytes": seen.plan.memory},
            "runs": [
                {
                    "name": str(role),
                    "vmemory_bytes": seen.plan.quota,
                    "cells": len(seen.of(role, EventKind.CELL)),
                    "suspensions": len(seen.of(role, EventKind.SUSPENDED)),
                    "resumptions": len(seen.of(role, EventKind.RESUMED)),
                }
                for role in notebook_scenario.RUNS
            ],
            "samples": len(seen.samples),
            "claims": [{"claim": x.claim, "holds": x.holds, "seen": x.seen} for x in verdicts],
            "holds": all(x.holds for x in verdicts),
        },
        indent=2,
    )
