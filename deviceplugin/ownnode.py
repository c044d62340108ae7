"""The node as the API server has it: read once for all who follow it, and only its metadata."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from pyvgpu.deviceplugin import apiserver

if TYPE_CHECKING:
    from collections.abc import Mapping


class OwnNode:
    """One node; may be asked by several threads."""

    def __init__(self, api: apiserver.ApiServer, name: str) -> None:
        self.api = api
        self.name = name
        self._path = f"/api/v1/nodes/{name}"
        self._reading = threading.Lock()
        self._read: dict[str, Any] = {}
        self._read_at: float | None = None  # seconds of a clock that never goes back

    def metadata(self, seconds: float = 0.0) -> dict[str, Any]:
        """Return its metadata, as the server remembered it at most *seconds* ago.

        ServerError if it does not say.
        """
        begun = time.monotonic()
        with self._reading:
            if self._read_at is None or begun - self._read_at > seconds:
                # What the server remembers is new enough, and costs it nothing.
                query = {"resourceVersion": "0"}
                found = self.api.call("GET", self._path, query, accept=apiserver.METADATA)
                self._read, self._read_at = found["metadata"], time.monotonic()
            return self._read

    def write(self, metadata: Mapping[str, Any]) -> None:
        """Let its metadata have this, too; ServerError if it has not."""
        body = {"metadata": metadata}
        self.api.call("PATCH", self._path, body=body, kind=apiserver.MERGE, again=True)
