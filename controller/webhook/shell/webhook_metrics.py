"""Prometheus metrics of the webhook."""

from __future__ import annotations

from pyvgpu.http import exposition
from pyvgpu.kube import api_metrics


class WebhookMeter(api_metrics.ApiMeter):
    """Metrics of the webhook."""

    def __init__(self) -> None:
        super().__init__()
        self._reviews = self.counter(
            "pyvgpu_webhook_reviews_total",
            "Admission reviews, by path and result.",
            "path",
            "result",
        )
        self._seconds = self.histogram(
            "pyvgpu_webhook_review_seconds",
            "Time from an admission request to its response, by path.",
            exposition.QUICK,
            "path",
        )

    def reviewed(self, path: str, result: str, seconds: float) -> None:
        """Count an answer."""
        self._reviews.labels(path, result).inc()
        self._seconds.labels(path).observe(seconds)
        if result == "failed":
            self.failures.inc()
