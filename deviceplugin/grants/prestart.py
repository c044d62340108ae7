"""PreStartContainer pipeline: identify the pods of starting containers, then bind their grants.

One thread identifies all pods of a batch, one binds them. Slow calls to the API server run on
other threads, so that no container waits for another pod's.

Before kubelet creates a container, it makes one call for each of its resources, one after the
other. So the files that were prepared at the first call are not checked again at the second.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import time
from typing import TYPE_CHECKING, TypeAlias

from pyvgpu.deviceplugin.kubelet.device_ids import ResourceKind
from pyvgpu.kube import batcher

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from pyvgpu.deviceplugin.grants import grant_binding, interfaces, pod_identity

_ASKING = 8  # threads that call the API server
_AT_ONCE = 10  # containers bound as one batch, which start once all of them are on the disk
_PAUSE = 0.001  # seconds without another start before kubelet is queried for the batch


Done: TypeAlias = "Callable[[Exception | None], None]"  # called with the failure; None: may start


@dataclasses.dataclass(frozen=True, slots=True)
class _Start:
    """A container that is about to start, and the callback that waits for it."""

    held: grant_binding.StartingIds
    done: Done


@dataclasses.dataclass(frozen=True, slots=True)
class _IdentifiedStart:
    """A start whose pod is identified."""

    start: _Start
    found: grant_binding.IdentifiedPod


class Starts:
    """Identifies and binds pods of starting containers, without blocking the caller.

    *find* and *bind* return a result or an exception for each; *refused* is called for failures.
    *prepare* does work in advance, while a batch still collects.
    """

    def __init__(
        self,
        prepare: Callable[[], object],
        find: Callable[
            [Sequence[grant_binding.StartingIds]],
            Sequence[grant_binding.IdentifiedPod | Exception],
        ],
        bind: Callable[[Sequence[grant_binding.IdentifiedPod]], Sequence[None | Exception]],
        refused: Callable[[pod_identity.KnownPod, Exception], None],
        policy: interfaces.StartPolicy,
    ) -> None:
        self._prepare = prepare
        self._find = find
        self._bind = bind
        self._refused = refused
        self._policy = policy
        self._workers = concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="starts")
        self._asking = concurrent.futures.ThreadPoolExecutor(_ASKING, thread_name_prefix="asks")
        self._finding = batcher.Gathered(self._find_all, self._workers.submit, self._pause)
        self._binding = batcher.Gathered(self._bind_all, self._workers.submit)

    def begin(self, held: grant_binding.StartingIds, done: Done) -> None:
        """Start the container that holds these ids; *done* is called from another thread."""
        self._finding.add(_Start(held, done))

    def _pause(self) -> None:
        self._prepare()
        time.sleep(_PAUSE)

    def _find_all(self, batch: Sequence[_Start]) -> None:
        try:
            results = self._find([pending.held for pending in batch])
        except Exception as exc:
            results = [exc] * len(batch)
        ready = []
        for start, found in zip(batch, results, strict=True):
            if isinstance(found, Exception):
                start.done(found)
            elif self._policy.choose is None and (
                found.pod.name or self._policy.find_name is None
            ):
                ready.append(_IdentifiedStart(start, found))
            else:
                self._asking.submit(self._ask, _IdentifiedStart(start, found))
        self._binding.add(*ready)

    def _ask(self, one: _IdentifiedStart) -> None:
        """Read a pod's data from the API server, then queue it for binding."""
        found, pod = one.found, one.found.pod
        try:
            # PodResources omits a pod if only init containers of it have devices here.
            if not pod.name and self._policy.find_name is not None:
                namespace, name = self._policy.find_name(pod.uid)
                pod = dataclasses.replace(pod, namespace=namespace, name=name)
                found = dataclasses.replace(found, pod=pod)
            if self._policy.choose is not None:
                found = dataclasses.replace(found, chosen=self._policy.choose(pod))
        except Exception as exc:
            self._refused(pod, exc)
            one.start.done(exc)
            return
        self._binding.add(_IdentifiedStart(one.start, found))

    def _bind_all(self, batch: Sequence[_IdentifiedStart]) -> None:
        """Bind in sub-batches: containers of one start while the next is bound."""
        for first in range(0, len(batch), _AT_ONCE):
            self._bind_some(batch[first : first + _AT_ONCE])

    def _bind_some(self, batch: Sequence[_IdentifiedStart]) -> None:
        try:
            results = self._bind([known.found for known in batch])
        except Exception as exc:
            results = [exc] * len(batch)
        well = []
        for one, failure in zip(batch, results, strict=True):
            if failure is None:
                well.append(one.start)
            else:
                self._refused(one.found.pod, failure)
                one.start.done(failure)
        if not well:
            return
        if self._policy.wait_published is not None:
            self._asking.submit(self._end, well, self._policy.wait_published)
        else:
            self._end(well)

    def _end(
        self, well: Sequence[_Start], wait_published: Callable[[], object] | None = None
    ) -> None:
        if wait_published is not None:
            wait_published()
        for start in well:
            start.done(None)


FRESH_SECONDS = 5.0  # a later call belongs to another start

_ALL = frozenset({ResourceKind.VCORE, ResourceKind.VMEMORY})


class Fresh:
    """The grants just prepared, and the kinds of which kubelet's call is still to come."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: dict[str, tuple[frozenset[ResourceKind], float]] = {}

    def note(self, grant_id: str, asked: ResourceKind | None = None) -> None:
        """Record a prepared grant; *asked*: the kind of the current call, None without one."""
        self._left[grant_id] = _ALL - {asked}, self._clock()

    def take(self, grant_id: str, kind: ResourceKind) -> bool:
        """Return whether a call for *kind* finds the grant prepared; valid once for each kind."""
        left, since = self._left.pop(grant_id, (frozenset[ResourceKind](), 0.0))
        if kind not in left or self._clock() - since > FRESH_SECONDS:
            return False
        self._left[grant_id] = left - {kind}, since
        return True

    def keep(self, ids: Container[str]) -> None:
        """Forget all but these grants."""
        self._left = {grant_id: left for grant_id, left in self._left.items() if grant_id in ids}
