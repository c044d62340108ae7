"""Metric families in Prometheus' text format, without its library.

The library formats the labels of each sample again; programs that export many samples, or have to
run without it, write the text themselves.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class MetricText:
    """Name and help text of one metric."""

    name: str  # a counter's ends in _total
    text: str


def labels(names: Sequence[str], values: Sequence[str]) -> str:
    """Return labels in Prometheus' text format."""
    return "{" + ",".join(map('{}="{}"'.format, names, map(_escaped, values))) + "}"


def family(name: str, kind: str, text: str, rows: Iterable[tuple[str, float]]) -> str:
    """Return a metric family in Prometheus' text format; *rows* are labels and values.

    The name of a counter ends in _total.
    """
    lines = [f"# HELP {name} {text}\n# TYPE {name} {kind}\n"]
    lines += [f"{name}{each} {float(value)!r}\n" for each, value in rows]
    return "".join(lines)


def of_figure(figure: MetricText, rows: Iterable[tuple[str, float]]) -> str:
    """Return the family of a *figure*: a counter if its name ends in _total, else a gauge."""
    kind = "counter" if figure.name.endswith("_total") else "gauge"
    return family(figure.name, kind, figure.text, rows)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
