"""The JSON document of one machine's status page: the runs of all users. Pure.

It has the format of a node's document (``pyvgpu.deviceplugin.telemetry.status``), with runs in
place of containers. It contains no command lines: every user who can connect reads the page.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

from pyvgpu.machine import users
from pyvgpu.status import documents, history, states

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyvgpu.run.runs import DeviceView, RunShare

HOLDER = "run"
_LINES = ("used", "memoryMiB")  # names of the first values of a point in the document
_MIB = 1 << 20

Key = tuple[str, ...]  # a device, or a run and a device


class _RunPoint(NamedTuple):
    """A sample of a run on one device."""

    used: int  # thousandths of the device's time
    memory_mib: int
    waited: int  # thousandths of the time for which launches were throttled
    refused: int  # allocations since the run began


class MachinePage:
    """Keeps the recent usage of a machine's devices and runs."""

    def __init__(self, node: str, seconds: float) -> None:
        """*node* is the machine's name; *seconds* the time between samples."""
        self._node = node
        self._seconds = seconds
        self._recent: history.History[Key] = history.History()
        self._days = history.DayHistory()
        self._document = self._render((), 0.0)

    @property
    def document(self) -> dict[str, Any]:
        """The document of the last sample."""
        return self._document

    def add(self, devices: Sequence[DeviceView], now: float) -> None:
        """Add a sample of all devices, taken at *now*, in seconds since the epoch."""
        of_devices = {
            device.uuid: (_thousandths(device.share), device.held // _MIB) for device in devices
        }
        self._days.add(of_devices, now)
        points: dict[Key, history.Values] = {
            (uuid,): values for uuid, values in of_devices.items()
        }
        for device in devices:
            for part in device.parts:
                points[part.run_id, device.uuid] = _RunPoint(
                    _thousandths(part.share),
                    (part.held or 0) // _MIB,
                    _thousandths(part.waited),
                    part.refused,
                )
        self._recent.add(points)
        self._document = self._render(devices, now)

    def _render(self, devices: Sequence[DeviceView], now: float) -> dict[str, Any]:
        found = documents.node(
            self._node,
            now,
            self._seconds,
            [self._device(device) for device in devices],
            problems=_problems(devices),
        )
        return {**found, "holder": HOLDER}

    def _device(self, device: DeviceView) -> dict[str, Any]:
        return {
            "uuid": device.uuid,
            "label": device.name,
            "model": "",
            "state": "healthy",
            "why": "",
            "isolation": "",
            "used": device.share,
            "allocated": device.reserved_vcore / 100,
            "memoryBytes": device.memory_bytes,
            "usedBytes": device.held,
            "allocatedBytes": device.reserved_bytes,
            "lines": self._recent.lines((device.uuid,), _LINES),
            "day": self._days.lines(device.uuid, _LINES),
            "containers": [self._run(part, device.uuid) for part in device.parts],
        }

    def _run(self, part: RunShare, uuid: str) -> dict[str, Any]:
        return {
            "namespace": users.name(part.uid),
            "pod": part.name,
            "container": "",
            "state": self._state(part, uuid).value,
            "isolation": part.isolation.value,
            "allocated": part.requested_vcore / 100,
            "limit": part.limits.vcore_limit / 100,
            "used": part.share,
            "allocatedBytes": part.limits.vmemory,
            "usedBytes": part.held,
            "hostBytes": part.host,
            "waitingSeconds": round(part.waiting),
            "refused": part.refused,
            "processes": len(part.processes),
            "lines": self._recent.lines((part.run_id, uuid), _LINES),
        }

    def _state(self, part: RunShare, uuid: str) -> states.HolderState:
        if part.waiting:
            return states.HolderState.WAITING
        if part.suspension.suspended:
            return states.HolderState.SUSPENDED
        most = 1 + max(1, round(states.EVALUATED_SECONDS / self._seconds))
        recent = self._recent.points((part.run_id, uuid))[-most:]
        first, *later = (_RunPoint(*values) for values in recent)
        if not later:
            return states.state_of(part.requested_vcore / 100, part.share or 0.0, 0.0, 0)
        return states.state_of(
            part.requested_vcore / 100,
            statistics.fmean(point.used for point in later) / 1000,
            statistics.fmean(point.waited for point in later) / 1000,
            later[-1].refused - first.refused,
        )


def _problems(devices: Sequence[DeviceView]) -> Iterator[dict[str, str]]:
    for device in devices:
        for part in device.parts:
            name = f"{users.name(part.uid)}/{part.name}"
            if part.over:
                text = "holds more than its quota: allocations fail until it has freed enough"
                yield documents.problem(name, text)
            if part.tampered:
                yield documents.problem(name, f"its ledger was changed: {part.tampered}")


def _thousandths(ratio: float | None) -> int:
    return round(1000 * (ratio or 0.0))
