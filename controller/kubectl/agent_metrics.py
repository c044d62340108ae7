"""Parse agents' Prometheus metrics of containers, devices and audits; pure.

The metric names are those of ``deviceplugin/telemetry/metric_families.py``, which this does not
import; a test parses here what that module writes.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

_OF_CONTAINER, _OF_DEVICE = (f"pyvgpu_{kind}_" for kind in ("container", "device"))
_FINDINGS = "pyvgpu_audit_findings"
_ACTIVE = "pyvgpu_audit_active"
_MEANS = f"{_OF_CONTAINER}isolation_info"
Key = tuple[str, str, str, str]  # namespace, pod, container, UUID


@dataclasses.dataclass(frozen=True, slots=True)
class AgentMetrics:
    """The metrics of one agent."""

    containers: Mapping[Key, Mapping[str, float]]  # by the metric's name without its prefix
    devices: Mapping[str, Mapping[str, float]]  # by UUID, then as above
    findings: Mapping[str, int]  # by kind
    audits: bool  # whether its audit runs
    # The means that holds a container to its share; older agents do not report it.
    means: Mapping[Key, str] = dataclasses.field(default_factory=dict)

    def used(self, key: Key) -> Mapping[str, float]:
        """Return a container's metrics; for a claim (its container is unknown) the pod's sums."""
        if key in self.containers:
            return self.containers[key]
        namespace, pod, _, uuid = key
        sums: collections.Counter[str] = collections.Counter()
        for (of, name, _, where), figures in self.containers.items():
            if (of, name, where) == (namespace, pod, uuid):
                sums.update(figures)
        return sums


def memory(report: AgentMetrics, namespace: str, pod: str) -> list[dict[str, object]]:
    """Return what limits each container of a pod, by device; sizes are bytes."""
    return [
        {
            "container": container,
            "uuid": uuid,
            "quotaBytes": int(figures.get("memory_allocated_bytes", 0)),
            "driverLimitBytes": int(figures.get("memory_driver_limit_bytes", 0)) or None,
            "isolation": report.means.get((of, name, container, uuid)),
        }
        for (of, name, container, uuid), figures in sorted(report.containers.items())
        if (of, name) == (namespace, pod)
    ]


def read(text: str) -> AgentMetrics:
    """Parse the text of /metrics; DataError if it cannot be parsed."""
    with errors.needing("prometheus-client", "kubernetes"):
        from prometheus_client import parser
    containers: dict[Key, dict[str, float]] = {}
    devices: dict[str, dict[str, float]] = {}
    findings: dict[str, int] = {}
    means: dict[Key, str] = {}
    audits = False
    try:
        samples = [
            one for family in parser.text_string_to_metric_families(text) for one in family.samples
        ]
        for sample in samples:
            labels = sample.labels
            if sample.name.startswith(_OF_CONTAINER):
                key = (labels["namespace"], labels["pod"], labels["container"], labels["uuid"])
                if sample.name == _MEANS:
                    means[key] = labels["isolation"]
                    continue
                name = sample.name.removeprefix(_OF_CONTAINER)
                containers.setdefault(key, {})[name] = sample.value
            elif sample.name.startswith(_OF_DEVICE) and not sample.name.endswith("_info"):
                name = sample.name.removeprefix(_OF_DEVICE)
                devices.setdefault(labels["uuid"], {})[name] = sample.value
            elif sample.name == _FINDINGS:
                findings[labels["kind"]] = int(sample.value)
            elif sample.name == _ACTIVE:
                audits = bool(sample.value)
    except (ValueError, KeyError, IndexError) as exc:
        raise errors.DataError(f"/metrics: cannot be read: {exc!r}") from exc
    return AgentMetrics(containers, devices, findings, audits, means)
