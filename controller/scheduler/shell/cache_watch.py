"""Watch nodes, pods and PodDisruptionBudgets, and update the scheduler cache from them.

Of a node only its agent's annotation is kept, parsed again only when the text changes; of a pod
the small record that the cache holds, too. Pods without devices of ours are not kept at all.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pyvgpu.controller.scheduler import node_annotation_reader, pod_request
from pyvgpu.kube import informer

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from pyvgpu.controller.scheduler import cache
    from pyvgpu.kube import apiserver
    from pyvgpu.kube.objects import Object

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
BUDGETS = "/apis/policy/v1/poddisruptionbudgets"


class Following:
    """Watches nodes and pods, and updates the cache."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        known: cache.Cache,
        keys: Callable[[], Sequence[bytes] | None],
        changed: Callable[[], None],
        counting: informer.Counting | None = None,
        nominated: Callable[[pod_request.PodRequest], object] = lambda _: None,
    ) -> None:
        """Read nothing yet.

        *keys* are as in :func:`asks.read`. *changed* is called when devices may have been freed,
        *nominated* for each pod for which kube-scheduler preempts others.
        """
        self._nominated = nominated
        self._cache = known
        self._changed = changed
        self._reports: dict[
            str, node_annotation_reader.NodeReport
        ] = {}  # by node, as in the cache
        self._nodes = informer.Informer(
            api, NODES, {}, self._read_node, self._node_changed, counting
        )
        self._pods = informer.Informer(
            api,
            PODS,
            {},
            lambda thing: pod_request.read(thing, keys()),
            self._pod_changed,
            counting,
        )

    @property
    def _followed(self) -> tuple[tuple[informer.Informer[Any], str], ...]:
        """Return the informers, each with the name of its resource."""
        return (self._nodes, "nodes"), (self._pods, "pods")

    @property
    def parts(self) -> tuple[Callable[[threading.Event], None], ...]:
        """Return the functions to run, each in a thread, until an event."""
        return tuple(known.run for known, _ in self._followed)

    @property
    def missing(self) -> str:
        """Say what has not been listed yet; empty once everything has."""
        for known, what in self._followed:
            if not known.synced.is_set():
                return f"the {what} have not been read yet"
        return ""

    def is_current(self, seconds: float = 0.0) -> bool:
        """Return whether both watches are unbroken; wait up to *seconds* until they are.

        While a watch is lost, the API server may return with an old state.
        """
        end = time.monotonic() + seconds
        return all(
            watch.current.wait(max(0.0, end - time.monotonic()))
            for watch in (self._nodes, self._pods)
        )

    def relist(self) -> None:
        """List everything again, soon."""
        for known, _ in self._followed:
            known.relist()

    @property
    def nodes(self) -> int:
        """Return how many nodes there are, including those without devices."""
        return len(self._nodes)

    def _read_node(self, node: Object) -> node_annotation_reader.NodeReport:
        return node_annotation_reader.read(node, self._nodes.get(informer.key_of(node)))

    def _node_changed(self, name: str) -> None:
        report = self._nodes.get(name)
        if report is self._reports.get(name):
            return  # a heartbeat
        if report is None:
            del self._reports[name]
            self._cache.forget_node(name)
        else:
            self._reports[name] = report
            self._cache.see_node(name, report.published, report.trouble)
        self._changed()

    def _pod_changed(self, key: str) -> None:
        before, pod = self._cache.pods.get(key), self._pods.get(key)
        if before is None and pod is None:
            return  # it has no devices of ours
        self._cache.see_pod(key, pod)
        if pod is not None and pod.nominated and pod.waits:
            self._nominated(pod)
        if before is not None and (pod is None or pod.uid != before.uid or pod.over):
            self._changed()


class ClusterWatch(Following):
    """Watches PodDisruptionBudgets, too."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        known: cache.Cache,
        keys: Callable[[], Sequence[bytes]],
        changed: Callable[[], None],
        counting: informer.Counting | None = None,
        nominated: Callable[[pod_request.PodRequest], object] = lambda _: None,
    ) -> None:
        """Read nothing yet; see :class:`Following`."""
        super().__init__(api, known, keys, changed, counting, nominated)
        self._budgets = informer.Informer(
            api, BUDGETS, {}, dict, lambda _: self._changed(), counting
        )

    @property
    def _followed(self) -> tuple[tuple[informer.Informer[Any], str], ...]:
        return *super()._followed, (self._budgets, "PodDisruptionBudgets")

    def budgets(self) -> Sequence[Object]:
        """Return the PodDisruptionBudgets."""
        return self._budgets.values()
