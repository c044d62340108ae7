"""Prometheus metrics of the cluster's status page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu.http import exposition
from pyvgpu.kube import api_metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.controller.status import cluster_state


class StatusMeter(api_metrics.ApiMeter):
    """Metrics of the cluster's status page."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = self.counter(
            "pyvgpu_status_answers_total", "Answers to browsers, by path and code.", "path", "code"
        )
        self._seconds = self.histogram(
            "pyvgpu_status_answer_seconds",
            "Time from a browser's request to its response, by path.",
            exposition.QUICK,
            "path",
        )

    def watch(self, shown: cluster_state.Cluster, expires: Callable[[], float]) -> None:
        """Show the current state of the cluster."""
        self.gauge("pyvgpu_status_nodes", "Nodes on the page.", lambda: float(shown.nodes))
        self.gauge(
            "pyvgpu_status_certificate_expiry_seconds",
            "Expiry time of the certificate, in seconds since 1970; 0: no certificate yet.",
            expires,
        )

    def answered(self, path: str, code: str, seconds: float) -> None:
        """Count an answer."""
        self._answers.labels(path, code).inc()
        self._seconds.labels(path).observe(seconds)
