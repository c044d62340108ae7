"""Local IPC between our programs: JSON requests and responses over a Unix socket in a folder.

A packet is one JSON object. The listener authorizes a client by its user id, which the kernel
provides. A response is a document, or an error, which the client then raises.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from pyvgpu import errors, log, names
from pyvgpu.machine import users

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    Answer = Callable[[Mapping[str, Any]], Mapping[str, object]]

TIMEOUT_SECONDS = 1.0  # for a client that has connected and sends nothing
_LONGEST = 4096  # bytes of a request
_LONGEST_ANSWER = 1 << 16  # a response may repeat the request, with six letters for one
_PAUSE_SECONDS = 0.1  # after a failed accept
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class Listener:
    """Answers our own user and root, in its own thread, until it is stopped."""

    def __init__(self, folder: Path, what: str, answer: Answer) -> None:
        self._folder = folder
        self._what = what  # the name of what others may not change, for the message
        self._answer = answer
        self._stopped = False
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Start answering; OSError if the socket cannot be created."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with _short_path(self._folder) as path:
                listener.bind(path)
                os.chmod(path, 0o600)  # noqa: PTH101 - before any client can connect
            listener.listen()
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self._thread.start()

    def stop(self) -> None:
        """Stop answering. Harmless if it was never started."""
        with self._lock:
            self._stopped = True
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
            self._thread.join(TIMEOUT_SECONDS)
            self._listener.close()

    def _run(self) -> None:
        listener = self._listener
        while listener is not None:
            try:
                connection, _ = listener.accept()
            except OSError:
                if self._stopped:
                    return
                time.sleep(_PAUSE_SECONDS)  # such as while too many files are open
                continue
            with connection, contextlib.suppress(OSError):
                connection.settimeout(TIMEOUT_SECONDS)
                while question := connection.recv(_LONGEST):
                    connection.send(json.dumps(self._answered(connection, question)).encode())

    def _answered(self, connection: socket.socket, question: bytes) -> Mapping[str, object]:
        try:
            uid = _peer(connection)
            if uid not in (0, os.geteuid()):
                raise errors.PermissionDeniedError(
                    f"user {users.name(uid)} may not change {self._what} of user "
                    f"{users.name(os.geteuid())}"
                )
            wanted = _parse(question)
            with self._lock:
                if self._stopped:
                    raise errors.UnavailableError("it has just ended")
                return self._answer(wanted)
        except errors.PyVgpuError as exc:
            return {"error": str(exc), "code": exc.exit_code}
        except OSError as exc:
            code = errors.UnavailableError.exit_code
            return {"error": f"it cannot be written: {errors.reason_of(exc)}", "code": code}
        except Exception:
            logging.getLogger(__name__).exception("could not answer %r", question)
            return {"error": "internal error, see the log", "code": errors.PyVgpuError.exit_code}


class Asker:
    """A client of a folder's listener; to be used in a with statement. OSError without one."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(seconds)

    def __enter__(self) -> Self:
        try:
            with _short_path(self._folder) as path:
                self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, question: Mapping[str, object]) -> dict[str, Any]:
        """Return the response to *question*; raises the error that it contains, or DataError."""
        return self.exchange(json.dumps(question).encode())

    def exchange(self, packet: bytes) -> dict[str, Any]:
        """Like :meth:`ask`, with an encoded packet."""
        self._socket.send(packet)
        answer = self._socket.recv(_LONGEST_ANSWER)
        if not answer:
            raise ConnectionResetError
        found = _parse(answer)
        if "error" in found:
            kinds = {kind.exit_code: kind for kind in errors.PyVgpuError.__subclasses__()}
            raise kinds.get(found.get("code", 0), errors.PyVgpuError)(
                log.printable(found["error"])
            )
        return found


def _parse(packet: bytes) -> dict[str, Any]:
    try:
        found = json.loads(packet)
        if type(found) is not dict:
            raise TypeError("not an object")
        return found
    except (ValueError, TypeError, RecursionError) as exc:
        raise errors.DataError(f"not a valid packet: {exc}") from exc


def _peer(connection: socket.socket) -> int:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    found: tuple[Any, ...] = _CREDENTIALS.unpack(raw)
    return int(found[1])


@contextlib.contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """Yield a path of the socket in *folder* that fits into a socket address (108 bytes)."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield f"/proc/self/fd/{descriptor}/{names.CONTROL_SOCKET}"
    finally:
        os.close(descriptor)
