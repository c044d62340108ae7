"""Prometheus metrics of the scheduler extender."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pyvgpu.http import exposition
from pyvgpu.kube import api_metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.controller.scheduler import cache


class TermFigures(Protocol):
    """What a term of leadership reports, read at each scrape."""

    cache: cache.Cache

    @property
    def drift(self) -> int:
        """Differences that the last comparison with the API server found."""

    @property
    def comparisons(self) -> int:
        """Comparisons with the API server so far."""

    @property
    def evicted(self) -> int:
        """Pods evicted so far."""


class SchedulerMeter(api_metrics.ApiMeter):
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
        self,
        current: Callable[[], TermFigures | None],
        leads: Callable[[], bool],
        expires: Callable[[], float],
    ) -> None:
        """Export the figures of the *current* term; 0 while there is none."""

        def of_term(read: Callable[[TermFigures], float]) -> Callable[[], float]:
            def value() -> float:
                term = current()
                return 0.0 if term is None else float(read(term))

            return value

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
