"""Compares replays of recordings with and without shares, alone and concurrently."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu.replay import plan, playback
from pyvgpu.simulation import simulator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.replay.playback import Played
    from pyvgpu.replay.trace import Trace

SHORTEST_S = 0.5  # a shorter recording is repeated until it has lasted this long
LONGEST_PERIOD_NS = 1_000_000
SAMPLES = 400  # minimum number of samples of the device


@dataclasses.dataclass(frozen=True, slots=True)
class JobResult:
    """The result of one job; times are for one repetition of its recording."""

    vcore: int | None  # None: without a share
    ms: float
    ratio: float  # to the time without a share, alone
    held: float  # percent of the device's time
    steps_per_s: float | None  # None: the recording marks no steps
    longest_launch_ms: float


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayedJob:
    """A recording, and its results."""

    trace: Trace
    unlimited: JobResult
    shares: tuple[JobResult, ...]  # alone
    beside: JobResult | None = None  # together with the others; *held* is for the time of overlap


def alone(trace: Trace, vcores: Sequence[int]) -> ReplayedJob:
    """Play a recording without a share, then with each of *vcores*."""
    with tempfile.TemporaryDirectory() as cache:
        player = _Player(Path(cache))
        return _alone(player, trace, vcores, _times(trace, SHORTEST_S))


def beside(traces: Sequence[Trace], vcores: Sequence[int]) -> list[ReplayedJob]:
    """Play each recording alone, then all of them with their shares concurrently.

    Shorter recordings are repeated until they last as long as the longest.
    """
    seconds = max(SHORTEST_S, *(trace.duration / 1e9 for trace in traces))
    times = [_times(trace, seconds) for trace in traces]
    with tempfile.TemporaryDirectory() as cache:
        player = _Player(Path(cache))
        jobs = [
            _alone(player, trace, [vcore], count)
            for trace, vcore, count in zip(traces, vcores, times, strict=True)
        ]
        programs = [plan.compile_trace(trace) for trace in traces]
        parts = [
            playback.PlayedProgram(program, vcore, count)
            for program, vcore, count in zip(programs, vcores, times, strict=True)
        ]
        played = player.play(*parts, length_ns=round(seconds * 1e9))
    until = min(each.makespan_ns for each in played)
    return [
        dataclasses.replace(
            job,
            beside=_result(job.trace, vcore, count, had, job.unlimited.ms, until),
        )
        for job, vcore, count, had in zip(jobs, vcores, times, played, strict=True)
    ]


class _Player:
    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def play(self, *parts: playback.PlayedProgram, length_ns: int) -> list[Played]:
        period_ns = max(50_000, min(LONGEST_PERIOD_NS, length_ns // SAMPLES))
        return playback.play(parts, self._cache, simulator.Law(), period_ns)


def _alone(player: _Player, trace: Trace, vcores: Sequence[int], times: int) -> ReplayedJob:
    program = plan.compile_trace(trace)
    length = trace.duration * times
    results = []
    first_ms = None
    for vcore in (None, *vcores):
        (had,) = player.play(playback.PlayedProgram(program, vcore, times), length_ns=length)
        results.append(_result(trace, vcore, times, had, first_ms, had.makespan_ns))
        first_ms = results[0].ms
    return ReplayedJob(trace, results[0], tuple(results[1:]))


def _result(
    trace: Trace,
    vcore: int | None,
    times: int,
    had: Played,
    unlimited_ms: float | None,
    until_ns: int,
) -> JobResult:
    ms = had.makespan_ns / times / 1e6
    return JobResult(
        vcore,
        ms,
        ms / (unlimited_ms or ms),
        100 * had.had_by(until_ns) / until_ns,
        1e3 * trace.steps / ms if trace.steps else None,
        had.longest_launch_ns / 1e6,
    )


def _times(trace: Trace, seconds: float) -> int:
    return max(1, math.ceil(seconds * 1e9 / trace.duration))
