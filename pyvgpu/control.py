"""Change the quota of a run that lives: by asking its supervisor, which alone writes it.

The supervisor listens on a socket in the folder of the run's promise. A question is one packet,
a quota.Change as JSON, and so is the answer: the share as it is now, or why it stays as it was.
Only the run's own user, and root, are answered.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any, Self

from pyvgpu import errors, log, names, quota

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyvgpu.promises import Promise
    from pyvgpu.share import Share

PATIENCE_SECONDS = 1.0  # for somebody who has connected and asks nothing
ANSWER_SECONDS = 15.0  # longer than the lock of the book is waited for
_LONGEST = 4096  # bytes of a packet
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """What a run is held to after it was asked about."""

    vcore: int
    vcore_limit: int
    vmemory: int  # bytes
    policy: quota.Policy
    device: str


class Control:
    """The supervisor's end: answers from a thread of its own until it is stopped."""

    def __init__(self, folder: Path, change: Callable[[quota.Change], Share]) -> None:
        self._folder = folder
        self._change = change
        self._stopped = False
        self._changing = threading.Lock()
        self._listener: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Begin to answer; OSError if the socket cannot be made."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with _short_path(self._folder) as path:
                listener.bind(path)
                os.chmod(path, 0o600)  # noqa: PTH101 - before anybody can connect
            listener.listen()
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self._thread.start()

    def stop(self) -> None:
        """Change nothing from here on. Harmless if it was never started."""
        with self._changing:
            self._stopped = True
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
            self._thread.join(PATIENCE_SECONDS)
            self._listener.close()

    def _run(self) -> None:
        listener = self._listener
        while listener is not None:
            try:
                connection, _ = listener.accept()
            except OSError:  # it was stopped
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(PATIENCE_SECONDS)
                while question := connection.recv(_LONGEST):
                    connection.send(json.dumps(self._answer(connection, question)).encode())

    def _answer(self, connection: socket.socket, question: bytes) -> dict[str, object]:
        try:
            uid = _peer(connection)
            if uid not in (0, os.geteuid()):
                raise errors.PermissionDeniedError(
                    f"user {uid} may not change a run of user {os.geteuid()}"
                )
            wanted = _parse_change(question)
            with self._changing:
                if self._stopped:
                    raise errors.UnavailableError("the run has just ended")
                share = self._change(wanted)
        except errors.PyVgpuError as exc:
            return {"error": str(exc), "code": exc.exit_code}
        except OSError as exc:
            code = errors.UnavailableError.exit_code
            return {"error": f"the quota cannot be written: {exc}", "code": code}
        held = Held(
            share.vcore, share.vcore_limit, share.vmemory, share.policy, share.device.label
        )
        return dataclasses.asdict(held)


class Supervisor:
    """The asker's end: the supervisor of one run; to be used in a with statement."""

    def __init__(self, promise: Promise) -> None:
        self._promise = promise
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER_SECONDS)

    def __enter__(self) -> Self:
        try:
            with _short_path(self._promise.folder) as path:
                self._socket.connect(path)
        except OSError as exc:
            self._socket.close()
            raise self._explained(exc) from exc
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def change(self, wanted: quota.Change) -> Held:
        """Ask for another quota; return what holds now, or raise why the old one stays."""
        try:
            self._socket.send(json.dumps(dataclasses.asdict(wanted)).encode())
            answer = self._socket.recv(_LONGEST)
        except OSError as exc:
            raise self._explained(exc) from exc
        if not answer:
            raise self._explained(ConnectionResetError())
        return self._parse(answer)

    def _parse(self, answer: bytes) -> Held:
        try:
            found = json.loads(answer)
            if "error" in found:
                kinds = {kind.exit_code: kind for kind in errors.PyVgpuError.__subclasses__()}
                kind = kinds.get(found["code"], errors.PyVgpuError)
                raise kind(log.printable(found["error"]))
            return Held(
                vcore=int(found["vcore"]),
                vcore_limit=int(found["vcore_limit"]),
                vmemory=int(found["vmemory"]),
                policy=quota.Policy(found["policy"]),
                device=log.printable(found["device"]),
            )
        except (ValueError, KeyError, TypeError) as exc:
            raise errors.DataError(f"{self._name}: gave no answer of a supervisor") from exc

    @property
    def _name(self) -> str:
        return self._promise.holder.name

    def _explained(self, exc: OSError) -> errors.PyVgpuError:
        pid = self._promise.holder.pid
        if isinstance(exc, TimeoutError):
            return errors.UnavailableError(
                f"{self._name}: its `pyvgpu run` does not answer; if it was stopped, "
                f"`kill -CONT {pid}` lets it go on"
            )
        if isinstance(exc, PermissionError):
            return errors.PermissionDeniedError(
                f"{self._name}: is a run of user {self._promise.uid}, which only that user and "
                "root may change"
            )
        return errors.UnavailableError(
            f"{self._name}: its `pyvgpu run` (pid {pid}) has ended, or takes no changes: "
            f"{exc.strerror or 'the connection was lost'}"
        )


def find(name: str, live: Sequence[Promise], option: str = "NAME") -> Promise:
    """Return the run that is called *name*, one's own before those of others."""
    named = [promise for promise in live if promise.holder.name == name]
    own = [promise for promise in named if promise.uid == os.geteuid()] or named
    if len(own) == 1:
        return own[0]
    if own:
        owners = ", ".join(str(promise.uid) for promise in own)
        raise errors.DataError(f"{option} {name!r}: is what users {owners} call a run each")
    known = ", ".join(sorted(promise.holder.name for promise in live))
    raise errors.UsageError(
        f"{option} {name!r}: no run is called that; "
        + (f"valid: {known}" if known else "none lives (`pyvgpu ps` lists them)")
    )


def _parse_change(question: bytes) -> quota.Change:
    """Return the change that was asked for; what is no valid quota is found by who makes it."""
    try:
        found = json.loads(question)
        fields = {field.name: found.get(field.name) for field in dataclasses.fields(quota.Change)}
        if any(value is not None and type(value) is not int for value in fields.values()):
            raise TypeError("not a whole number")
        policy = fields.pop("policy")
        return quota.Change(policy=None if policy is None else quota.Policy(policy), **fields)
    except (ValueError, AttributeError, TypeError, RecursionError) as exc:
        raise errors.DataError(f"this is no change of a quota: {exc}") from exc


def _peer(connection: socket.socket) -> int:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    found: tuple[Any, ...] = _CREDENTIALS.unpack(raw)
    return int(found[1])


@contextlib.contextmanager
def _short_path(folder: Path) -> Any:
    """Yield a path of the socket in *folder* that fits into an address, which has 108 bytes."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield f"/proc/self/fd/{descriptor}/{names.CONTROL_SOCKET}"
    finally:
        os.close(descriptor)
