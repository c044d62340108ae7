"""Cases for promtool's unit tests of the alert rules: input series and the expected alerts."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import charted
import yaml

ROOT = Path(__file__).parents[2]
_FOLDER = ROOT / "deploy/chart/pyvgpu/monitoring"
RULES = _FOLDER / "rules.yaml"
DASHBOARD = json.loads((_FOLDER / "dashboard.json").read_text())
_LABEL = re.compile(r"\{\{ \$labels\.(\w+) \}\}")
DEVICE = 'instance="node-1",uuid="GPU-1",index="0",model="H100"'
CONTAINER = 'instance="node-1",namespace="a",pod="p",container="c",uuid="GPU-1"'


def rules() -> list[dict[str, Any]]:
    """Return all alert rules."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def pod_monitor() -> dict[str, Any]:
    """Return the spec of the chart's PodMonitor."""
    found: dict[str, Any] = charted.made(charted.MONITORED)["PodMonitor", "pyvgpu"]["spec"]
    return found


@dataclasses.dataclass(frozen=True)
class Case:
    """Series with one sample per minute, in promtool's notation, and the alert at one minute."""

    alert: str
    seen: dict[str, str]  # values by series
    minute: int
    labels: dict[str, str] | None  # of the alert; None: it does not fire


def text(cases: list[Case]) -> str:
    """Return *cases* as a promtool test file."""
    known = {rule["alert"]: rule for rule in rules()}
    return yaml.safe_dump(
        {
            "rule_files": [str(RULES)],
            "evaluation_interval": "1m",
            "tests": [_test(case, known[case.alert]) for case in cases],
        }
    )


def _test(case: Case, rule: dict[str, Any]) -> dict[str, Any]:
    labels = case.labels
    expected = []
    if labels is not None:
        filled = {
            name: _LABEL.sub(lambda match: labels.get(match[1], ""), written)
            for name, written in rule["annotations"].items()
        }
        expected = [{"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": filled}]
    return {
        "interval": "1m",
        "name": f"{case.alert} at {case.minute}",
        "input_series": [
            {"series": series, "values": values} for series, values in case.seen.items()
        ],
        "alert_rule_test": [
            {
                "eval_time": f"{case.minute}m",
                "alertname": case.alert,
                "exp_alerts": expected,
            }
        ],
    }


def _labels(written: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="([^"]*)"', written))


def _pair(
    alert: str, seen: dict[str, str], minute: int, labels: str, calm: dict[str, str]
) -> list[Case]:
    """Return two cases: *alert* fires for the series *seen*, and does not for those in *calm*."""
    return [
        Case(alert, seen, minute, _labels(labels)),
        Case(alert, calm, minute, None),
    ]


def _same(alert: str, series: str, bad: str, good: str, minute: int, labels: str) -> list[Case]:
    return _pair(alert, {series: bad}, minute, labels, {series: good})


_SHARE = {
    f"pyvgpu_container_vcore_allocated_ratio{{{CONTAINER}}}": "0.5x30",
    f"pyvgpu_container_throttled_seconds_total{{{CONTAINER}}}": "0+30x30",
}
_BUSY = f"pyvgpu_container_busy_seconds_total{{{CONTAINER}}}"
_API = 'instance="s:9473",method="GET"'
_EXPIRY = 'pyvgpu_webhook_certificate_expiry_seconds{instance="w:9472"}'

CASES = [
    *_same("PyvgpuDeviceUnhealthy", f"pyvgpu_device_healthy{{{DEVICE}}}", "0x9", "1x9", 5, DEVICE),
    Case("PyvgpuDeviceUnhealthy", {f"pyvgpu_device_healthy{{{DEVICE}}}": "1 0 1x9"}, 3, None),
    *_same(
        "PyvgpuPastQuota",
        'pyvgpu_audit_findings{instance="node-1",kind="no-shim"}',
        "1x9",
        "0x9",
        5,
        'instance="node-1",kind="no-shim"',
    ),
    *_pair(
        "PyvgpuShareNotMet",
        {**_SHARE, _BUSY: "0+18x30"},  # 0.3 of the time
        25,
        CONTAINER,
        {**_SHARE, _BUSY: "0+30x30"},
    ),
    Case(
        "PyvgpuShareNotMet",  # the container never waits: it wants no more
        {**_SHARE, _BUSY: "0+6x30", next(reversed(_SHARE)): "0x30"},
        25,
        None,
    ),
    *_same(
        "PyvgpuAllocationsRefused",
        f"pyvgpu_container_refused_allocations_total{{{CONTAINER}}}",
        "0x5 3x10",
        "3x15",
        10,
        CONTAINER,
    ),
    *_same(
        "PyvgpuNotRestored",
        'pyvgpu_suspension_seconds_count{instance="node-1",action="resume",result="lost"}',
        "0x5 1x10",
        "1x15",
        10,
        'instance="node-1"',
    ),
    *_same(
        "PyvgpuAgentGone",
        f"pyvgpu_device_healthy{{{DEVICE}}}",
        "1x9",
        "1x60",
        22,
        'uuid="GPU-1",index="0",model="H100"',
    ),
    Case(
        "PyvgpuAgentGone",  # a new pod reports the device
        {
            f"pyvgpu_device_healthy{{{DEVICE}}}": "1x9",
            f"pyvgpu_device_healthy{{{DEVICE.replace('node-1', 'node-2')}}}": "_x9 1x60",
        },
        22,
        None,
    ),
    *_same(
        "PyvgpuStartsRefused",
        'pyvgpu_kubelet_call_seconds_count{instance="node-1",call="start",result="refused"}',
        "0+2x30",
        "2x30",
        25,
        'instance="node-1",call="start",result="refused"',
    ),
    *_same(
        "PyvgpuGrantsUnbound",
        'pyvgpu_grants{instance="node-1",state="unbound"}',
        "2x30",
        "0x30",
        20,
        'instance="node-1",state="unbound"',
    ),
    *_same(
        "PyvgpuContainerRuntimeErrors",
        'pyvgpu_runtime_errors_total{instance="node-1"}',
        "0+1x40",
        "7x40",
        30,
        'instance="node-1"',
    ),
    *_same("PyvgpuSchedulerLeads", 'pyvgpu_scheduler_leads{instance="s-1"}', "0x9", "1x9", 5, ""),
    Case(
        "PyvgpuSchedulerLeads",
        {f'pyvgpu_scheduler_leads{{instance="s-{number}"}}': "1x9" for number in range(2)},
        5,
        {},
    ),
    Case("PyvgpuSchedulerLeads", {'pyvgpu_scheduler_leads{instance="s-1"}': "1x9"}, 22, {}),
    *_same(
        "PyvgpuSchedulerDrift",
        'pyvgpu_scheduler_drift{instance="s:9473"}',
        "3x30",
        "0x30",
        20,
        'instance="s:9473"',
    ),
    *_same(
        "PyvgpuSchedulerSampled",
        'pyvgpu_scheduler_sampled_total{instance="s:9473"}',
        "0x5 1x30",
        "4x40",
        10,
        'instance="s:9473"',
    ),
    *_pair(
        "PyvgpuSchedulerSlow",
        {
            'pyvgpu_scheduler_answer_seconds_bucket{path="/scheduler/filter",le="2.5"}': "0x30",
            'pyvgpu_scheduler_answer_seconds_bucket{path="/scheduler/filter",le="+Inf"}': "0+9x30",
        },
        25,
        'path="/scheduler/filter"',
        {
            'pyvgpu_scheduler_answer_seconds_bucket{path="/scheduler/bind",le="2.5"}': "0x30",
            'pyvgpu_scheduler_answer_seconds_bucket{path="/scheduler/bind",le="+Inf"}': "0+9x30",
        },
    ),
    *_pair(
        "PyvgpuWebhookSlow",
        {
            'pyvgpu_webhook_review_seconds_bucket{path="/devices",le="1"}': "0x30",
            'pyvgpu_webhook_review_seconds_bucket{path="/devices",le="2.5"}': "0+9x30",
            'pyvgpu_webhook_review_seconds_bucket{path="/devices",le="+Inf"}': "0+9x30",
        },
        25,
        'path="/devices"',
        {
            'pyvgpu_webhook_review_seconds_bucket{path="/devices",le="1"}': "0+9x30",
            'pyvgpu_webhook_review_seconds_bucket{path="/devices",le="+Inf"}': "0+9x30",
        },
    ),
    *_same("PyvgpuCertificateEnds", _EXPIRY, "500000x99", "9000000x99", 90, 'instance="w:9472"'),
    Case("PyvgpuCertificateEnds", {_EXPIRY: "0x99"}, 90, None),  # no certificate yet
    *_pair(
        "PyvgpuApiErrors",
        {
            f'pyvgpu_api_requests_total{{{_API},code="503"}}': "0+30x30",
            f'pyvgpu_api_errors_total{{{_API},code="503"}}': "0+30x30",
        },
        25,
        'instance="s:9473"',
        {
            f'pyvgpu_api_requests_total{{{_API},code="409"}}': "0+30x30",
            f'pyvgpu_api_errors_total{{{_API},code="409"}}': "0+30x30",
        },
    ),
    *_same(
        "PyvgpuFailures",
        'pyvgpu_failures_total{instance="s:9473"}',
        "0x5 1x30",
        "4x40",
        10,
        'instance="s:9473"',
    ),
    *_same(
        "PyvgpuSidecarsLeft",
        'pyvgpu_sidecar_left_total{instance="c:9471"}',
        "0x5 1x30",
        "4x40",
        10,
        'instance="c:9471"',
    ),
]
