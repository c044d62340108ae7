"""What our programs in a cluster count, for Prometheus: each figure's name and help stand here.

``common`` is every program's; the others are counted by one. Nothing here decides anything.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import prometheus_client as prometheus
from prometheus_client import core

from pyvgpu import figures
from pyvgpu.kube import informer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.controller.scheduler.shell import desk, term
    from pyvgpu.controller.status import cluster

SAVED_AT_MOST_SECONDS = 3600.0


class Meter(figures.Figures, informer.Counting):
    """What every program counts: its requests to the API server, its watches, its queue."""

    def __init__(self) -> None:
        super().__init__()
        self._requests = self.counter(
            "pyvgpu_api_requests_total",
            "Requests to the API server, by method and answer (0: there was none).",
            "method",
            "code",
        )
        self._errors = self.counter(
            "pyvgpu_api_errors_total",
            "Those that were not done, by method and answer (0: there was none).",
            "method",
            "code",
        )
        self._request_seconds = self.histogram(
            "pyvgpu_api_request_seconds",
            "From a request to the begin of its answer, by method.",
            figures.QUICK,
            "method",
        )
        self._watches = self.counter(
            "pyvgpu_watches_lost_total",
            "Watches and lists that did not go on, by what they are of and the answer.",
            "path",
            "code",
        )
        self._lists = self.histogram(
            "pyvgpu_list_seconds",
            "How long a list took to be read in full.",
            figures.QUICK,
            "path",
        )
        self._waits = self.histogram(
            "pyvgpu_queue_wait_seconds",
            "How long due work waited for a worker.",
            figures.QUICK,
        )
        self.failures = self.counter(
            "pyvgpu_failures_total", "Faults of this program, each of which is in its log."
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
        """Count a list or a watch that did not go on."""
        self._watches.labels(path, status).inc()

    def waited(self, seconds: float) -> None:
        """Count how long something that was due lay in the queue."""
        self._waits.observe(seconds)


class ControllerMeter(Meter):
    """What the sidecar controller counts."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = {
            "decisions_total": self.counter(
                "pyvgpu_sidecar_decisions_total", "Sidecars whose end was begun, by path.", "path"
            ),
            "escalations_total": self.counter(
                "pyvgpu_sidecar_escalations_total",
                "Sidecars that did not end in time, by the path that was taken next.",
                "path",
            ),
            "left_total": self.counter(
                "pyvgpu_sidecar_left_total", "Sidecars left running, for nothing good can be done."
            ),
            "swaps_total": self.counter(
                "pyvgpu_sidecar_swaps_total", "Images changed because a person asked for it."
            ),
            "backoff_limits_raised_total": self.counter(
                "pyvgpu_sidecar_backoff_limits_raised_total",
                "Jobs whose backoffLimit was raised by the restarts that are ours.",
            ),
        }
        self.adopted = self.counter(
            "pyvgpu_sidecar_adopted_pods_total", "Pods without our label that the sweep found."
        )
        self.end_seconds = self.histogram(
            "pyvgpu_sidecar_end_seconds",
            "From the end of the last main container to that of the last sidecar, by path.",
            figures.PATIENT,
            "path",
        )
        self.writes = self.histogram(
            "pyvgpu_sidecar_writes_per_pod", "Writes that the end of a pod took.", (0, 1, 2, 3)
        )
        self.gpu_idle_seconds = self.counter(
            "pyvgpu_sidecar_gpu_idle_seconds_total",
            "GPUs times the seconds in which their work was done and a sidecar still ran.",
        )
        self.saved = Saved()
        self.registry.register(self.saved)


class NodeMeter(Meter):
    """What the node part counts."""

    def __init__(self) -> None:
        super().__init__()
        self.stops = self.counter(
            "pyvgpu_sidecar_stops_total",
            "Containers that were told to end, by what became of it: ended, told or failed.",
            "result",
        )
        self.stop_seconds = self.histogram(
            "pyvgpu_sidecar_stop_seconds",
            "From the signal to the end of a container that was told to end.",
            figures.PATIENT,
        )
        self.signal_seconds = self.histogram(
            "pyvgpu_sidecar_signal_seconds",
            "From the end of the last main container to the first word to a sidecar.",
            figures.PATIENT,
        )
        self.runtime_errors = self.counter(
            "pyvgpu_runtime_errors_total", "Calls that the container runtime did not do."
        )


class WebhookMeter(Meter):
    """What the webhook counts."""

    def __init__(self) -> None:
        super().__init__()
        self._reviews = self.counter(
            "pyvgpu_webhook_reviews_total",
            "Objects that the API server asked about, by path and what became of them.",
            "path",
            "result",
        )
        self._seconds = self.histogram(
            "pyvgpu_webhook_review_seconds",
            "From a question to its answer.",
            figures.QUICK,
            "path",
        )

    def reviewed(self, path: str, result: str, seconds: float) -> None:
        """Count an answer."""
        self._reviews.labels(path, result).inc()
        self._seconds.labels(path).observe(seconds)
        if result == "failed":
            self.failures.inc()


class ClaimMeter(Meter):
    """What the claim controller counts."""

    def __init__(self) -> None:
        super().__init__()
        self.collected = self.counter(
            "pyvgpu_claim_templates_collected_total",
            "Templates of claims that were deleted, for no pod named them any more.",
        )


class SchedulerMeter(Meter):
    """What the scheduler extender counts."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = self.counter(
            "pyvgpu_scheduler_answers_total",
            "Questions of kube-scheduler, by path and what was answered.",
            "path",
            "result",
        )
        self._seconds = self.histogram(
            "pyvgpu_scheduler_answer_seconds",
            "From a question to its answer, by path.",
            figures.QUICK,
            "path",
        )
        self.wakes = self.counter(
            "pyvgpu_scheduler_wakes_total",
            "Writes that let kube-scheduler look again at pods that wait.",
        )

        self.sampled = self.counter(
            "pyvgpu_scheduler_sampled_total",
            "Pods told that they wait where kube-scheduler asked about some nodes alone.",
        )

    def watch(
        self, desk: desk.Desk, leads: Callable[[], bool], expires: Callable[[], float]
    ) -> None:
        """Show what *desk* knows now."""

        def of_term(read: Callable[[term.Term], float]) -> Callable[[], float]:
            return lambda: 0.0 if desk.term is None else float(read(desk.term))

        for name, text, read in (
            (
                "pyvgpu_scheduler_nodes",
                "Nodes of which something is known.",
                lambda it: len(it.book.stands),
            ),
            (
                "pyvgpu_scheduler_pods",
                "Pods with devices of ours that are not over.",
                lambda it: len(it.book.pods),
            ),
            (
                "pyvgpu_scheduler_drift",
                "In how much it knew otherwise than the API server when it last compared.",
                lambda it: it.drift,
            ),
            (
                "pyvgpu_scheduler_comparisons",
                "How often it has compared what it knows with the API server in this term.",
                lambda it: it.comparisons,
            ),
            (
                "pyvgpu_scheduler_evictions",
                "Pods that were told to go in this term.",
                lambda it: it.evicted,
            ),
        ):
            self.gauge(name, text, of_term(read))
        self.gauge("pyvgpu_scheduler_leads", "1 if it holds the lease.", lambda: float(leads()))
        self.gauge(
            "pyvgpu_scheduler_certificate_expiry_seconds",
            "When the certificate ends, in seconds since 1970; 0: there is none yet.",
            expires,
        )

    def answered(self, path: str, result: str, seconds: float) -> None:
        """Count an answer."""
        self._answers.labels(path, result).inc()
        self._seconds.labels(path).observe(seconds)


class StatusMeter(Meter):
    """What the status page of a cluster counts."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = self.counter(
            "pyvgpu_status_answers_total", "Answers to browsers, by path and code.", "path", "code"
        )
        self._seconds = self.histogram(
            "pyvgpu_status_answer_seconds",
            "From a browser's question to its answer, by path.",
            figures.QUICK,
            "path",
        )

    def watch(self, shown: cluster.Cluster, expires: Callable[[], float]) -> None:
        """Show what is known of the cluster now."""
        self.gauge("pyvgpu_status_nodes", "Nodes that are shown.", lambda: float(shown.nodes))
        self.gauge(
            "pyvgpu_status_certificate_expiry_seconds",
            "When the certificate ends, in seconds since 1970; 0: there is none yet.",
            expires,
        )

    def answered(self, path: str, code: str, seconds: float) -> None:
        """Count an answer."""
        self._answers.labels(path, code).inc()
        self._seconds.labels(path).observe(seconds)


class Saved(prometheus.registry.Collector):
    """GPU-seconds that would have been held: a pod that hangs is noticed after an hour, we say.

    So each pod that we ended saves its GPUs for as long as it has been over, at most that hour.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._settled = 0.0
        self._ended: list[tuple[float, float]] = []  # when by our clock, and how many GPUs
        self._guard = threading.Lock()

    def add(self, gpus: float) -> None:
        """Count a pod that has just ended and had so many GPUs."""
        if gpus > 0:
            with self._guard:
                self._ended.append((self._clock(), gpus))

    def seconds(self) -> float:
        """Return the sum until now."""
        with self._guard:
            now = self._clock()
            over = [it for it in self._ended if now - it[0] >= SAVED_AT_MOST_SECONDS]
            self._ended = self._ended[len(over) :]  # they are in the order of their ends
            self._settled += sum(gpus * SAVED_AT_MOST_SECONDS for _, gpus in over)
            return self._settled + sum(gpus * (now - at) for at, gpus in self._ended)

    def collect(self) -> list[core.CounterMetricFamily]:
        """Return the figure for Prometheus."""
        family = core.CounterMetricFamily(
            "pyvgpu_sidecar_gpu_saved_seconds_total",
            "GPUs of pods that were ended, times the seconds since; at most an hour of each, "
            "after which an admin would have seen it hang.",
            value=self.seconds(),
        )
        return [family]
