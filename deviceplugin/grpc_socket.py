"""gRPC servers and channels on Unix sockets of this node.

A grpcio server unlinks its path when it ends, even if another server's socket is there by then;
and it never reports that it has stopped accepting connections. So a server here listens on a
temporary name, which is then renamed to the path, and calls itself to check that it answers.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import os
import secrets
import socket
import urllib.parse
from typing import TYPE_CHECKING

import grpc

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

RECEIVE_BYTES = 16 << 20  # the default limit for the size of a message

# Concurrent calls, each in a thread while it waits; more are answered RESOURCE_EXHAUSTED. A node
# has 110 pods by default, and kubelet makes one call at a time for each.
_CALLS = 256
_BACKLOG_SECONDS = 5.0  # for our own server to answer us, on a busy node too
# No server has this method: UNIMPLEMENTED is an answer, by the thread that serves all calls.
_UNKNOWN_METHOD = "/pyvgpu.Probe/Answer"


class GrpcServer:
    """Serves the services that *add* registers, on a new socket that replaces any file at *path*.

    OSError if a socket at *path* is not possible. The socket has the mode that the umask leaves,
    and the owner of this process.
    """

    def __init__(self, path: Path, add: Callable[[grpc.Server], None]) -> None:
        self._path = path
        self._pool = concurrent.futures.ThreadPoolExecutor(_CALLS, thread_name_prefix=path.stem)
        self._server = grpc.server(
            self._pool,
            options=[("grpc.max_receive_message_length", RECEIVE_BYTES)],
            maximum_concurrent_rpcs=_CALLS,
        )
        add(self._server)
        # A name that kubelet ignores in a watched folder, and as long as the final one: a path may
        # be too long for a socket.
        draft = path.with_name(f".{secrets.token_hex(len(path.name))[: len(path.name) - 1]}")
        try:
            with socket.socket(socket.AF_UNIX) as trial:  # raises the error that grpcio only logs
                trial.bind(str(draft))
            draft.unlink()
            self._server.add_insecure_port(_target(draft))
            self._server.start()
            draft.rename(path)
        except BaseException as exc:
            self._end()
            draft.unlink(missing_ok=True)
            if isinstance(exc, RuntimeError):  # grpcio's, if it cannot bind or start a thread
                raise OSError(str(exc)) from exc
            raise
        self._inode = _inode(path)

    def is_in_place(self) -> bool:
        """Return whether its socket is still at the path."""
        return self._inode is not None and _inode(self._path) == self._inode

    def serves(self) -> bool:
        """Return whether it is in place and answers a new connection: one call, about 1 ms.

        Without free file descriptors for the call only the former is checked, because a restarted
        server would need even more of them.
        """
        return self.is_in_place() and _answers(self._path)

    def stop(self) -> None:
        """End all calls and stop serving; remove the socket if it is still ours."""
        if self.is_in_place():
            self._path.unlink(missing_ok=True)
        self._end()

    def _end(self) -> None:
        self._server.stop(None).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)


def listen(
    path: Path, add: Callable[[grpc.Server], None], *, folder_mode: int | None = None
) -> GrpcServer:
    """Return a running server that replaces any file at *path*.

    Missing folders are created with *folder_mode*, if it is given. UnavailableError if the server
    cannot listen.
    """
    try:
        if folder_mode is not None:
            path.parent.mkdir(folder_mode, parents=True, exist_ok=True)
        return GrpcServer(path, add)
    except OSError as exc:
        raise errors.UnavailableError(
            f"{path}: cannot listen there: {exc.strerror or exc}"
        ) from exc


@contextlib.contextmanager
def channel(path: Path, *, receive_bytes: int = RECEIVE_BYTES) -> Iterator[grpc.Channel]:
    """Yield a channel with its own connection to the server listening at *path* now."""
    made = grpc.insecure_channel(
        _target(path),
        options=[
            ("grpc.max_receive_message_length", receive_bytes),
            # Otherwise another channel's connection to that path is shared, with its backoff.
            ("grpc.use_local_subchannel_pool", 1),
        ],
    )
    try:
        yield made
    finally:
        made.close()


def _answers(path: Path) -> bool:
    """Return whether a gRPC server answers at *path*; true if we cannot check."""
    try:
        with contextlib.ExitStack() as reserve:  # for both ends, and grpcio's polling
            for _ in range(4):
                reserve.enter_context(socket.socket(socket.AF_UNIX))
    except OSError as exc:
        log.warning("cannot check whether %s answers: %s", path, exc.strerror)
        return True
    with channel(path) as ours:
        try:
            call = ours.unary_unary(
                _UNKNOWN_METHOD, request_serializer=bytes, response_deserializer=bytes
            )
            call(b"", timeout=_BACKLOG_SECONDS)
        except grpc.RpcError as exc:
            return bool(exc.code() is grpc.StatusCode.UNIMPLEMENTED)
    return True


def _target(path: Path) -> str:
    return f"unix:{urllib.parse.quote(str(path))}"


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
