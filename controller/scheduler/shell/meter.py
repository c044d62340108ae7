"""Prometheus metrics of the scheduler extender."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu.http import exposition
from pyvgpu.kube import metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.controller.scheduler.shell import leader, session


class SchedulerMeter(metrics.Meter):
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
            "Events for pods that wait because kube-scheduler asked about only some nodes.",
        )

    def watch(
        self, desk: leader.Desk, leads: Callable[[], bool], expires: Callable[[], float]
    ) -> None:
        """Show the state of the current term of *desk*."""

        def of_term(read: Callable[[session.Term], float]) -> Callable[[], float]:
            return lambda: 0.0 if desk.term is None else float(read(desk.term))

        for name, text, read in (
            (
                "pyvgpu_scheduler_nodes",
                "Nodes in the scheduler cache.",
                lambda term: len(term.cache.nodes),
            ),
            (
                "pyvgpu_scheduler_pods",
                "Pods with pyvgpu devices that have not ended.",
                lambda term: len(term.cache.pods),
            ),
            (
                "pyvgpu_scheduler_drift",
                "Differences between cache and API server found by the last comparison.",
                lambda term: term.drift,
            ),
            (
                "pyvgpu_scheduler_comparisons",
                "Comparisons of the cache with the API server since this replica became leader.",
                lambda term: term.comparisons,
            ),
            (
                "pyvgpu_scheduler_evictions",
                "Pods evicted since this replica became leader.",
                lambda term: term.evicted,
            ),
        ):
            self.gauge(name, text, of_term(read))
        self.gauge(
            "pyvgpu_scheduler_leads", "1 if this replica holds the lease.", lambda: float(leads())
        )
        self.gauge(
            "pyvgpu_scheduler_certificate_expiry_seconds",
            "Expiry time of the certificate, in seconds since 1970; 0: no certificate yet.",
            expires,
        )

    def answered(self, path: str, result: str, seconds: float) -> None:
        """Count an answer."""
        self._answers.labels(path, result).inc()
        self._seconds.labels(path).observe(seconds)
