"""Executes the events of a scene at their times, on the stage's clock.

    director.py PLAN

PLAN is the stage's, in JSON: containers (their quota files, open, and the environments of their
programs), the pids, the arbiter's command, and the events. It prints a line for each process that
it starts: which tenant's it is, or -1 for the arbiter, and its pid.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bench_environments
import scene_clock

from pyvgpu import region
from pyvgpu._region import ffi
from pyvgpu.simulation import simulator

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER_BYTES = ffi.sizeof("struct region_header")
SAMPLE_NS = 10_000_000
COMING_BACK_SECONDS = 0.03  # most time to wait: some threads never read the clock


@dataclasses.dataclass(frozen=True, slots=True)
class Lie:
    """A false, constant clock; each value would be valid for some container."""

    rate: float = 1  # the container's part of the device's time
    lent: int = 0
    ahead_ns: int = 0


LIES = {
    "alone": Lie(),
    "crowded": Lie(rate=1 / 63),
    "lends": Lie(lent=2**32 - 1),
    "ahead": Lie(ahead_ns=10**10),
}


class Director:
    """The processes on the stage, and the actions of events."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._pids: dict[int, list[int]] = {int(k): v for k, v in plan["pids"].items()}
        machine = simulator.read_machine(Path(os.environ["PYVGPU_SIMULATED_MACHINE"]))
        self._machine = machine
        self._share = bench_environments.share(machine, 1)
        self._clock = scene_clock.Clock(Path(os.environ[scene_clock.VARIABLE]))
        self._started: list[subprocess.Popen[str]] = []

    def vcore(self, tenant: int, value: int) -> None:
        """Give a container another vcore."""
        quota = self._plan["quotas"][tenant]
        release = region.read_limits(quota).driver_release
        region.update(quota, release, [dataclasses.replace(self._share, vcore=value)])

    def nonsense(self, tenant: int, value: int) -> None:
        """Fill the inactive copy of the limits with a byte."""
        quota = self._plan["quotas"][tenant]
        size = ffi.sizeof("struct quota_limits")
        base = ffi.offsetof("struct quota_file", "limits")
        offsets = (base, base + size)
        generations = [int.from_bytes(os.pread(quota, 8, at), "little") for at in offsets]
        older = offsets[generations.index(min(generations))]
        os.pwrite(quota, bytes([value]) * size, older)

    def signal(self, tenant: int, number: int) -> None:
        """Send a signal to the first process of a tenant, or of -1, the arbiter."""
        self._send([self._pids[tenant][0]], number)

    def signal_all(self, _: int, number: int) -> None:
        """Send a signal to every process."""
        self._send([pid for pids in self._pids.values() for pid in pids], number)

    def _send(self, pids: Sequence[int], number: int) -> None:
        for pid in pids:
            os.kill(pid, number)
        if number == signal.SIGCONT:  # wait for them to rejoin before time goes on
            until = time.monotonic() + COMING_BACK_SECONDS
            while self._clock.is_any_away(set(pids)) and time.monotonic() < until:
                continue

    def kill(self, tenant: int, again: int) -> None:
        """Kill the first process of a tenant, or the arbiter; *again*: replace it."""
        pid = self._pids[tenant].pop(0)
        os.kill(pid, signal.SIGKILL)
        while _lives(pid):  # and has its locks
            time.monotonic()
        if again:
            self.start(tenant)

    def start(self, tenant: int, _: int = 0) -> None:
        """Start another process of a tenant, or an arbiter."""
        command, environment = self._plan["commands"][str(tenant)]
        program = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if tenant >= 0 else None,
            text=True,
        )
        self._started.append(program)
        self._pids[tenant].append(program.pid)
        print(tenant, program.pid, flush=True)
        if tenant >= 0:
            assert program.stdin is not None
            assert program.stdout is not None
            _wait_until_ready(program.stdout.fileno())
            program.stdin.write(self._plan["words"] + "\n")
            program.stdin.flush()

    def lie(self, tenant: int, what: str) -> None:
        """Write a container's clock as a malicious arbiter might."""
        path = Path(self._plan["clocks"][tenant])
        raw = bytearray(path.read_bytes())
        if what == "noise":
            raw[HEADER_BYTES:] = os.urandom(len(raw) - HEADER_BYTES)
        page = ffi.from_buffer("struct clock_file *", raw)
        if what in LIES:
            _lie(page, LIES[what], time.monotonic_ns())
        with path.open("r+b") as file:
            file.write(raw)

    def faults(self, _: int, text: str) -> None:
        """Let calls of the driver fail from now on."""
        simulator.set_faults(self._machine, *text.splitlines())

    def leap(self, _: int, seconds: int) -> None:
        """Advance CLOCK_MONOTONIC in one step, as after a suspend of the whole machine."""
        self._clock.move(seconds * 10**9, 0)

    def step(self, _: int, seconds: int) -> None:
        """Set CLOCK_REALTIME to another time."""
        self._clock.move(0, seconds * 10**9)

    def finish(self) -> None:
        """End what was started."""
        for program in self._started:
            program.kill()
            program.wait()


def main() -> int:
    """Follow the plan."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    print("ready", flush=True)
    begin, end = map(int, sys.stdin.readline().split())
    plan["words"] = f"{begin} {end}"
    director = Director(plan)
    for at_ns, action, tenant, value in plan["events"]:
        _wait_until(begin + at_ns)
        getattr(director, action)(tenant, value)
    _wait_until(end)
    director.finish()
    return 0


def _lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def _wait_until_ready(said: int) -> None:
    """Read the clock until a program is ready to start.

    The others wait for a process that reads the clock: so a start takes no longer than by the real
    clock, however much faster the others are.
    """
    os.set_blocking(said, False)
    while True:
        time.monotonic()
        try:
            if b"ready\n" not in os.read(said, len(b"ready\n")):
                raise SystemExit("a program does not come to its start")
        except BlockingIOError:
            continue
        return


def _lie(page: Any, lie: Lie, now: int) -> None:
    page.sequence, page.busy, page.tenants, page.lent = 2, 1, 2, lie.lent
    page.newest = len(page.samples) - 1
    page.alone = page.alone_from_ns = page.alone_until_ns = 0
    for back in range(len(page.samples)):
        sample = page.samples[page.newest - back]
        sample.at_ns = now + lie.ahead_ns - back * SAMPLE_NS
        sample.share_ns = int(sample.at_ns * lie.rate)
    page.beat_ns, page.share_ns = now + lie.ahead_ns, page.samples[page.newest].share_ns


def _wait_until(moment: int) -> None:
    while time.monotonic_ns() < moment:
        time.sleep(max(0, moment - time.monotonic_ns()) / 1e9)


if __name__ == "__main__":
    sys.exit(main())
