"""The ids of a resource that a device plugin advertises to kubelet."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pyvgpu._api import device_plugin_pb2 as api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyvgpu.deviceplugin.kubelet import device_ids

_HEALTHY, _UNHEALTHY = "Healthy", "Unhealthy"


class Offer:
    """The ids of a resource that kubelet sees; ListAndWatch streams send only changes."""

    def __init__(self, resource: device_ids.Resource, count: int = 0) -> None:
        self.resource = resource
        self._everything = resource.ids(count)
        self._changed = threading.Condition()
        self._unhealthy = frozenset[str]()
        self._version = 1
        self._content: api.ListAndWatchResponse | None = None

    @property
    def everything(self) -> tuple[str, ...]:
        """All ids, healthy or not."""
        return self._everything

    @property
    def unhealthy(self) -> frozenset[str]:
        """The ids that kubelet must not allocate."""
        return self._unhealthy

    def set(self, count: int, unhealthy: frozenset[str] = frozenset()) -> None:
        """Advertise *count* ids, of which those *unhealthy* cannot be allocated."""
        everything = self._everything
        self.show(everything if len(everything) == count else self.resource.ids(count), unhealthy)

    def show(self, everything: tuple[str, ...], unhealthy: frozenset[str]) -> None:
        """Advertise the ids *everything*, of which those *unhealthy* cannot be allocated."""
        with self._changed:
            if (self._everything, self._unhealthy) == (everything, unhealthy):
                return
            self._everything = everything
            self._unhealthy = unhealthy
            self._version += 1
            self._content = None
            self._changed.notify_all()

    def wake(self) -> None:
        """Make the ListAndWatch streams check whether they are still active."""
        with self._changed:
            self._changed.notify_all()

    def changes(self, goes_on: Callable[[], bool]) -> Iterator[api.ListAndWatchResponse]:
        """Yield the current list, and again after each change, while *goes_on* is true."""
        seen = 0
        while True:
            with self._changed:
                while goes_on() and seen == self._version:
                    self._changed.wait()
                if not goes_on():
                    return
                if self._content is None:
                    self._content = _listing(self._everything, self._unhealthy)
                seen, content = self._version, self._content
            yield content


def _listing(everything: tuple[str, ...], unhealthy: frozenset[str]) -> api.ListAndWatchResponse:
    answer = api.ListAndWatchResponse()
    for device_id in everything:
        answer.devices.add(id=device_id, health=_UNHEALTHY if device_id in unhealthy else _HEALTHY)
    return answer
