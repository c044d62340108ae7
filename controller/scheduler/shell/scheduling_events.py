"""Events that tell users why a pod waits or was evicted.

A waiting pod is refused again and again: it gets an event when the reason changes, and at most
one a minute. Why it waits is computed on the event recorder's thread, so that answers to
kube-scheduler do not wait for it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu.kube import event_recorder

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from pyvgpu.controller.scheduler import pod_request
    from pyvgpu.kube import apiserver

COMPONENT = "pyvgpu-scheduler"
WAITS = "VGPUWaits"  # no node has room; says what would make some
LIMITS = event_recorder.EventLimits(least_seconds=60.0, repeat_seconds=600.0)


class SchedulingEvents:
    """Records events on pods."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        why: Callable[[pod_request.PodRequest, Sequence[str]], str],
        limits: event_recorder.EventLimits | None = None,
    ) -> None:
        """Write none yet; *why* returns why some nodes refuse a pod, or nothing."""
        self._why = why
        self._recorder = event_recorder.Recorder(
            api, event_recorder.EventSource(COMPONENT), limits or LIMITS, complete=self._complete
        )

    def waits(self, pod: pod_request.PodRequest, names: Sequence[str]) -> None:
        """Queue an event that says why *pod*, which the nodes *names* refuse, waits."""
        self._recorder.record(_event(pod, WAITS, "", names))

    def say(self, pod: pod_request.PodRequest, reason: str, text: str) -> None:
        """Queue an event on *pod*."""
        self._recorder.record(_event(pod, reason, text))

    def close(self) -> None:
        """Let ``run`` end."""
        self._recorder.close()

    def run(self, stop: threading.Event) -> None:
        """Write events until *stop*, or until it is closed."""
        self._recorder.run(stop)

    def _complete(self, event: event_recorder.Event) -> event_recorder.Event | None:
        if event.text:
            return event
        pod, names = event.of
        text = self._why(pod, names)
        return dataclasses.replace(event, text=text) if text else None


def _event(
    pod: pod_request.PodRequest, reason: str, text: str, names: Sequence[str] = ()
) -> event_recorder.Event:
    namespace, _, name = pod.key.partition("/")
    return event_recorder.Event(pod.uid, namespace, name, reason, text, of=(pod, names))
