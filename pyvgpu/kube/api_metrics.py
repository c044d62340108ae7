"""Prometheus metrics of every program that uses the Kubernetes API."""

from __future__ import annotations

from pyvgpu.http import exposition
from pyvgpu.kube import informer


class ApiMeter(exposition.Exposition, informer.Counting):
    """Metrics of every program: its requests to the API server, its watches, its queue."""

    def __init__(self) -> None:
        super().__init__()
        self._requests = self.counter(
            "pyvgpu_api_requests_total",
            "Requests to the API server, by method and status code (0: no response).",
            "method",
            "code",
        )
        self._errors = self.counter(
            "pyvgpu_api_errors_total",
            "Failed requests to the API server, by method and status code (0: no response).",
            "method",
            "code",
        )
        self._request_seconds = self.histogram(
            "pyvgpu_api_request_seconds",
            "Time from a request to the start of its response, by method.",
            exposition.QUICK,
            "method",
        )
        self._watches = self.counter(
            "pyvgpu_watches_lost_total",
            "Watches and lists that failed or broke off, by resource path and status code.",
            "path",
            "code",
        )
        self._lists = self.histogram(
            "pyvgpu_list_seconds",
            "Time to read a list in full, by resource path.",
            exposition.QUICK,
            "path",
        )
        self._waits = self.histogram(
            "pyvgpu_queue_wait_seconds",
            "Time that due work waited for a worker.",
            exposition.QUICK,
        )
        self.failures = self.counter(
            "pyvgpu_failures_total", "Internal errors of this program; its log has each one."
        )

    def asked(self, method: str, status: int, seconds: float) -> None:
        """Count a request to the API server."""
        self._requests.labels(method, status).inc()
        self._request_seconds.labels(method).observe(seconds)
        if not 200 <= status < 300:
            self._errors.labels(method, status).inc()

    def listed(self, path: str, seconds: float) -> None:
        """Count a list."""
        self._lists.labels(path).observe(seconds)

    def lost(self, path: str, status: int) -> None:
        """Count a list or a watch that failed or broke off."""
        self._watches.labels(path, status).inc()

    def waited(self, seconds: float) -> None:
        """Observe how long due work waited in the queue."""
        self._waits.observe(seconds)
