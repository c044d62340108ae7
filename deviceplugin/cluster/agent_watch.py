"""An API server watch as a component of the agent, which stops with the agent."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic

from pyvgpu.kube import informer

if TYPE_CHECKING:
    from pyvgpu.kube import apiserver


class Watching(Generic[informer.Kept]):
    """Runs *seen*, an informer of *api*; thread-safe."""

    def __init__(self, api: apiserver.ApiServer, seen: informer.Informer[informer.Kept]) -> None:
        self.api = api
        self._seen = seen
        self._stopped = threading.Event()

    def sync(self) -> None:
        """Read the list now; ServerError if that fails."""
        self._seen.sync()

    def run(self) -> None:
        """Watch until :meth:`stop`."""
        self._seen.run(self._stopped)

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._stopped.set()
        self.api.end_watches()
