"""Fixed example node for the status page, with every kind of row and state."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from pyvgpu import quota
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.audit import quota_audit
from pyvgpu.deviceplugin.devices.health import ProbeResult
from pyvgpu.deviceplugin.grants import events
from pyvgpu.deviceplugin.telemetry import metric_families, status_history, usage
from pyvgpu.status import site

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyvgpu.http import endpoints

GIB = 1 << 30
MODEL = "NVIDIA H100 80GB HBM3"
NAME = "gpu-node-7"
AT = 1_795_343_520.0  # the time of the page: 2026-11-22, 10:32
SAMPLES = 70  # in the history before that
TROUBLES = (("agent", ""), ("kubelet", ""))  # components, none with an error


@dataclasses.dataclass(frozen=True, slots=True)
class Tenant:
    """A container and its load."""

    name: str  # namespace/pod/container
    device: int
    vcore: int
    vmemory: int  # bytes
    busy: float  # mean fraction of the device's time
    swing: float = 0.0  # amplitude around the mean
    held: float = 0.5  # fraction of its vmemory
    waits: float = 0.0  # fraction of the time in which launches wait for the budget
    refused: int = 0  # allocations refused in the last period
    ceiling: int | None = None  # vcore, for elastic containers
    suspended: bool = False


TENANTS = (
    Tenant("chat/llama-serve-0/server", 0, 60, 48 * GIB, 0.6, 0.02, 0.97, waits=0.4),
    Tenant("chat/embed-7d9c4-x2vkq/embed", 0, 25, 16 * GIB, 0.16, 0.07, 0.52),
    Tenant("lab/notebook-ada/jupyter", 0, 10, 8 * GIB, 0.0, 0.0, 0.08, ceiling=40),
    Tenant("vision/train-resnet-0/trainer", 1, 100, 80 * GIB, 0.94, 0.05, 0.88),
    Tenant("lab/notebook-grace/jupyter", 2, 20, 16 * GIB, 0.0, held=0.6, suspended=True),
    Tenant("vision/segment-5/main", 3, 40, 24 * GIB, 0.21, 0.03, 0.61, waits=0.5),
    Tenant("vision/segment-6/main", 3, 40, 20 * GIB, 0.38, 0.02, 1.0, waits=0.1, refused=4),
)
DEVICES = tuple(
    datatypes.NodeDevice(
        f"GPU-{index:08x}-5b1c-4d2e-9f30-0a1b2c3d4e5f", index, 80 * GIB, model=MODEL, **more
    )
    for index, more in enumerate(
        ({}, {}, {"cordoned": True}, {"unhealthy": "Xid 94 (contained ECC error)"})
    )
)
EVENTS = (
    events.GrantEvent("u4", "vision", "train-resnet-0", "vcore 50 -> 100", events.Reason.RESIZED),
    events.GrantEvent(
        "u5",
        "vision",
        "segment-5",
        "gpu3 does not work: Xid 94 (contained ECC error)",
        events.Reason.DEVICE_UNHEALTHY,
    ),
    events.GrantEvent(
        "u9",
        "lab",
        "sweep-12",
        "no device for 70 vcore and 40GiB: gpu0 has 5 vcore free, gpu1 none; gpu2 is cordoned",
    ),
)


class Node:
    """The agent's data sources, and the recorded history."""

    def __init__(self, tenants: tuple[Tenant, ...] = TENANTS, samples: int = SAMPLES) -> None:
        self.tenants = tenants
        self.at = AT - samples * usage.PERIOD_SECONDS
        self.grants = [_grant(number, tenant) for number, tenant in enumerate(tenants)]
        self._uses: Mapping[str, usage.Use] = {}
        self.recent = status_history.Recent(lambda: self.at)
        self.sources = metric_families.MetricSources(
            grants=lambda: self.grants,
            devices=lambda: DEVICES,
            answers=self._answers,
            use=lambda grant_id, _: self._uses[grant_id],
            findings=lambda: [
                quota_audit.Violation(
                    quota_audit.ViolationKind.NO_SHIM,
                    DEVICES[0].uuid,
                    (4711,),
                    "",
                    "u3",
                    GIB,
                    "process 4711 of lab/notebook-ada/jupyter has no shim on gpu0, 1GiB of it",
                )
            ],
            audits=lambda: True,
        )
        for number in range(samples):
            self.sample(number, samples - 1)
        for minutes, event in zip((8, 4, 1), EVENTS, strict=True):
            self.at = AT - 60 * minutes
            self.recent.add_event(event)
        self.at = AT

    def sample(self, number: int, last: int) -> None:
        """Record sample *number* of 0 to *last*, as the agent does each period."""
        self.at += usage.PERIOD_SECONDS
        self._uses = {
            grant.id: _use(tenant, number, last)
            for grant, tenant in zip(self.grants, self.tenants, strict=True)
        }
        self.recent.poll(self.sources)

    def document(self) -> dict[str, Any]:
        """Return the document of its status page."""
        return self.recent.document(NAME, self.sources, TROUBLES)

    def routes(self) -> dict[str, endpoints.Route]:
        """Return the HTTP routes of its status page."""
        return site.routes(lambda asked: site.answer(asked, self.document()))

    def _answers(self) -> dict[str, ProbeResult]:
        found = {}
        for device in DEVICES:
            own = [
                self._uses[grant.id]
                for grant in self.grants
                if grant.shares[0].uuid == device.uuid
            ]
            held = sum(use.held_bytes for use in own)
            found[device.uuid] = ProbeResult(
                "", held + GIB // 2, min(sum(use.ratio for use in own), 1.0)
            )
        return found


def _grant(number: int, tenant: Tenant) -> grants.Grant:
    namespace, pod, container = tenant.name.split("/")
    return grants.Grant(
        f"{number:016x}",
        frozenset({f"c{number}"}),
        AT - 86400.0,
        grants.Owner(f"u{number}", namespace, pod, container),
        shares=(datatypes.NodeShare(DEVICES[tenant.device].uuid, tenant.vcore, tenant.vmemory),),
        policy=quota.TimePolicy.ELASTIC if tenant.ceiling else quota.TimePolicy.HARD,
        ceiling=tenant.ceiling,
    )


def _use(tenant: Tenant, number: int, last: int) -> usage.Use:
    busy = max(tenant.busy + tenant.swing * math.sin(number / 3 + tenant.device), 0.0)
    grown = min(1.0, 0.7 + number / 60)
    held = int(tenant.held * tenant.vmemory * grown) >> 20 << 20
    return usage.Use(
        ratio=round(busy, 3),
        busy_seconds=round(busy * number * usage.PERIOD_SECONDS, 1),
        held_bytes=0 if tenant.suspended else held,
        refused=tenant.refused if number == last else 0,
        waits=round(100 * tenant.waits * number),
        waited_seconds=round(tenant.waits * number * usage.PERIOD_SECONDS, 1),
        processes=1,
        suspended=tenant.suspended,
        host_bytes=held if tenant.suspended else 0,
    )
