"""Tells users, by events on their pods, why a pod waits and what was done to another.

A pod that waits is refused again and again: it is told when the reason is another one, and not
oftener than once a minute. Events are made behind whoever answers the scheduler, and so many a
second at most; where more happens, some is not said.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import queue
import time
from typing import TYPE_CHECKING

from pyvgpu.controller import objects, pace
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from pyvgpu.controller.scheduler import asks

log = logging.getLogger(__name__)

COMPONENT = "pyvgpu-scheduler"
WAITS = "VGPUWaits"  # it has no place yet, and what would make one
PER_SECOND = 20
MOST = 2000  # that wait to be made
LEAST_SECONDS = 60.0  # between two events of one pod
MOST_BYTES = 1000  # of a text


@dataclasses.dataclass(frozen=True, slots=True)
class _Told:
    """What is to be said."""

    pod: asks.Pod
    reason: str
    text: str = ""  # empty: why it waits
    names: Sequence[str] = ()  # of the nodes where it has no place


class Teller:
    """Makes events."""

    def __init__(
        self, api: apiserver.ApiServer, why: Callable[[asks.Pod, Sequence[str]], str]
    ) -> None:
        """Make none yet; *why* says why a pod has no place on some nodes, or nothing."""
        self._api = api
        self._why = why
        self._pace = pace.Pace(PER_SECOND)
        self._waiting: queue.Queue[_Told | None] = queue.Queue(MOST)
        self._said: dict[str, tuple[float, str]] = {}  # by uid: when, and what

    def waits(self, pod: asks.Pod, names: Sequence[str]) -> None:
        """Let it be said why *pod* waits, which has no place on the nodes called *names*."""
        when, _ = self._said.get(pod.uid, (-LEAST_SECONDS, ""))
        if time.monotonic() >= when + LEAST_SECONDS:
            self._put(_Told(pod, WAITS, names=names))

    def say(self, pod: asks.Pod, reason: str, text: str) -> None:
        """Let *text* be said of *pod*; too much is not said."""
        self._put(_Told(pod, reason, text))

    def close(self) -> None:
        """Let ``run`` end."""
        while True:
            try:
                self._waiting.put_nowait(None)
            except queue.Full:
                self._waiting.get_nowait()
            else:
                return

    def run(self, stop: threading.Event) -> None:
        """Make events until *stop*, and until it is closed."""
        while not stop.is_set() and (told := self._waiting.get()) is not None:
            text = told.text or self._news(told.pod, told.names)
            if text:
                self._pace.wait()
                self._make(told.pod, told.reason, _short(text))

    def _put(self, told: _Told) -> None:
        try:
            self._waiting.put_nowait(told)
        except queue.Full:
            log.debug("does not say %s of pod %s", told.reason, told.pod.key)

    def _news(self, pod: asks.Pod, names: Sequence[str]) -> str:
        now = time.monotonic()
        when, before = self._said.get(pod.uid, (-LEAST_SECONDS, ""))
        text = self._why(pod, names) if now >= when + LEAST_SECONDS else ""
        if not text or text == before:
            return ""
        if len(self._said) >= MOST:
            self._said = {
                uid: it for uid, it in self._said.items() if now < it[0] + 10 * LEAST_SECONDS
            }
        self._said[pod.uid] = now, text
        return text

    def _make(self, pod: asks.Pod, reason: str, text: str) -> None:
        namespace, _, name = pod.key.partition("/")
        digest = hashlib.blake2b(f"{pod.uid} {reason} {text}".encode(), digest_size=8).hexdigest()
        now = objects.now()
        body = {
            "metadata": {"name": f"{name[:200]}.{digest}", "namespace": namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": namespace,
                "name": name,
                "uid": pod.uid,
            },
            "type": "Warning",
            "reason": reason,
            "message": text,
            "source": {"component": COMPONENT},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._api.call("POST", f"/api/v1/namespaces/{namespace}/events", body=body)
        except apiserver.ServerError as exc:
            if not exc.outdated:
                log.info("did not say %s of pod %s: %s", reason, pod.key, exc)


def _short(text: str) -> str:
    cut = text.encode()[:MOST_BYTES].decode(errors="ignore")
    return text if cut == text else f"{cut}..."
