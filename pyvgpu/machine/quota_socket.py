"""Change the quota of an active run through its supervisor, the only writer of the quota.

The supervisor listens on a socket in the folder of the run's reservation. A request is one packet,
a quota.QuotaChange as JSON, and so is the response: the new share, or why the old one stays. Only
the run's own user and root get a response.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Self

from pyvgpu import errors, log, quantity, quota, region
from pyvgpu.machine import holders, ipc, users

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyvgpu.machine.holders import ChangedReservation, LiveReservation

SUSPENSION = "suspension"
ANSWER_SECONDS = 15.0  # longer than the timeout of the lock of the reservations


@dataclasses.dataclass(frozen=True, slots=True)
class ChangedQuota:
    """The quota of a run or a container after a change."""

    vcore: int
    vcore_limit: int
    vmemory: int  # bytes
    policy: quota.TimePolicy
    device: str
    vcore_requested: bool = True  # whether vcore was requested
    held: int | None = None  # bytes; None: unknown
    priority: quota.Priority = quota.Priority.NORMAL

    @property
    def text(self) -> str:
        """The line for users."""
        size = quantity.format_exact(self.vmemory)
        rank = self.priority.name.lower()
        named = "" if self.priority is quota.Priority.NORMAL else f", priority {rank}"
        return f"{self._time}{named}, vmemory {size} of {self.device}{self._beyond}"

    @property
    def _time(self) -> str:
        if not self.vcore_requested:
            return "vcore - (no limit, no guarantee)"
        reach = (
            f", elastic to {self.vcore_limit}" if self.policy is quota.TimePolicy.ELASTIC else ""
        )
        return f"vcore {self.vcore}{reach}"

    @property
    def _beyond(self) -> str:
        if self.held is None or self.held <= self.vmemory:
            return ""
        return (
            f"; it holds {quantity.format_size(self.held)}: nothing is reclaimed; new "
            "allocations fail until it holds less than "
            f"{quantity.format_exact(self.vmemory)}, and what it holds stays reserved until then"
        )


class QuotaControl(ipc.Listener):
    """The supervisor's end: answers in its own thread until it is stopped."""

    def __init__(
        self,
        folder: Path,
        change: Callable[[quota.QuotaChange], ChangedReservation],
        suspend: Callable[[Mapping[str, Any]], Mapping[str, object]],
    ) -> None:
        """*suspend* answers requests that have the key SUSPENSION, of run/suspend_socket.py."""

        def answer(question: Mapping[str, Any]) -> Mapping[str, object]:
            if SUSPENSION in question:
                return suspend(question)
            changed = change(parse_change(question))
            share = changed.made.share
            held = ChangedQuota(
                share.vcore,
                share.vcore_limit,
                share.vmemory,
                share.policy,
                share.device.label,
                changed.requested_vcore > 0,
                changed.held,
                share.priority,
            )
            return dataclasses.asdict(held)

        super().__init__(folder, "a run", answer)


class Supervisor:
    """The client's end of one run's supervisor; to be used in a with statement."""

    def __init__(self, reservation: LiveReservation) -> None:
        self._reservation = reservation
        self._asker = ipc.Asker(reservation.folder, ANSWER_SECONDS)

    def __enter__(self) -> Self:
        try:
            self._asker.__enter__()
        except OSError as exc:
            raise self._explained(exc) from exc
        return self

    def __exit__(self, *_: object) -> None:
        self._asker.__exit__()

    def change(self, wanted: quota.QuotaChange) -> ChangedQuota:
        """Request another quota; return the new one, or raise why the old one stays."""
        try:
            found = self._asker.ask(dataclasses.asdict(wanted))
        except OSError as exc:
            raise self._explained(exc) from exc
        try:
            return ChangedQuota(
                vcore=int(found["vcore"]),
                vcore_limit=int(found["vcore_limit"]),
                vmemory=int(found["vmemory"]),
                policy=quota.TimePolicy(found["policy"]),
                device=log.printable(found["device"]),
                # A supervisor from before an upgrade does not send these.
                vcore_requested=bool(found.get("vcore_requested", True)),
                held=None if found.get("held") is None else int(found["held"]),
                priority=quota.Priority(found.get("priority", quota.Priority.NORMAL)),
            )
        except (ValueError, KeyError, TypeError) as exc:
            raise errors.DataError(f"{self._name}: sent an invalid response") from exc

    def ask(self, question: Mapping[str, object]) -> dict[str, Any]:
        """Return the response to another *question*, or raise the error that it contains."""
        try:
            return self._asker.ask(question)
        except OSError as exc:
            raise self._explained(exc) from exc

    @property
    def _name(self) -> str:
        return self._reservation.name

    def _explained(self, exc: OSError) -> errors.PyVgpuError:
        pid = self._reservation.holder.pid
        record = self._reservation.record
        if isinstance(exc, TimeoutError):
            return errors.UnavailableError(
                f"{self._name}: its `pyvgpu run` does not answer; if it was stopped, "
                f"`kill -CONT {pid}` resumes it"
            )
        if isinstance(exc, PermissionError):
            return errors.PermissionDeniedError(
                f"{self._name}: is a run of user {users.name(self._reservation.uid)}, which only "
                "that user and root may change"
            )
        if self._has_ended(exc):
            return errors.UnavailableError(f"{self._name}: its `pyvgpu run` (pid {pid}) has ended")
        if record is not None and record.is_new:
            return errors.UnavailableError(
                f"{self._name}: has not started yet: it waits for room; `kill {pid}` ends the wait"
            )
        return errors.UnavailableError(
            f"{self._name}: its `pyvgpu run` (pid {pid}) is just starting, or accepts no changes: "
            f"{exc.strerror}; try again"
        )

    def _has_ended(self, exc: OSError) -> bool:
        """Return whether the supervisor is dead, or has closed its socket, which is its end."""
        if not isinstance(exc, FileNotFoundError):
            return isinstance(exc, ConnectionError)
        try:
            folder = os.open(self._reservation.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            return not region.is_supervised(folder)
        finally:
            os.close(folder)


def named(name: str, live: Sequence[LiveReservation]) -> LiveReservation | None:
    """Return the run called *name*, None if there is none.

    RUN is a run of the caller, USER/RUN one of that user; each user may have one of a name. RUN
    is also another user's, if no other run is called that.
    """
    user, _, run = name.rpartition("/")
    candidates = [reservation for reservation in live if reservation.holder.name == run]
    if user:
        candidates = [
            reservation
            for reservation in candidates
            if user in (users.name(reservation.uid), str(reservation.uid))
        ]
    own = [reservation for reservation in candidates if reservation.uid == os.geteuid()]
    return (own or candidates)[0] if len(own or candidates) == 1 else None


def find(name: str, live: Sequence[LiveReservation], option: str = "RUN") -> LiveReservation:
    """Return the run called *name*: the caller's own, or USER/RUN; UsageError if none is."""
    holders.check_name(name.rpartition("/")[2], option)
    found = named(name, live)
    if found is not None:
        return found
    known = ", ".join(sorted(reservation.name for reservation in live))
    raise errors.UsageError(
        f"{option} {name!r}: no run is called that; "
        + (f"valid: {known}" if known else "none is active (`pyvgpu ps` lists them)")
    )


def parse_change(found: Mapping[str, Any]) -> quota.QuotaChange:
    """Return the requested change; quota.Quota validates the values later."""
    try:
        fields = {
            field.name: found.get(field.name) for field in dataclasses.fields(quota.QuotaChange)
        }
        if any(value is not None and type(value) is not int for value in fields.values()):
            raise TypeError("not a whole number")
        policy, priority = fields.pop("policy"), fields.pop("priority")
        return quota.QuotaChange(
            policy=None if policy is None else quota.TimePolicy(policy),
            priority=None if priority is None else quota.Priority(priority),
            **fields,
        )
    except (ValueError, TypeError) as exc:
        raise errors.DataError(f"not a change of a quota: {exc}") from exc
