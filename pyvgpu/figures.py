"""Figures of a program for Prometheus: what all programs have that show some.

Each program says in one place what it counts: a figure's name and help stand there. Nothing here
decides anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import prometheus_client as prometheus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]

QUICK = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)  # seconds
PATIENT = (0.1, 0.3, 1, 1.5, 2, 3, 5, 10, 30, 60, 120, 300, 600)


class Figures:
    """The figures of one program, and of its process."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)

    def counter(self, name: str, text: str, *labels: str) -> prometheus.Counter:
        """Return a new counter; its name ends in _total."""
        return prometheus.Counter(name, text, labels, registry=self.registry)

    def histogram(
        self, name: str, text: str, bounds: tuple[float, ...], *labels: str
    ) -> prometheus.Histogram:
        """Return a new histogram with these *bounds*."""
        return prometheus.Histogram(name, text, labels, buckets=bounds, registry=self.registry)

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show what *read* says whenever somebody looks."""
        prometheus.Gauge(name, text, registry=self.registry).set_function(read)

    def text(self) -> bytes:
        """Return everything, as Prometheus reads it."""
        return prometheus.generate_latest(self.registry)


def labels(names: Sequence[str], values: Sequence[str]) -> str:
    """Return labels as they stand behind the name of a figure."""
    return "{" + ",".join(map('{}="{}"'.format, names, map(_escaped, values))) + "}"


def family(name: str, kind: str, text: str, rows: Iterable[tuple[str, float]]) -> str:
    """Return a figure and its values as Prometheus reads them; *rows* are labels and values.

    Of a counter the name ends in _total.
    """
    lines = [f"# HELP {name} {text}\n# TYPE {name} {kind}\n"]
    lines += [f"{name}{each} {float(value)!r}\n" for each, value in rows]
    return "".join(lines)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
