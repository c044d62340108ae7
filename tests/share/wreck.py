"""Fault injection for `pyvgpu run` in real time: kill and stop supervisors, programs, arbiters.

    wreck.py SEED SECONDS PLACE    in a mount namespace with its own /run

It prints a line of JSON for each undisturbed second, from a second after the last fault on: the
faults, and for each run its part of the device and its scheduling delay on the host, both percent.
The last line is the most that each had in any second at all, less the unused time that it had
saved before: a run that a busy host did not schedule makes up for it (csrc/core/governor.c).
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import runner

from pyvgpu import shim
from pyvgpu.machine import arbiter, reservations

VCORES = (40, 30)
KERNEL_US = 200
AGAIN_SECONDS, SECOND = 1.0, 1.0
STEP = 0.1
SAVED_SECONDS = 1.0  # the most inflow that a run keeps, as KEEP_ALONE_NS
PROMPT = 60.0


class Run:
    """One `pyvgpu run` and its program; start() replaces it when it has ended."""

    def __init__(self, starter, number):
        self._starter, self._number = starter, number
        self._process = None
        self._before_ns = 0  # of those before this one
        self.points = [(time.monotonic(), 0)]  # time, and ns of work done by then
        self.pid = 0  # of the program

    @property
    def supervisor(self):
        return self._process.pid

    def ends(self):
        """Return whether it has ended."""
        return self._process.poll() is not None

    def start(self):
        """Start it, and return when its program works."""
        spin = (str(shim.tenant_program()), "spin", str(KERNEL_US))
        self._process = subprocess.Popen(
            self._starter.command(
                "--vcore", VCORES[self._number], "--vmemory", "2GiB", "--", *spin
            ),
            env=self._starter.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        works = threading.Event()
        threading.Thread(target=self._follow, args=(self._process, works), daemon=True).start()
        if not works.wait(PROMPT):
            raise SystemExit("a run does not come to work")

    def _follow(self, process, works):
        self._before_ns = before = self.points[-1][1]
        for line in process.stdout:
            with contextlib.suppress(ValueError):  # it died while writing the line
                said = json.loads(line)
                if said["event"] == "start":
                    self.pid = said["pid"]
                elif said["event"] == "spun":
                    self.points.append((said["at"], before + said["ns"]))
                    works.set()

    def done_by(self, moment):
        """Return the ns of work done by then, interpolated between two reports."""
        points = list(self.points)
        after = next((i for i, (at, _) in enumerate(points) if at > moment), len(points))
        if after in (0, len(points)):
            return points[min(after, len(points) - 1)][1]
        (left, low), (right, high) = points[after - 1 : after + 1]
        return low + (high - low) * (moment - left) / (right - left)

    def share(self, begin):
        """Return its part of the device in a second, percent."""
        return (self.done_by(begin + SECOND) - self.done_by(begin)) / 1e7

    def kept_ns(self):
        """Return how long the program has been runnable without a processor."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1])

    def close(self):
        self._process.kill()
        self._process.wait()


def arbiter_pid():
    """Return the pid of the arbiter; wait for one to start."""
    deadline = time.monotonic() + PROMPT
    while not (found := arbiter.find(reservations.Registries().paths)):
        if time.monotonic() > deadline:
            raise SystemExit("no supervisor starts an arbiter")
        time.sleep(0.01)
    return found[0].pid


def signal_arbiter(number):
    """Signal the arbiter and return its pid; a supervisor may replace it at any moment."""
    while True:
        pid = arbiter_pid()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            return pid


def strike(chance, runs):
    """Kill a random process, or stop it for a while; return a description."""
    run = chance.choice(runs)
    victim = chance.choice(("supervisor", "program", "arbiter"))
    stopped = chance.choice((None, None, round(chance.uniform(0.05, 1.5), 2)))
    number = signal.SIGKILL if stopped is None else signal.SIGSTOP
    if victim == "arbiter":
        pid = signal_arbiter(number)
    else:
        pid = run.supervisor if victim == "supervisor" else run.pid
        os.kill(pid, number)
    if stopped is not None:
        time.sleep(stopped)
        with contextlib.suppress(ProcessLookupError):  # a frozen process is replaced
            os.kill(pid, signal.SIGCONT)
    elif victim != "arbiter":
        deadline = time.monotonic() + PROMPT
        while not run.ends() and time.monotonic() < deadline:
            time.sleep(0.01)
        run.start()
    return [victim, VCORES[runs.index(run)], stopped]


def watch(runs):
    """Leave all runs undisturbed for a second; return each one's part and scheduling delay."""
    kept = [run.kept_ns() for run in runs]
    begin = time.monotonic()
    time.sleep(SECOND + 0.3)  # they report ten times a second
    lost = [(run.kept_ns() - before) / 1e7 for run, before in zip(runs, kept, strict=True)]
    return [[run.share(begin), each] for run, each in zip(runs, lost, strict=True)]


def most_of(run, vcore, begin, end):
    """Return the most that a run had in any second, less its savings at the begin of it; percent.

    The savings are those of a budget that is filled by *vcore*, up to SAVED_SECONDS of it.
    """
    most = saved = 0.0
    for step in range(int((end - begin) / STEP)):
        moment = begin + step * STEP
        most = max(most, run.share(moment) - saved)
        used = (run.done_by(moment + STEP) - run.done_by(moment)) / 1e7
        saved = min(max(saved + vcore * STEP - used, 0.0), vcore * SAVED_SECONDS)
    return most


def main():
    seed, seconds, place = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
    chance = random.Random(seed)
    starter = runner.Runner(place)
    runs = [Run(starter, number) for number in range(len(VCORES))]
    begin = time.monotonic()
    try:
        for run in runs:
            run.start()
        until = time.monotonic() + seconds  # a busy host may take longer than that to start them
        while time.monotonic() < until:
            blows = [strike(chance, runs) for _ in range(chance.choice((1, 1, 3)))]
            time.sleep(AGAIN_SECONDS)
            print(json.dumps({"blows": blows, "had": watch(runs)}), flush=True)
    finally:
        for run in runs:
            run.close()
    end = time.monotonic()
    most = [most_of(run, vcore, begin, end) for run, vcore in zip(runs, VCORES, strict=True)]
    print(json.dumps({"most": most}))


if __name__ == "__main__":
    main()
