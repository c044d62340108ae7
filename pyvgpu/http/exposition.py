"""Prometheus metrics helpers, shared by all programs that export metrics.

Each program defines its metrics, with names and help texts, in one place of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import prometheus_client as prometheus

if TYPE_CHECKING:
    from collections.abc import Callable

prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]

QUICK = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)  # seconds
PATIENT = (0.1, 0.3, 1, 1.5, 2, 3, 5, 10, 30, 60, 120, 300, 600)


class Exposition:
    """The metrics of one program and its process."""

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
        """Add a gauge whose value is read at each scrape."""
        prometheus.Gauge(name, text, registry=self.registry).set_function(read)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return prometheus.generate_latest(self.registry)
