"""Register the device plugins with kubelet, and again after each restart of kubelet.

At its start kubelet silently removes all sockets from the folder, ours included, then creates its
own, and knows no plugin until that registers again. So the folder is watched, and if kubelet's
socket was replaced, ours is gone or does not respond, or kubelet's ListAndWatch stream has ended,
the plugins are served and registered again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from typing import TYPE_CHECKING

import grpc

from pyvgpu import errors, locks
from pyvgpu._api import device_plugin_pb2 as api
from pyvgpu._api import device_plugin_pb2_grpc as api_grpc
from pyvgpu.deviceplugin import grpc_socket
from pyvgpu.deviceplugin.plugin import plugin_server
from pyvgpu.volumes import folder_watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

KUBELET_SOCKET = "kubelet.sock"

_VERSION = "v1beta1"
_LOCK = "pyvgpu.lock"
# Timeout of Register, during which kubelet calls the plugin back: the first, since a kubelet that
# is just starting may not answer at all; and the longest.
_FIRST_SECONDS, _MOST_SECONDS = 1.0, 8.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # between attempts
_POLL_SECONDS = 60.0  # between two polls while nothing in the folder changes


class RegistrationRetries:
    """Timeout and backoff of registration attempts, reset for each kubelet."""

    def __init__(self) -> None:
        self._kubelet: object = None
        self.meet(None)

    def meet(self, kubelet: object) -> None:
        """Reset if this is not the last kubelet, whose failures it does not share."""
        if kubelet is None or kubelet != self._kubelet:
            self._kubelet, self.seconds, self._pause = kubelet, _FIRST_SECONDS, _FIRST_PAUSE

    def lose(self) -> float:
        """Return the seconds until the next attempt after a failure, and back off."""
        pause = self._pause
        self._pause = min(2 * pause, _LONGEST_PAUSE)
        self.seconds = min(2 * self.seconds, _MOST_SECONDS)
        return pause


class Registrar:
    """Keeps *plugins* registered with the kubelet of a folder, on the thread of :meth:`run`."""

    def __init__(
        self, folder: Path, plugins: Sequence[plugin_server.Plugin], lock: str = _LOCK
    ) -> None:
        self._folder = folder
        self._lock = folder / lock  # held by the process that serves this kubelet
        self._plugins = plugins
        self._watch = folder_watch.FolderWatch()
        self._stopped = False
        self._known: object = None
        self._problem = "kubelet has not been seen yet"
        self._retries = RegistrationRetries()
        self._ask_again = 0.0  # when to probe the servers next, by time.monotonic
        for plugin in plugins:
            plugin.left.add(self._wake)

    def run(self) -> None:
        """Keep registered until :meth:`stop`; then stop serving.

        UnavailableError if another agent does so here: they would displace each other.
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
                    f"{self._folder}: another agent serves this kubelet; stop one of them"
                )
            yield
        finally:
            os.close(file)

    def _run(self) -> None:
        with self._watch:
            while not self._stopped:
                self._watch.watch([self._folder])
                self._watch.wait(_POLL_SECONDS if self._poll() else self._retries.lose())
            for plugin in self._plugins:
                plugin.stop()

    def _wake(self) -> None:
        if not self._stopped:  # else the watch is closed, or about to be
            self._watch.wake()

    @property
    def trouble(self) -> str:
        """Why the plugins are not registered now; empty if they are."""
        return self._problem

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._stopped = True
        self._watch.wake()

    def _poll(self) -> bool:
        """Register where necessary; false if that failed."""
        path = self._folder / KUBELET_SOCKET
        try:
            found = path.lstat()
        except OSError:
            self._known = None
            self._problem = f"{path}: kubelet does not listen there"
            self._retries.meet(None)
            return True
        seen = (found.st_dev, found.st_ino, found.st_ctime_ns)
        self._retries.meet(seen)
        # Kubelet writes into this folder at each Allocate, which is no reason to probe servers.
        due = time.monotonic() >= self._ask_again
        wanting = [
            plugin
            for plugin in self._plugins
            if seen != self._known
            or plugin.is_left
            or not (plugin.serves() if due else plugin.is_in_place())
        ]
        if due:
            self._ask_again = time.monotonic() + _POLL_SECONDS
        try:
            if wanting:
                _check_listening(path)
            for plugin in wanting:
                if not plugin.serves():
                    plugin.serve()
                plugin.expect()
                _register(path, plugin, self._retries.seconds)
        except errors.UnavailableError as exc:
            if str(exc) != self._problem:
                log.warning("not registered: %s", exc)
                self._problem = str(exc)
            self._known = None
            return False
        self._known, self._problem = seen, ""
        self._retries.meet(None)
        return True


def _check_listening(path: Path) -> None:
    """Check that kubelet listens; UnavailableError if it does not.

    At its start kubelet removes all sockets that it finds before it listens. It would remove one
    that is created meanwhile, and then try for a long time to connect to it.
    """
    with socket.socket(socket.AF_UNIX) as ours:
        ours.settimeout(_FIRST_SECONDS)
        try:
            ours.connect(str(path))
        except OSError as exc:
            raise errors.UnavailableError(f"{path}: kubelet does not listen there") from exc


def _register(path: Path, plugin: plugin_server.Plugin, seconds: float) -> None:
    """Register a plugin with kubelet; UnavailableError if that fails or times out."""
    request = api.RegisterRequest(
        version=_VERSION,
        endpoint=plugin.socket.name,
        resource_name=plugin.resource.name,
        options=plugin_server.OPTIONS,
    )
    try:
        with grpc_socket.channel(path) as channel:
            api_grpc.RegistrationStub(channel).Register(request, timeout=seconds)
    except grpc.RpcError as exc:
        raise errors.UnavailableError(
            f"{path}: kubelet did not register {plugin.resource.name}: {exc.details()}"
        ) from exc
    log.info("registered %s with kubelet", plugin.resource.name)
