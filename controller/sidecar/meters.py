"""Prometheus metrics of the sidecar controller and of its node part."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import prometheus_client as prometheus
from prometheus_client import core

from pyvgpu.http import exposition
from pyvgpu.kube import api_metrics

if TYPE_CHECKING:
    from collections.abc import Callable


SAVED_AT_MOST_SECONDS = 3600.0


class ControllerMeter(api_metrics.ApiMeter):
    """Metrics of the sidecar controller."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = {
            "decisions_total": self.counter(
                "pyvgpu_sidecar_decisions_total",
                "Sidecars that the controller started to end, by path.",
                "path",
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


class NodeMeter(api_metrics.ApiMeter):
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
            over = [ended for ended in self._ended if now - ended[0] >= SAVED_AT_MOST_SECONDS]
            self._ended = self._ended[len(over) :]  # ordered by time
            self._settled += sum(gpus * SAVED_AT_MOST_SECONDS for _, gpus in over)
            return self._settled + sum(gpus * (now - at) for at, gpus in self._ended)

    def collect(self) -> list[core.CounterMetricFamily]:
        """Return the metric for Prometheus."""
        family = core.CounterMetricFamily(
            "pyvgpu_sidecar_gpu_saved_seconds_total",
            "GPU-seconds freed by ending pods: GPUs of each pod times the seconds since its "
            "end, at most one hour per pod.",
            value=self.seconds(),
        )
        return [family]
