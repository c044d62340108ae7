"""Starts the tenants, each by `pyvgpu run`, collects their reports, and ends them.

The standard input of a tenant is a pipe from this process; a tenant ends when the pipe closes,
even if this process was killed. Each run has its own process group, so that Ctrl-C reaches only
this process, which then ends the runs in order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import shutil
import signal
import subprocess
import sysconfig
import time
from typing import IO, TYPE_CHECKING, Protocol, Self

from pyvgpu import errors, shim
from pyvgpu.demo.observations import (
    KERNEL_US,
    MIB,
    SHARERS,
    STEP,
    DemoPlan,
    EventKind,
    Role,
    TenantEvent,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

END_SECONDS = 30.0  # for the tenants to end by themselves; usually one second is enough
_REMARK = 400  # characters of a line on standard error


@dataclasses.dataclass(slots=True)
class _Run:
    """One `pyvgpu run`, with its incomplete lines of output."""

    role: Role
    process: subprocess.Popen[bytes]
    output: bytes = b""
    errors: bytes = b""


class Scenario(Protocol):
    """Describes the runs of a demonstration."""

    def options(self, role: Role) -> list[str]:
        """Return the options of `pyvgpu run` for *role*, without the device."""

    def program(self, role: Role) -> list[str]:
        """Return the program of *role*, with its arguments."""

    def start_refused(self, seconds: float, code: int, said: str) -> TenantEvent:
        """Return the event of the late run, which ended with *code* and *said* why."""


class QuotaScenario:
    """The scenario with quotas."""

    def __init__(self, plan: DemoPlan) -> None:
        self._plan = plan

    def options(self, role: Role) -> list[str]:
        """Return the name and the quota of *role*."""
        options = ["--name", self._plan.name(role), "--vmemory", str(self._plan.quota(role))]
        return [*options, "--vcore", str(SHARERS[role])] if role in SHARERS else options

    def program(self, role: Role) -> list[str]:
        """Return the tenant of *role*."""
        tenant = str(shim.tenant_program())
        if role is Role.STEADY:
            return [tenant, "steady", str(self._plan.working)]
        if role is Role.GROWER:
            return [tenant, "grow", str(STEP), str(self._plan.pause_ms)]
        if role in SHARERS:
            return [tenant, "spin", str(KERNEL_US)]
        if role is Role.IDLE:
            return [tenant, "hold", str(16 * MIB)]
        hold = [tenant, "hold", str(self._plan.doomed_bytes)]
        # Two successive processes in one run: the second inherits only the quota.
        return ["sh", "-c", '"$@"; read -r go && exec "$@"', "sh", *hold]

    def start_refused(self, seconds: float, code: int, said: str) -> TenantEvent:
        """Return the event, with what was requested and what was free."""
        size, free = self._plan.quota(Role.LATE), self._plan.unreserved
        return TenantEvent(
            seconds, Role.LATE, EventKind.START_REFUSED, code, size, free, text=said
        )


class TenantRuns:
    """The runs of a demonstration; a context manager, which ends them all."""

    def __init__(
        self, scenario: Scenario, device: str, spec: str, environment: Mapping[str, str]
    ) -> None:
        self._scenario = scenario
        self._options = ["--simulate", spec, "--device", device]
        self._environment = environment
        self._runs: dict[Role, _Run] = {}
        self._selector = selectors.DefaultSelector()
        self._began = time.monotonic()
        self._unread: list[TenantEvent] = []
        # In the order of their start.
        self.pids: dict[Role, list[int]] = {role: [] for role in Role}
        self.remarks: list[tuple[Role, str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_inputs()
        # No signal at first: a tenant would outlive its shell if a signal ended the shell.
        for ending in (None, signal.SIGTERM, signal.SIGKILL):
            until = self.seconds + END_SECONDS
            for run in self._runs.values():
                if ending and run.process.poll() is None:
                    run.process.send_signal(ending)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    run.process.wait(max(0.0, until - self.seconds))
        self._selector.close()
        for run in self._runs.values():
            for pipe in (run.process.stdout, run.process.stderr):
                if pipe:
                    pipe.close()

    @property
    def seconds(self) -> float:
        """Return the seconds since the start of the demonstration."""
        return time.monotonic() - self._began

    def start(self, role: Role) -> None:
        """Start the run of *role*."""
        command = [_command(), "run", *self._options, *self._scenario.options(role)]
        process = subprocess.Popen(
            [*command, "--", *self._scenario.program(role)],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        self._runs[role] = run = _Run(role, process)
        for pipe in (process.stdout, process.stderr):
            if pipe:
                os.set_blocking(pipe.fileno(), False)
                self._selector.register(pipe, selectors.EVENT_READ, run)

    def read_events(self, seconds: float) -> list[TenantEvent]:
        """Return the tenants' new events; wait for them, but not longer than *seconds*."""
        for key, _ in self._selector.select(seconds):
            pipe, run = key.fileobj, key.data
            chunk = os.read(key.fd, 1 << 16)
            if not chunk:
                self._selector.unregister(pipe)
            elif pipe is run.process.stdout:
                run.output = self._take_lines(run, run.output + chunk)
            else:
                run.errors = self._take_remarks(run, run.errors + chunk)
        for run in list(self._runs.values()):
            self._notice_end(run)
        read, self._unread = self._unread, []
        return read

    def kill(self, held: TenantEvent) -> TenantEvent:
        """Send SIGKILL to the process that reported *held*."""
        pid = self.pids[held.role][-1]
        killed = TenantEvent(self.seconds, held.role, EventKind.KILLED, size=held.size, pid=pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return killed

    def send_line(self, role: Role, line: str = "") -> None:
        """Send *line* to the program of *role*; an empty line starts its next process."""
        with contextlib.suppress(BrokenPipeError, KeyError):
            pipe = _input(self._runs[role])
            pipe.write(line.encode() + b"\n")
            pipe.flush()

    def end(self) -> list[TenantEvent]:
        """Ask all tenants to end, and wait until they have; return their last events."""
        self._close_inputs()
        read: list[TenantEvent] = []
        until = self.seconds + END_SECONDS
        while self._runs and self.seconds < until:
            read += self.read_events(0.05)
        return read

    @property
    def alive(self) -> tuple[Role, ...]:
        """Return the tenants that are still running."""
        return tuple(self._runs)

    def _close_inputs(self) -> None:
        for run in self._runs.values():
            with contextlib.suppress(BrokenPipeError):
                _input(run).close()

    def _notice_end(self, run: _Run) -> None:
        """Report a run that has ended, once all its output has been read."""
        unread = {key.data.role for key in self._selector.get_map().values()}
        if run.role in unread or run.process.poll() is None:
            return
        del self._runs[run.role]
        for pipe in (run.process.stdin, run.process.stdout, run.process.stderr):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        code = run.process.returncode
        if run.role is Role.LATE:
            said = "; ".join(text for role, text in self.remarks if role is Role.LATE)
            event = self._scenario.start_refused(self.seconds, code, said)
        else:
            event = TenantEvent(self.seconds, run.role, EventKind.ENDED, code)
        self._unread.append(event)

    def _take_lines(self, run: _Run, text: bytes) -> bytes:
        *lines, rest = text.split(b"\n")
        for line in lines:
            event = parse(self.seconds, run.role, line, self._began)
            if event.kind is EventKind.START:
                self.pids[run.role].append(event.pid)
            self._unread.append(event)
        return rest

    def _take_remarks(self, run: _Run, text: bytes) -> bytes:
        *lines, rest = text.split(b"\n")
        for line in lines:
            said = line.decode("utf-8", "replace")[:_REMARK]
            self.remarks.append((run.role, said))
        return rest


def parse(seconds: float, role: Role, line: bytes, began: float = 0.0) -> TenantEvent:
    """Parse the event in one *line* of a tenant, read at *seconds* since *began*.

    If the line has its own timestamp, that counts.
    """
    try:
        found = json.loads(line)
        kind = EventKind(found["event"])
        call = f"{found['call']} returned " if kind is EventKind.FAILED else ""
        return TenantEvent(
            float(found["at"]) - began if "at" in found else seconds,
            role,
            kind,
            number=int(found.get("wrong", found.get("result", found.get("kernels", 0)))),
            size=int(found.get("bytes", found.get("total", 0))),
            free=int(found.get("free", 0)),
            pid=int(found.get("pid", 0)),
            text=call + str(found.get("name", "")),
            ns=int(found.get("ns", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        shown = line.decode("utf-8", "replace")[:_REMARK]
        raise errors.DataError(f"{role}: sent a line that is not an event: {shown}") from exc


def _command() -> str:
    """Return the path of the command `pyvgpu` of this installation."""
    scripts = sysconfig.get_path("scripts")
    found = shutil.which("pyvgpu", path=scripts) or shutil.which("pyvgpu")
    if not found:
        raise errors.UnavailableError(
            f"the command pyvgpu is neither in {scripts} nor in PATH; install pyvgpu again"
        )
    return found


def _input(run: _Run) -> IO[bytes]:
    if run.process.stdin is None:
        raise BrokenPipeError
    return run.process.stdin
