"""Keeps the cluster's last day in a ConfigMap, so that it survives the pod of the page.

The chart creates the ConfigMap, without data; the page reads it once, before its first sample,
and writes it whenever a step of the day is over. All replicas see the same cluster, so the last
writer wins, whichever it is.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.status import history

log = logging.getLogger(__name__)

KEY = "day.json"  # in the ConfigMap
POLL_SECONDS = 1.0
_FORBIDDEN = 403


class StoredDay:
    """Reads and writes a day in the ConfigMap at an URL *path*, on a thread of its own."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        path: str,
        day: history.DayHistory,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._path = path
        self._day = day
        self._clock = clock
        self._texts: collections.deque[str] = collections.deque(maxlen=1)  # to be written
        self._trouble = ""  # why the last request failed
        self.was_read = threading.Event()  # or cannot be: samples may be added to the day

    def put(self, text: str) -> None:
        """Let *text*, of the day, be written."""
        self._texts.append(text)

    def run(self, stop: threading.Event) -> None:
        """Read once, then write what was put, until *stop*."""
        while not stop.is_set() and not self._read():
            stop.wait(POLL_SECONDS)
        self.was_read.set()
        while not stop.wait(POLL_SECONDS):
            if self._texts:
                self._write(self._texts.pop())

    def _read(self) -> bool:
        """Restore the stored day; return False to try again."""
        try:
            found = self._api.call("GET", self._path)
        except apiserver.ServerError as exc:
            self._failed("read", exc)
            return exc.status in (_FORBIDDEN, apiserver.NOT_FOUND)
        self._trouble = ""
        text = objects.section(found, "data").get(KEY)
        if text:
            try:
                self._day.restore(str(text), self._clock())
            except ValueError as exc:
                log.warning("the charts of the last day start empty: %s: %s", self._path, exc)
        return True

    def _write(self, text: str) -> None:
        body = {"data": {KEY: text}}
        try:
            self._api.call("PATCH", self._path, body=body, kind=apiserver.MERGE_PATCH)
            self._trouble = ""
        except apiserver.ServerError as exc:
            self._failed("store", exc)

    def _failed(self, what: str, exc: apiserver.ServerError) -> None:
        """Log a failure, once until it is another one or over."""
        trouble = f"{what} {exc.status}"
        if trouble != self._trouble:
            log.warning("cannot %s the charts of the last day: %s", what, exc)
        self._trouble = trouble
