"""What agents say in their figures of containers, devices and audits; pure.

The names are those of ``deviceplugin/metrics.py``, which the cluster side does not import; a test
lets the one write what the other reads.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

_OF_CONTAINER, _OF_DEVICE = (f"pyvgpu_{it}_" for it in ("container", "device"))
_FINDINGS = "pyvgpu_audit_findings"
_ACTIVE = "pyvgpu_audit_active"
Key = tuple[str, str, str, str]  # namespace, pod, container, UUID


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """What one agent said."""

    containers: Mapping[Key, Mapping[str, float]]  # by the end of the figure's name
    devices: Mapping[str, Mapping[str, float]]  # by UUID, likewise
    findings: Mapping[str, int]  # by kind
    audits: bool  # whether it looks for any

    def used(self, key: Key) -> Mapping[str, float]:
        """Return a container's figures; those of a claim, whose container is unknown, are sums."""
        if key in self.containers:
            return self.containers[key]
        namespace, pod, _, uuid = key
        sums: collections.Counter[str] = collections.Counter()
        for (of, name, _, where), figures in self.containers.items():
            if (of, name, where) == (namespace, pod, uuid):
                sums.update(figures)
        return sums


def memory(told: Told, namespace: str, pod: str) -> list[dict[str, object]]:
    """Return for each container of a pod and device what holds its memory; sizes are bytes."""
    return [
        {
            "container": container,
            "uuid": uuid,
            "quotaBytes": int(figures.get("memory_promised_bytes", 0)),
            "driverLimitBytes": int(figures.get("memory_driver_limit_bytes", 0)) or None,
        }
        for (of, name, container, uuid), figures in sorted(told.containers.items())
        if (of, name) == (namespace, pod)
    ]


def read(text: str) -> Told:
    """Return what stands in an answer of /metrics; DataError if it is none."""
    with errors.needing("prometheus-client", "kubernetes"):
        from prometheus_client import parser
    containers: dict[Key, dict[str, float]] = {}
    devices: dict[str, dict[str, float]] = {}
    findings: dict[str, int] = {}
    audits = False
    try:
        samples = [
            it for family in parser.text_string_to_metric_families(text) for it in family.samples
        ]
        for sample in samples:
            labels = sample.labels
            if sample.name.startswith(_OF_CONTAINER):
                key = (labels["namespace"], labels["pod"], labels["container"], labels["uuid"])
                name = sample.name.removeprefix(_OF_CONTAINER)
                containers.setdefault(key, {})[name] = sample.value
            elif sample.name.startswith(_OF_DEVICE):
                name = sample.name.removeprefix(_OF_DEVICE)
                devices.setdefault(labels["uuid"], {})[name] = sample.value
            elif sample.name == _FINDINGS:
                findings[labels["kind"]] = int(sample.value)
            elif sample.name == _ACTIVE:
                audits = bool(sample.value)
    except (ValueError, KeyError, IndexError) as exc:
        raise errors.DataError(f"/metrics: cannot be read: {exc!r}") from exc
    return Told(containers, devices, findings, audits)
