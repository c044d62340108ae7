"""Metrics reference page: every metric that a pyvgpu program exports to Prometheus.

A metric is found in the code wherever its name and its help text are adjacent.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from typing import TYPE_CHECKING

from generator import sources
from generator.tables import code, table
from pyvgpu.deviceplugin.telemetry import metric_families
from pyvgpu.run import run_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEAD = """# Metrics

Each program serves these at `/metrics`, on the address given by `--listen`, or by `--serve` for
`pyvgpu top`. Times are in seconds, sizes in bytes; a name that ends in `_ratio` is a fraction of
one device, from 0 to 1. A counter ends in `_total`; a histogram has `_bucket`, `_sum` and
`_count`. The programs of a cluster also export Prometheus' standard `process_*` metrics.

[agent-outside.md](../agent-outside.md#metrics) explains the agent's metrics, and which questions
they answer; [top.md](../top.md#metrics) explains those of one machine.

"""
NAME = re.compile(r"pyvgpu_[a-z0-9_]+")
AGENT = "`pyvgpu device-plugin`, `pyvgpu dra-driver`: the agent of a node"
ALL = "All programs of the cluster side"
# The program that exports a metric, by the beginning of its file's path and the class around it;
# the first match counts.
PROGRAMS = (
    ("deviceplugin/", "", AGENT),
    ("pyvgpu/kube/api_metrics.py", "", ALL),
    ("controller/sidecar/meters.py", "NodeMeter", "`pyvgpu sidecar-node`"),
    ("controller/sidecar/meters.py", "", "`pyvgpu sidecar-controller`"),
    ("controller/webhook/", "", "`pyvgpu webhook`"),
    ("controller/claims/", "", "`pyvgpu claim-controller`"),
    ("controller/scheduler/", "", "`pyvgpu scheduler`"),
    ("controller/status/", "", "`pyvgpu status-page`"),
    ("controller/sidecar/shell.py", "", "`pyvgpu sidecar-controller`"),
    ("controller/sidecar/node_agent.py", "", "`pyvgpu sidecar-node`"),
    ("pyvgpu/cli/webhook.py", "", "`pyvgpu webhook`"),
    ("pyvgpu/cli/claim_controller.py", "", "`pyvgpu claim-controller`"),
    ("pyvgpu/run/run_metrics.py", "", "`pyvgpu top --serve`: the runs of one machine"),
    ("", "", "Others"),
)
# Labels that are not written beside a metric's name: some programs build their metrics in bulk.
LABELS = {
    "pyvgpu_run_": run_metrics.RUN_LABELS,
    "pyvgpu_machine_device_": run_metrics.DEVICE_LABELS,
    metric_families.CONTAINER_MEANS.name: metric_families.CONTAINER_MEANS_LABELS,
    metric_families.DEVICE_MEANS.name: metric_families.DEVICE_MEANS_LABELS,
    "pyvgpu_container_": metric_families.CONTAINER_LABELS,
    "pyvgpu_device_": metric_families.DEVICE_LABELS,
    metric_families.FINDINGS.name: ("kind",),
    metric_families.GRANTS.name: ("state",),
    metric_families.BUILD.name: ("version",),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Measure:
    """One metric of one program."""

    program: str
    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def text(root: Path) -> str:
    """Return the page."""
    programs: dict[str, list[Measure]] = {program: [] for _, _, program in PROGRAMS}
    for measure in measures(root):
        programs[measure.program].append(measure)
    parts = [HEAD]
    for program, found in programs.items():
        if found:
            parts.append(f"## {program}\n\n")
            parts.append(
                table(
                    ("metric", "kind", "labels", "meaning"),
                    (
                        (code(shown.name), shown.kind, ", ".join(shown.labels), shown.text)
                        for shown in found
                    ),
                )
            )
    return "".join(parts)


def measures(root: Path) -> Iterator[Measure]:
    """Yield every metric, once for each program."""
    yielded = set()
    for found in sources.walk(root):
        beside = _beside(found.node)
        if len(beside) < 2 or beside[0] is None or beside[1] is None:
            continue
        if not NAME.fullmatch(beside[0]):
            continue
        measure = Measure(
            program=_program(found),
            name=beside[0],
            kind=_kind(found.node, beside[0]),
            labels=_labels(beside[0]) or tuple(label for label in beside[2:] if label),
            text=beside[1],
        )
        if (measure.program, measure.name) not in yielded:
            yielded.add((measure.program, measure.name))
            yield measure


def _beside(node: ast.AST) -> list[str | None]:
    """Return the elements of one call or tuple: texts, and None for anything else."""
    if isinstance(node, ast.Call):
        return [sources.text_of(argument) for argument in node.args]
    return [sources.text_of(elt) for elt in node.elts] if isinstance(node, ast.Tuple) else []


def _program(found: sources.Found) -> str:
    return next(
        program
        for file, where, program in PROGRAMS
        if found.path.startswith(file) and where in ("", found.where)
    )


def _kind(node: ast.AST, name: str) -> str:
    called = sources.name_of(node) if isinstance(node, ast.Call) else ""
    if called == "histogram":
        return "histogram"
    return "counter" if name.endswith("_total") or "Counter" in called else "gauge"


def _labels(name: str) -> tuple[str, ...]:
    return next((labels for begin, labels in LABELS.items() if name.startswith(begin)), ())
