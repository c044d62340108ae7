"""The node as the API server has it: read once for all of its followers.

Mostly its metadata alone, since the whole object, with the names of all images on the node, is
many times as long. The rest is read again only when the metadata has another resourceVersion.
"""

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
        self._capacity: tuple[object, Mapping[str, Any]] | None = None  # and its resourceVersion

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

    @property
    def uid(self) -> str:
        """Its uid, as the server said last; empty: it has not said any."""
        return str(self._read.get("uid", ""))

    def capacity(self, seconds: float = 0.0) -> Mapping[str, Any]:
        """Return what kubelet counts on it, as the server remembered it at most *seconds* ago.

        ServerError if it does not say.
        """
        version = self.metadata(seconds).get("resourceVersion", "")
        with self._reading:
            if self._capacity is None or self._capacity[0] != version:
                found = self.api.call("GET", self._path, {"resourceVersion": "0"})
                counted = (found.get("status") or {}).get("capacity") or {}
                self._capacity = found["metadata"].get("resourceVersion"), counted
            return self._capacity[1]

    def write(self, metadata: Mapping[str, Any]) -> None:
        """Let its metadata have this, too; ServerError if it has not."""
        body = {"metadata": metadata}
        self.api.call("PATCH", self._path, body=body, kind=apiserver.MERGE, again=True)
