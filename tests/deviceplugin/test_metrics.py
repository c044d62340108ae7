"""Prometheus metrics of the agent: every one in the tables, for each container from its grant."""

import re
from pathlib import Path

import pytest
from granted import GIB
from prometheus_client import parser

from pyvgpu import quota
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.audit import quota_audit
from pyvgpu.deviceplugin.devices.health import ProbeResult
from pyvgpu.deviceplugin.grants import events
from pyvgpu.deviceplugin.kubelet import call_timing
from pyvgpu.deviceplugin.telemetry import metric_families, usage
from pyvgpu.run import suspend_operation

A, B = "GPU-a", "GPU-b"
DOCUMENT = Path(__file__).parents[2] / "docs" / "agent-outside.md"


def grant(number, uuid, vcore, size, **more):
    owner = grants.Owner("u", "team", f"pod-{number}", "main")
    ids = frozenset({f"c{number}"})
    share = datatypes.NodeShare(uuid, vcore, size)
    return grants.Grant(f"{number:016x}", ids, 1.0, owner, shares=(share,), **more)


GRANTS = [
    grant(1, A, 30, 2 * GIB),
    grant(2, A, 20, GIB, policy=quota.TimePolicy.ELASTIC, ceiling=60),
    grant(3, B, 100, 80 * GIB),
    grants.Grant("f" * 16, frozenset({"c9"}), 1.0),
]
DEVICES = [
    datatypes.NodeDevice(A, 0, 80 * GIB, model="H100"),
    datatypes.NodeDevice(B, 1, 80 * GIB, model="H100", unhealthy="Xid 79", cordoned=True),
]
USES = {
    GRANTS[0].id: usage.Use(0.25, 12.5, GIB, 3, 4, 1.5, 2),
    GRANTS[1].id: usage.Use(suspended=True, host_bytes=GIB, suspended_seconds=6.0),
}
FINDING = quota_audit.Violation(quota_audit.ViolationKind.NO_SHIM, A, (1,), "", "u", GIB, "x")


def shown(**more):
    meter = metric_families.AgentMeter(**more)
    meter.show(
        metric_families.MetricSources(
            grants=lambda: GRANTS,
            devices=lambda: DEVICES,
            answers=lambda: {A: ProbeResult("", 5 * GIB, 0.4), B: ProbeResult("", 70 * GIB, 0.9)},
            use=lambda grant_id, _: USES.get(grant_id, usage.NOTHING),
            findings=lambda: [FINDING],
            audits=lambda: True,
        )
    )
    return meter


def samples(meter):
    """Return all samples: by name, the value of each set of labels."""
    found = {}
    for family in parser.text_string_to_metric_families(meter.text().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.values())] = sample.value
    return found


def labels(*values):
    return frozenset(values)


def container(number, uuid):
    return labels("team", f"pod-{number}", "main", uuid)


@pytest.mark.parametrize(
    ("name", "first", "elastic", "whole"),
    [
        ("vcore_allocated_ratio", 0.3, 0.2, 1),
        ("vcore_limit_ratio", 0.3, 0.6, 1),
        ("vcore_used_ratio", 0.25, 0, 0.9),
        ("busy_seconds_total", 12.5, 0, 0),
        ("memory_allocated_bytes", 2 * GIB, GIB, 80 * GIB),
        ("memory_used_bytes", GIB, 0, 70 * GIB),
        ("refused_allocations_total", 3, 0, 0),
        ("throttled_launches_total", 4, 0, 0),
        ("throttled_seconds_total", 1.5, 0, 0),
        ("processes", 2, 0, 0),
        ("suspended", 0, 1, 0),
        ("memory_host_bytes", 0, GIB, 0),
        ("suspended_seconds_total", 0, 6, 0),
    ],
)
def test_container_metrics(name, first, elastic, whole):
    assert samples(shown())[f"pyvgpu_container_{name}"] == {
        container(1, A): first,
        container(2, A): elastic,
        container(3, B): whole,
    }


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("memory_bytes", 80 * GIB, 80 * GIB),
        ("memory_allocated_bytes", 3 * GIB, 80 * GIB),
        ("memory_used_bytes", 5 * GIB, 70 * GIB),
        ("vcore_allocated_ratio", 0.5, 1),
        ("used_ratio", 0.4, 0.9),
        ("containers", 2, 1),
        ("healthy", 1, 0),
        ("cordoned", 0, 1),
    ],
)
def test_device_metrics(name, first, second):
    assert samples(shown())[f"pyvgpu_device_{name}"] == {
        labels(A, "0", "H100"): first,
        labels(B, "1", "H100"): second,
    }


def test_moved_memory_is_counted_by_container_until_its_grant_ends():
    meter = shown()
    meter.moved(GRANTS[0].id, suspend_operation.MovedMemory((GIB,), (0,)))
    meter.moved(GRANTS[0].id, suspend_operation.MovedMemory((2 * GIB,), (3 * GIB,)))
    for name, expected in (("host", 3 * GIB), ("device", 3 * GIB)):
        moved = samples(meter)[f"pyvgpu_container_moved_to_{name}_bytes_total"]
        assert moved == {container(1, A): expected, container(2, A): 0, container(3, B): 0}
    meter.forget({GRANTS[1].id})
    assert sum(samples(meter)["pyvgpu_container_moved_to_host_bytes_total"].values()) == 0


def test_isolation_is_a_label():
    found = samples(shown())
    assert found["pyvgpu_container_isolation_info"] == {
        container(1, A) | {"quota"}: 1,
        container(2, A) | {"quota"}: 1,
        container(3, B) | {"whole-device"}: 1,
    }
    assert found["pyvgpu_device_isolation_info"] == {
        labels(A, "0", "H100", "quota"): 1,
        labels(B, "1", "H100", "quota"): 1,
    }


def test_agent_metrics():
    meter = shown(require_cdi=False)
    meter.called("allocate", 0.0003, call_timing.CallResult.DONE)
    meter.called("start", 2.0, call_timing.CallResult.REFUSED)
    meter.reported("event", events.GrantEvent("u", "team", "pod-1", "no room"))
    meter.ended()
    found = samples(meter)
    assert found["pyvgpu_kubelet_call_seconds_count"][labels("allocate", "done")] == 1
    assert found["pyvgpu_kubelet_call_seconds_sum"][labels("start", "refused")] == 2
    assert found["pyvgpu_events_total"] == {labels("event", "VGPURefused"): 1}
    assert found["pyvgpu_audit_ended_processes_total"] == {labels(): 1}
    assert found["pyvgpu_audit_findings"] == {
        labels("no-shim"): 1,
        labels("foreign"): 0,
        labels("above"): 0,
        labels("time"): 0,
        labels("tampered"): 0,
        labels("outside"): 0,
    }
    assert found["pyvgpu_audit_active"] == {labels(): 1}
    assert found["pyvgpu_cdi_required"] == {labels(): 0}
    assert found["pyvgpu_grants"] == {
        labels("bound"): 3,
        labels("unbound"): 1,
        labels("waiting"): 0,
    }
    assert list(found["pyvgpu_build_info"].values()) == [1]


def test_documentation_has_the_help_of_each_metric():
    exported = {
        (f"{family.name}_total" if family.type == "counter" else family.name, family.documentation)
        for family in parser.text_string_to_metric_families(shown().text().decode())
        if family.name.startswith("pyvgpu_")
    }
    rows = re.findall(r"^\| `(pyvgpu_\w+)` \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert set(rows) == exported
    assert len(rows) == len(exported)


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(events.Reason, id="events"),
        pytest.param(quota_audit.ViolationKind, id="findings"),
    ],
)
def test_documentation_has_each_reason_and_kind(known):
    rows = re.findall(r"^\| `([\w-]+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert {member.value for member in known} <= set(rows)
