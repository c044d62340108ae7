"""The ids of a resource that a device plugin advertises to kubelet."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pyvgpu._api import device_plugin_pb2 as api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyvgpu.deviceplugin.kubelet import device_ids

_HEALTHY, _UNHEALTHY = "Healthy", "Unhealthy"


class Offer:
    """The ids of a resource that kubelet sees; ListAndWatch streams send only changes."""

    def __init__(self, resource: device_ids.Resource, count: int = 0) -> None:
        self.resource = resource
        self._everything = resource.ids(count)
        self._changed = threading.Condition()
        self._unhealthy = frozenset[str]()
        self._numa: Mapping[str, int] = {}
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

    @property
    def numa(self) -> Mapping[str, int]:
        """The NUMA nodes of the ids; empty: unknown, or all on one."""
        return self._numa

    def set(
        self,
        count: int,
        unhealthy: frozenset[str] = frozenset(),
        numa: Mapping[str, int] | None = None,
    ) -> None:
        """Advertise *count* ids, of which those *unhealthy* cannot be allocated.

        *numa* are the NUMA nodes of ids, of which all, or none, have one.
        """
        everything = self._everything
        if len(everything) != count:
            everything = self.resource.ids(count)
        self.show(everything, unhealthy, numa)

    def show(
        self,
        everything: tuple[str, ...],
        unhealthy: frozenset[str],
        numa: Mapping[str, int] | None = None,
    ) -> None:
        """Advertise the ids *everything*, of which those *unhealthy* cannot be allocated."""
        numa = numa or {}
        with self._changed:
            if (self._everything, self._unhealthy, self._numa) == (everything, unhealthy, numa):
                return
            self._everything = everything
            self._unhealthy = unhealthy
            self._numa = numa
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
                    self._content = _listing(self._everything, self._unhealthy, self._numa)
                seen, content = self._version, self._content
            yield content


def _listing(
    everything: tuple[str, ...], unhealthy: frozenset[str], numa: Mapping[str, int]
) -> api.ListAndWatchResponse:
    answer = api.ListAndWatchResponse()
    for device_id in everything:
        made = answer.devices.add(
            id=device_id, health=_UNHEALTHY if device_id in unhealthy else _HEALTHY
        )
        if device_id in numa:
            made.topology.nodes.add(id=numa[device_id])
    return answer
