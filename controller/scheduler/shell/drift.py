"""Compares what the scheduler knows with what the API server has, again and again.

A second book is made from lists; the two must not differ in anything. What is on its way differs
for a moment: so only what differs twice counts, and then everything is read anew.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from pyvgpu.controller.scheduler import asks, book, declared
from pyvgpu.controller.scheduler.shell import watching
from pyvgpu.kube import apiserver, informer

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0  # between the two comparisons
_SHOWN = 10  # differences that are logged


class Drift:
    """Knows how many differences there were when it was last looked, and how often it was."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        known: book.Book,
        keys: Callable[[], Sequence[bytes]],
        read_anew: Callable[[], None],
    ) -> None:
        self._api = api
        self._book = known
        self._keys = keys
        self._read_anew = read_anew
        self.count = 0
        self.comparisons = 0

    def run(self, stop: threading.Event) -> None:
        """Compare until *stop*."""
        while not stop.wait(self._book.settings.resync_seconds):
            try:
                self.look(stop)
            except apiserver.ServerError as exc:
                log.warning("did not compare with the API server: %s", exc)

    def look(self, stop: threading.Event) -> None:
        """Compare, and mend what is otherwise: forget what is not there, read the rest anew."""
        found = self._compare()
        if found.lines and not stop.wait(AGAIN_SECONDS):
            found = found.common(self._compare())
        self.count = len(found.lines)
        self.comparisons += 1
        if found.lines:
            shown = "; ".join(sorted(found.lines)[:_SHOWN])
            log.warning("knows otherwise than the API server: %s", shown)
            for key in found.pods:
                self._book.see_pod(key, None)
            for name in found.nodes:
                self._book.forget_node(name)
            self._read_anew()

    def _compare(self) -> _Differences:
        truth = book.Book(self._book.settings)
        for page, _ in self._api.pages(watching.NODES, {}):
            for node in page:
                told = declared.read(node)
                truth.see_node(informer.key_of(node), told.published, told.trouble)
        for page, _ in self._api.pages(watching.PODS, {}):
            for thing in page:
                truth.see_pod(informer.key_of(thing), asks.read(thing, self._keys()))
        with self._book.lock:
            return _Differences(
                frozenset(self._book.differences(truth)),
                frozenset(self._book.pods.keys() - truth.pods.keys()),
                frozenset(self._book.stands.keys() - truth.stands.keys()),
            )


@dataclasses.dataclass(frozen=True, slots=True)
class _Differences:
    """In what the book is otherwise."""

    lines: frozenset[str]
    pods: frozenset[str]  # that the API server has not
    nodes: frozenset[str]

    def common(self, other: _Differences) -> _Differences:
        """Return what both have."""
        return _Differences(
            self.lines & other.lines, self.pods & other.pods, self.nodes & other.nodes
        )
