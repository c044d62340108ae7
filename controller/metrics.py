"""Prometheus metrics of the cluster-side programs, with their names and help texts.

``Meter`` has the metrics of every program; each subclass adds those of one. Nothing here makes
decisions.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import prometheus_client as prometheus
from prometheus_client import core

from pyvgpu.http import exposition
from pyvgpu.kube import informer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.controller.scheduler.shell import desk, term
    from pyvgpu.controller.status import cluster

SAVED_AT_MOST_SECONDS = 3600.0


class Meter(exposition.Figures, informer.Counting):
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


class ControllerMeter(Meter):
    """Metrics of the sidecar controller."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = {
            "decisions_total": self.counter(
                "pyvgpu_sidecar_decisions_total", "Sidecars whose end was begun, by path.", "path"
            ),
            "escalations_total": self.counter(
                "pyvgpu_sidecar_escalations_total",
                "Sidecars that did not end in time, by the path taken next.",
                "path",
            ),
            "left_total": self.counter(
                "pyvgpu_sidecar_left_total",
                "Sidecars left running, for lack of a safe way to end them.",
            ),
            "swaps_total": self.counter(
                "pyvgpu_sidecar_swaps_total", "Images replaced on a user's request."
            ),
            "backoff_limits_raised_total": self.counter(
                "pyvgpu_sidecar_backoff_limits_raised_total",
                "Jobs whose backoffLimit was raised by the number of our restarts.",
            ),
        }
        self.adopted = self.counter(
            "pyvgpu_sidecar_adopted_pods_total", "Pods without our label that the sweep found."
        )
        self.end_seconds = self.histogram(
            "pyvgpu_sidecar_end_seconds",
            "From the end of the last main container to that of the last sidecar, by path.",
            exposition.PATIENT,
            "path",
        )
        self.writes = self.histogram(
            "pyvgpu_sidecar_writes_per_pod", "API writes to end a pod's sidecars.", (0, 1, 2, 3)
        )
        self.gpu_idle_seconds = self.counter(
            "pyvgpu_sidecar_gpu_idle_seconds_total",
            "GPU-seconds in which the main containers had ended and a sidecar still ran.",
        )
        self.saved = Saved()
        self.registry.register(self.saved)


class NodeMeter(Meter):
    """Metrics of the node part."""

    def __init__(self) -> None:
        super().__init__()
        self.stops = self.counter(
            "pyvgpu_sidecar_stops_total",
            "Containers that the node part stopped, by result: ended, signaled or failed.",
            "result",
        )
        self.stop_seconds = self.histogram(
            "pyvgpu_sidecar_stop_seconds",
            "Seconds from the signal to the end of a container that the node part stopped.",
            exposition.PATIENT,
        )
        self.signal_seconds = self.histogram(
            "pyvgpu_sidecar_signal_seconds",
            "Time from the end of the last main container to the first stop request to a sidecar.",
            exposition.PATIENT,
        )
        self.runtime_errors = self.counter(
            "pyvgpu_runtime_errors_total", "Failed calls to the container runtime."
        )


class WebhookMeter(Meter):
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


class ClaimMeter(Meter):
    """Metrics of the claim controller."""

    def __init__(self) -> None:
        super().__init__()
        self.collected = self.counter(
            "pyvgpu_claim_templates_collected_total",
            "Claim templates deleted because no pod referred to them any more.",
        )


class SchedulerMeter(Meter):
    """Metrics of the scheduler extender."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = self.counter(
            "pyvgpu_scheduler_answers_total",
            "Requests of kube-scheduler, by path and result.",
            "path",
            "result",
        )
        self._seconds = self.histogram(
            "pyvgpu_scheduler_answer_seconds",
            "Time from a request to its response, by path.",
            exposition.QUICK,
            "path",
        )
        self.wakes = self.counter(
            "pyvgpu_scheduler_wakes_total",
            "Writes that make kube-scheduler retry waiting pods.",
        )

        self.sampled = self.counter(
            "pyvgpu_scheduler_sampled_total",
            "Events that say that a pod waits because kube-scheduler asked about only some nodes.",
        )

    def watch(
        self, desk: desk.Desk, leads: Callable[[], bool], expires: Callable[[], float]
    ) -> None:
        """Show the state of the current term of *desk*."""

        def of_term(read: Callable[[term.Term], float]) -> Callable[[], float]:
            return lambda: 0.0 if desk.term is None else float(read(desk.term))

        for name, text, read in (
            (
                "pyvgpu_scheduler_nodes",
                "Nodes in the scheduler cache.",
                lambda it: len(it.book.stands),
            ),
            (
                "pyvgpu_scheduler_pods",
                "Pods with devices of ours that have not ended.",
                lambda it: len(it.book.pods),
            ),
            (
                "pyvgpu_scheduler_drift",
                "Differences from the API server that the last comparison of the cache found.",
                lambda it: it.drift,
            ),
            (
                "pyvgpu_scheduler_comparisons",
                "Comparisons of the cache with the API server in this term.",
                lambda it: it.comparisons,
            ),
            (
                "pyvgpu_scheduler_evictions",
                "Pods evicted in this term.",
                lambda it: it.evicted,
            ),
        ):
            self.gauge(name, text, of_term(read))
        self.gauge("pyvgpu_scheduler_leads", "1 if it holds the lease.", lambda: float(leads()))
        self.gauge(
            "pyvgpu_scheduler_certificate_expiry_seconds",
            "When the certificate expires, in seconds since 1970; 0: there is none yet.",
            expires,
        )

    def answered(self, path: str, result: str, seconds: float) -> None:
        """Count an answer."""
        self._answers.labels(path, result).inc()
        self._seconds.labels(path).observe(seconds)


class StatusMeter(Meter):
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

    def watch(self, shown: cluster.Cluster, expires: Callable[[], float]) -> None:
        """Show the current state of the cluster."""
        self.gauge("pyvgpu_status_nodes", "Nodes that are shown.", lambda: float(shown.nodes))
        self.gauge(
            "pyvgpu_status_certificate_expiry_seconds",
            "When the certificate expires, in seconds since 1970; 0: there is none yet.",
            expires,
        )

    def answered(self, path: str, code: str, seconds: float) -> None:
        """Count an answer."""
        self._answers.labels(path, code).inc()
        self._seconds.labels(path).observe(seconds)


class Saved(prometheus.registry.Collector):
    """GPU-seconds saved, on the assumption that an admin notices a hanging pod after an hour.

    So each pod that we ended saves its GPUs for the time since, at most that hour.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._settled = 0.0
        self._ended: list[tuple[float, float]] = []  # time by our clock, number of GPUs
        self._lock = threading.Lock()

    def add(self, gpus: float) -> None:
        """Count a pod that has just ended and had so many GPUs."""
        if gpus > 0:
            with self._lock:
                self._ended.append((self._clock(), gpus))

    def seconds(self) -> float:
        """Return the sum until now."""
        with self._lock:
            now = self._clock()
            over = [it for it in self._ended if now - it[0] >= SAVED_AT_MOST_SECONDS]
            self._ended = self._ended[len(over) :]  # ordered by time
            self._settled += sum(gpus * SAVED_AT_MOST_SECONDS for _, gpus in over)
            return self._settled + sum(gpus * (now - at) for at, gpus in self._ended)

    def collect(self) -> list[core.CounterMetricFamily]:
        """Return the metric for Prometheus."""
        family = core.CounterMetricFamily(
            "pyvgpu_sidecar_gpu_saved_seconds_total",
            "GPUs of pods that we ended, times the seconds since, at most an hour for each pod, "
            "after which an admin would have noticed that it hangs.",
            value=self.seconds(),
        )
        return [family]
