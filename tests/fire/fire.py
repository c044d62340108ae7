"""Stress test: sixteen tenants make random driver calls and are killed at any moment.

The tenants are ``tenant/``: a program with three threads that allocates and frees device memory
of all families at random. This module runs them until they have done enough operations in all; it
kills, stops and restarts them meanwhile, and checks all along that each makes progress, that no
device ever exceeded the quota (by the machine's own account), and that free and used add up to the
whole (``witness.c`` checks this).

Now and then it sets the quota below the memory held, like ``pyvgpu set``. Until the quota is
raised again no process may get more than was charged when it was lowered.

Now and then all tenants rest: they free everything but their contexts. Then the ledger must equal
the machine's account, to the byte.
"""

from __future__ import annotations

import contextlib
import mmap
import operator
import os
import random
import select
import signal
import struct
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import driver_memory
import programs
import shim_room

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shim_room import Room

    from pyvgpu.region import Usage

PLACES, THREADS = 16, 3
WORK, REST, CLEAR, END = range(4)
SETTLED_S = 2  # until no charge by an earlier limit is left
PATIENCE_S = 30  # most time without progress of a tenant that is not stopped
_HEAD = struct.Struct("IIQ48x")  # order, keeper, questions; see board.h
_THREAD = struct.Struct("QQII24s80x")  # operations, refused, obeyed, -, doing
_HERE = Path(__file__).parent
_TENANT = tuple(sorted((_HERE / "tenant").glob("*.c")))
_WITNESS = (_HERE / "witness.c", _HERE / "tenant" / "board.c")


class _Board:
    """The shared file with the tenants' progress and the current order."""

    def __init__(self, folder: Path) -> None:
        path = folder / "board"
        path.write_bytes(bytes(_HEAD.size + PLACES * THREADS * _THREAD.size))
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), 0)
        _HEAD.pack_into(self._bytes, 0, WORK, os.getpid(), 0)

    def give_order(self, order: int) -> None:
        struct.pack_into("I", self._bytes, 0, order)

    def threads(self, place: int) -> list[tuple[int, int, int, str]]:
        """Return operations, refusals, the order obeyed and the current operation, by thread."""
        found = []
        for thread in range(THREADS):
            at = _HEAD.size + (place * THREADS + thread) * _THREAD.size
            done, refused, obeyed, _, doing = _THREAD.unpack_from(self._bytes, at)
            found.append((done, refused, obeyed, doing.split(b"\0")[0].decode()))
        return found

    def questions(self) -> int:
        _, _, questions = _HEAD.unpack_from(self._bytes)
        return int(questions)

    def operations(self) -> int:
        return sum(done for place in range(PLACES) for done, *_ in self.threads(place))

    def refused(self) -> int:
        return sum(refused for place in range(PLACES) for _, refused, *_ in self.threads(place))

    def obey(self, place: int, order: int) -> bool:
        return all(obeyed == order for _, _, obeyed, _ in self.threads(place))


class _Tenant:
    """One of the sixteen, through all its lives."""

    def __init__(self, fire: Fire, place: int) -> None:
        self._fire = fire
        self.place = place
        self.stopped_until = 0.0
        self._progress: object = None
        self._progress_at = 0.0
        self.start()

    def start(self) -> None:
        fire = self._fire
        self.process = subprocess.Popen(
            [fire.program, str(fire.folder), str(self.place), str(0 if fire.bare else fire.quota),
             "long", str(fire.random.getrandbits(32))],
            env=fire.environment(),
            pass_fds=[fire.lives[1]],
            start_new_session=True,
            stderr=fire.log,
        )  # fmt: skip
        self._progress_at = time.monotonic()

    def kill(self) -> None:
        """With its children, or without."""
        if self._fire.random.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self.stopped_until = 0.0

    def stands_still(self) -> bool:
        """Return whether every thread is stopped or dead, until a signal continues it."""
        return _states(self.process.pid) <= {"T", "Z", "X"}

    def stand_still(self) -> None:
        """Stop it, even if csrc/simulator/lock.c continues it repeatedly."""
        end = time.monotonic() + PATIENCE_S
        while not self.stands_still():
            assert time.monotonic() < end, f"process {self.process.pid} does not stop"
            self.stop(0)
            time.sleep(0.001)

    def stop(self, seconds: float) -> None:
        self.process.send_signal(signal.SIGSTOP)
        self.stopped_until = time.monotonic() + seconds

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.stopped_until = 0.0
        self._progress_at = time.monotonic()

    def watch(self) -> None:
        """Fail if it ended by itself, or made no progress for long."""
        fire, now = self._fire, time.monotonic()
        assert self.process.poll() is None, fire.say(f"tenant {self.place} ended by itself")
        seen = fire.board.threads(self.place)
        if seen != self._progress or self.stopped_until:
            self._progress, self._progress_at = seen, now
        assert now - self._progress_at < PATIENCE_S, fire.say(f"tenant {self.place} hangs: {seen}")


def _states(pid: int) -> set[str]:
    """Return the states of all threads of a process, as the kernel shows them."""
    states = set()
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # a thread that ends just now
            states.add(thread.read_text().rpartition(")")[2].split()[0])
    return states


class Fire:
    """The sixteen tenants under one quota, and their controller; *bare*: without the shim."""

    def __init__(
        self, place: Path, room: Room, quota: int, seed: int, *, bare: bool = False
    ) -> None:
        self.room, self.quota, self.seed, self.bare = room, quota, seed, bare
        self.folder = place
        self.program = programs.build(
            "fire", _TENANT, "-D_GNU_SOURCE", programs.LIBCUDA, "-lpthread"
        )
        self.random = random.Random(seed)
        self.board = _Board(place)
        self.log = (place / "log").open("w+")
        self.lives = os.pipe()  # end of file when the last descendant is gone
        self.kills = self.lowerings = 0
        self._raise_at = 0.0  # 0: the limit is the quota
        self._allowed = [quota for _ in room.devices]  # bytes that may be charged
        for device in range(len(room.devices)):
            driver_memory.watch(room.machine, device)
        self.witness = self._start_witness()
        self._tenants = [_Tenant(self, each) for each in range(PLACES)]

    def environment(self) -> dict[str, str]:
        if self.bare:
            return shim_room.bare_environment(self.room.machine)
        return self.room.environment()

    @property
    def pids(self) -> list[int]:
        return [each.process.pid for each in self._tenants] + [self.witness.pid]

    def _start_witness(self) -> subprocess.Popen[bytes]:
        """Start it before the tenants, which would leave no memory for its contexts."""
        program = programs.build(
            "witness", _WITNESS, "-D_GNU_SOURCE", programs.LIBCUDA, programs.LIBNVIDIA_ML
        )
        witness = subprocess.Popen(
            [program, str(self.folder), str(0 if self.bare else self.quota)],
            env=self.environment(),
            stderr=self.log,
        )
        while not self.board.questions() and witness.poll() is None:
            time.sleep(0.001)
        return witness

    def say(self, what: str) -> str:
        """Return a failure message with the state of all processes and the seed."""
        lines = [f"seed {self.seed}: {what}", (self.folder / "log").read_text()]
        for pid, (charged, held) in self._stop_all().items():
            lines.append(f"process {pid}: charged {charged}, has {held}")
        for tenant in self._tenants:
            doing = [doing for *_, doing in self.board.threads(tenant.place)]
            lines.append(f"tenant {tenant.place}: process {tenant.process.pid}: {doing}")
        return "\n".join(lines)

    def burn(self, operations: int) -> None:
        """Run that many more operations, with kills, stops and lowered quotas."""
        self.board.give_order(WORK)
        end = self.board.operations() + operations
        while self.board.operations() < end:
            time.sleep(0.005)
            self._harass()
            if self.random.random() < 0.1:
                self._compare()
            self._watch()

    def rest(self) -> None:
        """Let all tenants free their memory; fail if ledger and machine then differ.

        Orphaned children of killed tenants may need a moment more; until then they keep their
        parents' memory.
        """
        for tenant in self._tenants:
            if tenant.stopped_until:
                tenant.go_on()
        self._raise()
        end = time.monotonic() + PATIENCE_S
        while True:
            for order in (REST, CLEAR):
                self._await(order)
            charged = list(self.room.usage().charged[: len(self.room.devices)])
            used = [self._used(device) for device in range(len(charged))]
            if charged == used:
                return
            assert time.monotonic() < end, self.say(f"rest: charged {charged}, in use {used}")

    def end(self) -> None:
        """Let half of the tenants end by themselves, kill the others; wait until all are gone."""
        for tenant in self._tenants:
            if tenant.stopped_until:
                tenant.go_on()
            if tenant.place % 2:
                tenant.kill()
        self._raise()
        self.board.give_order(END)
        assert self.witness.wait(PATIENCE_S) == 0, self.say("the witness complains")
        for tenant in self._tenants:
            code = tenant.process.wait(PATIENCE_S)
            assert code == (-signal.SIGKILL if tenant.place % 2 else 0), self.say(
                f"tenant {tenant.place} ended with {code}"
            )
        os.close(self.lives[1])
        gone, _, _ = select.select([self.lives[0]], [], [], PATIENCE_S)
        assert gone, self.say("a tenant's child does not end")

    def put_out(self) -> None:
        for tenant in self._tenants:
            tenant.kill()
        self.witness.kill()
        self.witness.wait(PATIENCE_S)
        self.log.close()

    def _await(self, order: int) -> None:
        self.board.give_order(order)
        while not all(self.board.obey(place, order) for place in range(PLACES)):
            time.sleep(0.002)
            self._watch()

    def _harass(self) -> None:
        now, chance = time.monotonic(), self.random.random()
        tenant = self.random.choice(self._tenants)
        if chance < 0.1:
            tenant.kill()
            tenant.start()
            self.kills += 1
        elif chance < 0.2 and not tenant.stopped_until:
            tenant.stop(self.random.random() ** 4 / 2)
        elif chance < 0.22 and not self._raise_at:
            self._lower(now + self.random.random() ** 4 / 4)
        for each in self._tenants:
            if each.stopped_until and now > each.stopped_until:
                each.go_on()
        if self._raise_at and now > self._raise_at:
            self._raise()

    def _lower(self, until: float) -> None:
        """Lower the quota; current charges may stay, but not grow.

        _compare() checks separately that no process has more than it is charged.
        """
        if self.bare:
            return
        held = max(self.room.usage().charged[: len(self.room.devices)])
        step = self.quota // 8
        below = min(max(held // step, 2), 7)
        limit = step * self.random.choice((below, self.random.randrange(2, 8)))
        self.room.set_vmemory(limit)
        charged = self.room.usage().charged[: len(self.room.devices)]
        self._allowed = [max(limit, each) for each in charged]
        self.lowerings += any(allowed > limit for allowed in self._allowed)
        self._raise_at = until

    def _raise(self) -> None:
        if self._raise_at:
            self._watch()
            self._allowed = [self.quota for _ in self.room.devices]
            self.room.set_vmemory(self.quota)
            self._raise_at = 0.0

    def _watch(self) -> None:
        assert self.witness.poll() is None, self.say("the witness complains")
        for tenant in self._tenants:
            tenant.watch()
        for device in range(len(self.room.devices)):
            peak = driver_memory.noted_bytes(self.room.machine, device)
            assert peak <= self.quota, self.say(
                f"device {device}: {peak} bytes were in use, the quota is {self.quota}"
            )
        usage = self._settled()
        assert self._is_allowed(usage), self.say(f"{usage}: {self._allowed} may be charged")

    def _settled(self) -> Usage:
        """Return the usage once it is allowed, or after some time.

        A charge that was admitted by an earlier limit is there until its process has read the new
        one, and is then taken back. A process may be stopped in between: it goes on.
        """
        end = time.monotonic() + SETTLED_S
        usage = self.room.usage()
        for tenant in self._tenants:
            if tenant.stopped_until and not self._is_allowed(usage):
                tenant.go_on()
        while not self._is_allowed(usage) and time.monotonic() < end:
            time.sleep(0.01)
            usage = self.room.usage()
        return usage

    def _is_allowed(self, usage: Usage) -> bool:
        return bool(usage.undecided) or all(map(operator.le, usage.charged, self._allowed))

    def _stop_all(self) -> dict[int, tuple[list[int], list[int]]]:
        """Stop all tenants; return what each process is charged, and what it has, by device.

        Without the processes that were continued meanwhile.
        """
        live = [tenant for tenant in self._tenants if tenant.process.poll() is None]
        for tenant in live:
            tenant.stand_still()
        devices = range(len(self.room.devices))
        before = self._charged()
        has = [driver_memory.bytes_by_process(self.room.machine, device) for device in devices]
        after = self._charged()
        still = {tenant.process.pid for tenant in live if tenant.stands_still()}
        return {
            pid: (
                [max(both) for both in zip(before.get(pid, own), own, strict=True)],
                [had.get(pid, 0) for had in has],
            )
            for pid, own in after.items()
            if pid in still
        }

    def _charged(self) -> dict[int, list[int]]:
        """Return what each process is charged, by device.

        A process that execs has two slots while its vfork() child still has its memory; and that
        child is not stopped.
        """
        charged: dict[int, list[int]] = {}
        for slot in self.room.usage().slots:
            own = charged.setdefault(slot.pid, [0 for _ in self.room.devices])
            for device in range(len(own)):
                own[device] += slot.charged[device]
        return charged

    def _compare(self) -> None:
        """Fail if any process has more than it is charged: not allowed even during a call."""
        for pid, (charged, held) in self._stop_all().items():
            assert all(c >= h for c, h in zip(charged, held, strict=True)), self.say(
                f"process {pid} is charged {charged} and has {held}"
            )

    def _used(self, device: int) -> int:
        return driver_memory.used_bytes(self.room.machine, device)


@contextlib.contextmanager
def fire(place: Path, room: Room, quota: int, seed: int, **options: bool) -> Iterator[Fire]:
    """Run the tenants for the duration of the block."""
    place.mkdir()
    lit = Fire(place, room, quota, seed, **options)
    try:
        yield lit
    finally:
        lit.put_out()
