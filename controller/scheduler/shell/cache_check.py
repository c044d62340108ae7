"""Compare the scheduler cache with the API server periodically, and correct it.

A second cache is built from each object of the lists; what it has must be equal. Updates in
flight differ for a moment: so only what differs twice in a row counts, and then everything is
listed again. The cache answers kube-scheduler, in an event loop, which waits for the cache's lock
and for the interpreter's: so each object is decoded, compared and freed by itself, with a pause
after a few.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, TypeVar

from pyvgpu.controller.scheduler import cache, node_annotation_reader, pod_request
from pyvgpu.controller.scheduler.shell import cache_watch
from pyvgpu.kube import apiserver, informer

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator, Sequence

log = logging.getLogger(__name__)

Thing = TypeVar("Thing")

AGAIN_SECONDS = 5.0  # between the two comparisons
_SHOWN = 10  # differences to log
PAGE = 100  # objects: up to 1 MB of text, which is decoded one object at a time
# Requests of kube-scheduler come first: half a millisecond of work, then a pause, so that most
# requests meet none of it.
_AT_ONCE, _PAUSE_SECONDS = 5, 0.005


class Drift:
    """Counts comparisons, and the differences that the last one found."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        known: cache.Cache,
        keys: Callable[[], Sequence[bytes]],
        relist: Callable[[], None],
    ) -> None:
        self._api = api
        self._cache = known
        self._keys = keys
        self._relist = relist
        self.count = 0
        self.comparisons = 0

    def run(self, stop: threading.Event) -> None:
        """Compare until *stop*."""
        while not stop.wait(self._cache.settings.resync_seconds):
            try:
                self.poll(stop)
            except apiserver.ServerError as exc:
                log.warning("cannot compare the cache with the API server: %s", exc)

    def poll(self, stop: threading.Event) -> None:
        """Compare, and correct the cache: drop what does not exist, list the rest again."""
        found = self._compare(stop)
        if found.lines and not stop.wait(AGAIN_SECONDS):
            found = found.common(self._compare(stop))
        self.count = len(found.lines)
        self.comparisons += 1
        if found.lines:
            shown = "; ".join(sorted(found.lines)[:_SHOWN])
            log.warning(
                "scheduler cache differed from the API server and was corrected: %s", shown
            )
            for key in found.pods:
                self._cache.see_pod(key, None)
            for name in found.nodes:
                self._cache.forget_node(name)
            self._relist()

    def _compare(self, stop: threading.Event) -> _Differences:
        """Compare each object with the cache, then look for what is in no list."""
        lines: set[str] = set()
        nodes: set[str] = set()  # that exist
        pods: set[str] = set()  # that the cache is to have
        for node in _paused(self._api.each(cache_watch.NODES, {}, PAGE), stop):
            truth, name = cache.Cache(self._cache.settings), informer.key_of(node)
            report = node_annotation_reader.read(node)
            truth.see_node(name, report.published, report.trouble)
            lines.update(self._cache.differences(truth, (name,), ()))
            nodes.add(name)
        for thing in _paused(self._api.each(cache_watch.PODS, {}, PAGE), stop):
            truth, key = cache.Cache(self._cache.settings), informer.key_of(thing)
            truth.see_pod(key, pod_request.read(thing, self._keys()))
            lines.update(self._cache.differences(truth, (), (key,)))
            pods.update(truth.pods)
        nothing = cache.Cache(self._cache.settings)
        gone_nodes = [name for name in list(self._cache.nodes) if name not in nodes]
        gone_pods = [key for key in list(self._cache.pods) if key not in pods]
        for name in _paused(gone_nodes, stop):
            lines.update(self._cache.differences(nothing, (name,), ()))
        for key in _paused(gone_pods, stop):
            lines.update(self._cache.differences(nothing, (), (key,)))
        return _Differences(frozenset(lines), frozenset(gone_pods), frozenset(gone_nodes))


def _paused(things: Iterable[Thing], stop: threading.Event) -> Iterator[Thing]:
    """Yield *things*, a few at once, with pauses until *stop*."""
    for number, thing in enumerate(things):
        if number % _AT_ONCE == 0:
            stop.wait(_PAUSE_SECONDS)
        yield thing


@dataclasses.dataclass(frozen=True, slots=True)
class _Differences:
    """What differs in the cache."""

    lines: frozenset[str]
    pods: frozenset[str]  # that the API server does not have
    nodes: frozenset[str]

    def common(self, other: _Differences) -> _Differences:
        """Return the differences that both have."""
        return _Differences(
            self.lines & other.lines, self.pods & other.pods, self.nodes & other.nodes
        )
