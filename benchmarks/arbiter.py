"""Cost of the arbiter: its CPU time and memory, with 8 busy containers.

The containers are reservations in separate registries, and this program publishes their progress
as their shims would; the arbiter is the installed one. The benchmark first measures how often it
wakes; then it also measures a program that only sleeps and wakes as often (csrc/bench/wakes.c) at
the same time, which on a virtual machine is a large part of the total. The exit code is 1 if a
goal is missed; the goal holds for the median of windows, on an otherwise idle machine.

    benchmarks/arbiter.py --containers 8 --seconds 10
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import arbiters
import built
import host

from pyvgpu._region import ffi

WINDOW_SECONDS = 0.5
PUBLISH_SECONDS = 0.005
AHEAD_NS = 4_000_000  # of work in flight, so that every container is always busy
COUNTING_SECONDS = 1.5  # how often the arbiter wakes
CPU_GOAL_PERCENT, MEMORY_GOAL_KIB = 0.3, 8192


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """CPU use of a process, in percent of a core, window by window."""

    windows: tuple[float, ...]

    @property
    def median(self) -> float:
        """Return the value that is compared with the goal."""
        return statistics.median(self.windows)

    def summary(self) -> str:
        """Return it for people."""
        return (
            f"{self.median:.2f} % of a core ({min(self.windows):.2f} to {max(self.windows):.2f})"
        )


def main() -> int:
    """Measure and show; 1 if a goal was missed."""
    options = _parse_options()
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.place)))
        runs = [stack.enter_context(arbiters.run_in(place, 10)) for _ in range(options.containers)]
        for run in runs:
            stack.enter_context(run.process(0))
            run.attendant.poll()
        arbiters.wait_until(lambda: arbiters.read_clock(runs[-1].clock()).tenants == len(runs))
        (one,) = arbiters.living(place)
        wakes = count_wakes(runs, one.pid)
        command = (built.tool("wakes"), str(round(1e9 / wakes)))
        sleeper = stack.enter_context(subprocess.Popen(command))
        stack.callback(sleeper.kill)
        cost, bare = play(runs, (one.pid, sleeper.pid), options.seconds)
        busy = arbiters.read_clock(runs[0].clock()).busy
        memory = _status(one.pid, "VmRSS")
    document = {
        "machine": host.describe(),
        "containers": options.containers,
        "busy": busy,
        "wakes_per_second": wakes,
        "cpu_percent": cost.windows,
        "sleeper_percent": bare.windows,
        "resident_kib": memory,
    }
    if options.json:
        print(json.dumps(document, indent=1))
    else:
        print(f"{busy} of {options.containers} containers are busy")
        print(
            f"arbiter: {cost.summary()}, goal {CPU_GOAL_PERCENT}; resident {memory} KiB, "
            f"goal {MEMORY_GOAL_KIB}"
        )
        print(f"a program that only wakes as often, {wakes:.1f} times a second: {bare.summary()}")
    return int(cost.median > CPU_GOAL_PERCENT or memory > MEMORY_GOAL_KIB)


def count_wakes(runs: list[arbiters.Run], arbiter: int) -> float:
    """Let the containers work for a while; return how often a second the arbiter wakes then."""
    play(runs, (), COUNTING_SECONDS / 3)  # warm-up: it knows the containers and lends nothing
    before, since = _wakes(arbiter), time.monotonic()
    play(runs, (), COUNTING_SECONDS)
    return (_wakes(arbiter) - before) / (time.monotonic() - since)


def play(runs: list[arbiters.Run], pids: tuple[int, ...], seconds: float) -> tuple[Cost, ...]:
    """Let the containers work for a while; return the processes' CPU use."""
    taken: tuple[list[float], ...] = tuple([] for _ in pids)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((run.made.folder / "usage").open("r+b", 0)) for run in runs]
        begun, now = [_cpu_ns(pid) for pid in pids], time.monotonic_ns()
        since, end, first = now, now + seconds * 1e9, now
        while now < end:
            for file in files:
                _publish(file.fileno(), (now - first) // len(files), now)
            time.sleep(PUBLISH_SECONDS)
            now = time.monotonic_ns()
            if now - since >= WINDOW_SECONDS * 1e9:
                spent = [_cpu_ns(pid) for pid in pids]
                for windows, before, after in zip(taken, begun, spent, strict=True):
                    windows.append(100 * (after - before) / (now - since))
                begun, since = spent, now
    return tuple(Cost(tuple(windows)) for windows in taken)


def _publish(usage: int, done_ns: int, now_ns: int) -> None:
    """Write to the region as a shim does when it buys time."""
    words = [ns // arbiters.WORK_UNIT_NS & 0xFFFFFFFF for ns in (done_ns + AHEAD_NS, done_ns)]
    os.pwrite(usage, struct.pack("<II", *words), ffi.offsetof("struct usage_file", "work"))
    compute = ffi.offsetof("struct usage_file", "compute")
    refilled = compute + ffi.offsetof("struct usage_compute", "refilled_ns")
    os.pwrite(usage, struct.pack("<Q", now_ns), refilled)


def _cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def _wakes(pid: int) -> int:
    return _status(pid, "voluntary_ctxt_switches")


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what the arbiter costs.")
    add = parser.add_argument
    add("--containers", type=int, default=8, metavar="N", help="that are busy (8)")
    add("--seconds", type=float, default=10, metavar="N", help="to measure (10)")
    add(
        "--place", type=Path, metavar="DIR", help="for the registries (the usual temporary folder)"
    )
    add("--json", action="store_true", help="print the whole record")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
