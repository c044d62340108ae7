"""Makes the plugins known to kubelet, and again whenever another kubelet listens.

A kubelet that starts removes all sockets from the folder, ours too, and then makes its own; nobody
tells us. It forgets what it knew of a plugin until that registers. So the folder is watched, and
where kubelet's socket is another, ours is gone or answers no more, or kubelet does not listen any
more, it is all done again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from typing import TYPE_CHECKING

import grpc

from pyvgpu import errors, grpcsocket, locks
from pyvgpu._api import device_plugin_pb2 as api
from pyvgpu._api import device_plugin_pb2_grpc as api_grpc
from pyvgpu.deviceplugin import service
from pyvgpu.volumes import watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

KUBELET_SOCKET = "kubelet.sock"

_VERSION = "v1beta1"
_LOCK = "pyvgpu.lock"
# For kubelet to answer, which calls us back meanwhile: first, as one that has just begun may not
# answer at all; and at most.
_FIRST_SECONDS, _MOST_SECONDS = 1.0, 8.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # between attempts
_LOOK_SECONDS = 60.0  # nothing has to be looked for when nothing changes


class Patience:
    """How long an answer is waited for, and when it is asked again: for each kubelet anew."""

    def __init__(self) -> None:
        self._kubelet: object = None
        self.meet(None)

    def meet(self, kubelet: object) -> None:
        """Begin anew if this is another than the last, whose faults are not its own."""
        if kubelet is None or kubelet != self._kubelet:
            self._kubelet, self.seconds, self._pause = kubelet, _FIRST_SECONDS, _FIRST_PAUSE

    def lose(self) -> float:
        """Return after how many seconds to ask again one that has not answered."""
        pause = self._pause
        self._pause = min(2 * pause, _LONGEST_PAUSE)
        self.seconds = min(2 * self.seconds, _MOST_SECONDS)
        return pause


class Registrar:
    """Keeps *plugins* registered with the kubelet of a folder, from whichever thread runs it."""

    def __init__(self, folder: Path, plugins: Sequence[service.Plugin], lock: str = _LOCK) -> None:
        self._folder = folder
        self._lock = folder / lock  # held by the one who serves this kubelet so
        self._plugins = plugins
        self._watch = watch.Watch()
        self._stopped = False
        self._known: object = None
        self._complaint = "kubelet has not been seen yet"
        self._patience = Patience()
        self._ask_again = 0.0  # when the servers are asked whether they answer, by time.monotonic
        for plugin in plugins:
            plugin.tell_left = self._watch.wake

    def run(self) -> None:
        """Register until :meth:`stop`; then serve no more.

        UnavailableError if another agent does so here: each would take kubelet from the other.
        """
        with self._alone():
            self._run()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        path = self._lock
        try:
            self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as exc:
            raise errors.UnavailableError(f"{path}: {exc.strerror}") from exc
        try:
            if not locks.take(file, 0):
                raise errors.UnavailableError(
                    f"{self._folder}: another one serves this kubelet here; one is enough"
                )
            yield
        finally:
            os.close(file)

    def _run(self) -> None:
        with self._watch:
            while not self._stopped:
                self._watch.watch([self._folder])
                self._watch.wait(_LOOK_SECONDS if self._look() else self._patience.lose())
            for plugin in self._plugins:
                plugin.tell_left = lambda: None
                plugin.stop()

    @property
    def trouble(self) -> str:
        """Why kubelet does not count on us now; empty if it does."""
        return self._complaint

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._stopped = True
        self._watch.wake()

    def _look(self) -> bool:
        """Register if that is to be done; false if it is, and could not be."""
        path = self._folder / KUBELET_SOCKET
        try:
            found = path.lstat()
        except OSError:
            self._known = None
            self._complaint = f"{path}: kubelet does not listen there"
            self._patience.meet(None)
            return True
        seen = (found.st_dev, found.st_ino, found.st_ctime_ns)
        self._patience.meet(seen)
        # Kubelet writes into this folder at each Allocate, which is no reason to ask the servers.
        due = time.monotonic() >= self._ask_again
        wanting = [
            plugin
            for plugin in self._plugins
            if seen != self._known
            or plugin.is_left
            or not (plugin.serves() if due else plugin.is_in_place())
        ]
        if due:
            self._ask_again = time.monotonic() + _LOOK_SECONDS
        try:
            if wanting:
                _check_listening(path)
            for plugin in wanting:
                if not plugin.serves():
                    plugin.serve()
                plugin.expect()
                _register(path, plugin, self._patience.seconds)
        except errors.UnavailableError as exc:
            if str(exc) != self._complaint:
                log.warning("not registered: %s", exc)
                self._complaint = str(exc)
            self._known = None
            return False
        self._known, self._complaint = seen, ""
        self._patience.meet(None)
        return True


def _check_listening(path: Path) -> None:
    """Be back if somebody listens; UnavailableError if nobody does.

    A kubelet that begins removes all sockets that it has found before it listens. It would remove
    one that is made meanwhile, and then try for long to reach it there.
    """
    with socket.socket(socket.AF_UNIX) as ours:
        ours.settimeout(_FIRST_SECONDS)
        try:
            ours.connect(str(path))
        except OSError as exc:
            raise errors.UnavailableError(f"{path}: kubelet does not listen there") from exc


def _register(path: Path, plugin: service.Plugin, seconds: float) -> None:
    """Tell kubelet of a plugin; UnavailableError if it does not take it in time."""
    request = api.RegisterRequest(
        version=_VERSION,
        endpoint=plugin.socket.name,
        resource_name=plugin.resource.name,
        options=service.OPTIONS,
    )
    try:
        with grpcsocket.channel(path) as channel:
            api_grpc.RegistrationStub(channel).Register(request, timeout=seconds)
    except grpc.RpcError as exc:
        raise errors.UnavailableError(
            f"{path}: kubelet does not take {plugin.resource.name}: {exc.details()}"
        ) from exc
    log.info("registered %s with kubelet", plugin.resource.name)
