"""Lets containers start: when it is known whose their ids are, and what those are worth is there.

One thread finds out for all who have come by then, one binds them. What may take long, since the
cluster is asked, is done by others: nobody waits for a pod that is not his.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import time
from typing import TYPE_CHECKING, TypeAlias

from pyvgpu.deviceplugin import binding, gathered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyvgpu.deviceplugin import identity, placing

_ASKING = 8  # threads that ask the cluster
_AT_ONCE = 10  # containers that wait for one another until all of them are bound, and on the disk
_PAUSE = 0.001  # seconds without another who starts: then kubelet is asked for all of them


Done: TypeAlias = "Callable[[Exception | None], None]"  # called with why not, if it does not start


@dataclasses.dataclass(frozen=True, slots=True)
class _Start:
    """A container that is about to start, and who waits for it."""

    held: binding.Held
    done: Done


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """The same, when its pod is known."""

    start: _Start
    found: binding.Found


class Starts:
    """Has pods found and bound; never waits itself.

    *find* and *bind* give for each what there is, or why not; *refused* hears of the latter. What
    can be done before all have come, *prepare* does.
    """

    def __init__(
        self,
        prepare: Callable[[], object],
        find: Callable[[Sequence[binding.Held]], Sequence[binding.Found | Exception]],
        bind: Callable[[Sequence[binding.Found]], Sequence[None | Exception]],
        refused: Callable[[identity.Pod, Exception], None],
    ) -> None:
        self._prepare = prepare
        self._find = find
        self._bind = bind
        self._refused = refused
        self._workers = concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="starts")
        self._asking = concurrent.futures.ThreadPoolExecutor(_ASKING, thread_name_prefix="asks")
        self._finding = gathered.Gathered(self._find_all, self._workers.submit, self._pause)
        self._binding = gathered.Gathered(self._bind_all, self._workers.submit)
        # Who asks the cluster, if there is one: for a pod's namespace and name by its uid, for
        # what is chosen of its devices or wanted of them, or raises RefusedError; and who is back
        # when the cluster has heard of what was given.
        self.find_name: Callable[[str], tuple[str, str]] | None = None
        self.choose: Callable[[identity.Pod], placing.Chosen] | None = None
        self.until_known: Callable[[], object] | None = None

    def begin(self, held: binding.Held, done: Done) -> None:
        """Let the container that holds these ids start; *done* is called from another thread."""
        self._finding.add(_Start(held, done))

    def _pause(self) -> None:
        self._prepare()
        time.sleep(_PAUSE)

    def _find_all(self, batch: Sequence[_Start]) -> None:
        try:
            results = self._find([it.held for it in batch])
        except Exception as exc:
            results = [exc] * len(batch)
        ready = []
        for start, found in zip(batch, results, strict=True):
            if isinstance(found, Exception):
                start.done(found)
            elif self.choose is None and (found.pod.name or self.find_name is None):
                ready.append(_Known(start, found))
            else:
                self._asking.submit(self._ask, _Known(start, found))
        self._binding.add(*ready)

    def _ask(self, one: _Known) -> None:
        """Ask the cluster of a pod, then let it be bound."""
        found, pod = one.found, one.found.pod
        try:
            # PodResources names nobody with nothing but init containers here.
            if not pod.name and self.find_name is not None:
                namespace, name = self.find_name(pod.uid)
                pod = dataclasses.replace(pod, namespace=namespace, name=name)
                found = dataclasses.replace(found, pod=pod)
            if self.choose is not None:
                found = dataclasses.replace(found, chosen=self.choose(pod))
        except Exception as exc:
            self._refused(pod, exc)
            one.start.done(exc)
            return
        self._binding.add(_Known(one.start, found))

    def _bind_all(self, batch: Sequence[_Known]) -> None:
        """Bind a few at a time: those who may start go on while the others are bound."""
        for first in range(0, len(batch), _AT_ONCE):
            self._bind_some(batch[first : first + _AT_ONCE])

    def _bind_some(self, batch: Sequence[_Known]) -> None:
        try:
            results = self._bind([it.found for it in batch])
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
        if self.until_known is not None:
            self._asking.submit(self._end, well, self.until_known)
        else:
            self._end(well)

    def _end(
        self, well: Sequence[_Start], until_known: Callable[[], object] | None = None
    ) -> None:
        if until_known is not None:
            until_known()
        for it in well:
            it.done(None)
