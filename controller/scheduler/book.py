"""The cluster as it is and as it will be: nodes, pods, and what is promised to whom.

Three sources, of which none is asked here: what agents publish of their nodes, what the API server
has of pods, and our own promises until the API server has them, too. So it can be made anew from
the API server alone at any moment; and two that were made from the same differ in nothing.

A promise begins before the API server is asked to bind a pod, and ends when the pod is gone, or
over, or was surely not bound. One that was asked for and not answered ends by no time: after its
deadline it is in doubt, and whoever asked has to find out. One lock is over all of it; nothing
here waits for anything.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.allocator import explain, facts, place
from pyvgpu.controller.scheduler import asks, choices
from pyvgpu.controller.scheduler.stands import PASSING, Promise, Stand, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyvgpu.allocator import annotations as notes

    Shares = Mapping[str, tuple[facts.Share, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What an administrator may choose."""

    policy: asks.Policy = asks.Policy.BINPACK  # of pods that do not say
    expect_seconds: float = 5.0  # for which a pod's probable place is kept free
    bind_seconds: float = 15.0  # after which a bind without an answer is in doubt
    claim_seconds: float = 120.0  # for which room is kept for whom others were ended
    resync_seconds: float = 300.0  # between comparisons with what the API server has

    def packing(self, pod: asks.Pod) -> facts.Packing:
        """Return which of a node's devices *pod* would rather have."""
        spread = (pod.policy or self.policy) is asks.Policy.SPREAD
        return pod.packing or (facts.Packing.SPREAD if spread else facts.Packing.BINPACK)


class Book:
    """Knows what is promised; all of it may be called by any thread."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.lock = threading.RLock()
        self.stands: dict[str, Stand] = {}
        self.pods: dict[str, asks.Pod] = {}  # by namespace/name; few that are over
        self.gangs: dict[str, dict[str, asks.Pod]] = {}  # their pods, by uid
        self._promises: dict[str, Promise] = {}  # by uid
        self._pending: dict[str, Promise] = {}  # those that are not BOUND
        self._listeners: list[Callable[[str], None]] = []

    def listen(self, changed: Callable[[str], None]) -> None:
        """Let *changed* be told the name of each node of which anything changes."""
        self._listeners.append(changed)

    # What the API server says.

    def see_node(self, name: str, told: notes.Published | None, trouble: str = "") -> None:
        """Note what a node has; None: it says nothing, or nothing that can be read (*trouble*)."""
        with self.lock:
            stand = self._stand(name)
            stand.tell(told, trouble)
            self._tidy(stand)
            self._changed(name)

    def forget_node(self, name: str) -> None:
        """Note that a node is gone; what is bound there is, as long as it is."""
        self.see_node(name, None)

    def see_pod(self, key: str, pod: asks.Pod | None) -> None:
        """Note the pod that is called *key* in the API server; None: there is none for devices.

        If another one was called so, that is gone.
        """
        with self.lock:
            before = self.pods.get(key)
            if before is not None:
                if pod is None or pod.over or pod.uid != before.uid:
                    self._forget(before)
                elif before.gang != pod.gang:
                    self._leave_gang(before)
            # What became of those of a gang counts for the others.
            if pod is None or (pod.over and not (pod.gang and pod.succeeded)):
                return
            self.pods[key] = pod
            if pod.gang:
                self.gangs.setdefault(pod.gang.name, {})[pod.uid] = pod
            promise = self._promises.get(pod.uid)
            if pod.over:
                return
            if pod.node:
                self._bound(pod, promise)
            elif promise is not None:
                promise.pod = pod
                if pod.leaving and promise.state in PASSING:
                    self._end(pod.uid)
                elif promise.state is State.BOUND:
                    self._doubt(promise)

    # What we promise.

    def reserve(self, pod: asks.Pod, node: str, now: float) -> Shares:
        """Promise *pod* devices of *node*, for it is to be bound there; return which.

        Asked again, the answer is the same. explain.Refused, or UnavailableError, if it cannot be.
        """
        with self.lock:
            promise = self._promises.get(pod.uid)
            if promise is not None and promise.state in (State.BINDING, State.BOUND):
                if promise.node != node or promise.shares is None:
                    raise errors.UnavailableError(
                        f"{pod.key} is {promise.state.value} on {promise.node} already"
                    )
                if promise.state is State.BINDING:
                    promise.until = now + self.settings.bind_seconds
                return promise.shares
            shares = self._again(promise, node) or self.choose(pod, node)
            until = now + self.settings.bind_seconds
            self._put(self.promised(pod, node, shares, State.BINDING, until))
            return shares

    def minors(self, node: str) -> Mapping[str, int]:
        """Return the numbers of the driver for the devices of *node*, by UUID, where known."""
        with self.lock:
            stand = self.stands.get(node)
            return stand.minors if stand is not None else {}

    def choose(self, pod: asks.Pod, node: str, but: tuple[str, ...] = ()) -> Shares:
        """Return what *pod* would get on *node*, had the pods *but* nothing there.

        explain.Refused if it has no place.
        """
        if pod.trouble:
            raise errors.UnavailableError(pod.trouble)
        with self.lock:
            stand = self.stands.get(node)
            if stand is None or not stand.unit:
                text = "the node has published no devices"
                raise explain.Refused([explain.Reason("", "", "", text)])
            wanted = stand.wanted(pod, self.settings.packing(pod))
            found = place.find(stand.without((pod.uid, *but)), wanted)
            if found is None:
                seen = facts.Node(stand.devices, tuple(stand.held((pod.uid, *but))))
                raise explain.Refused(explain.reasons(seen, asks.called(pod, wanted)))
            return asks.named(pod, found)

    def promised(
        self, pod: asks.Pod, node: str, shares: Shares, state: State, until: float
    ) -> Promise:
        """Return the promise of *shares*; nothing is noted."""
        kinds = {name: part.kind for name, part in zip(pod.names, pod.shape.parts, strict=True)}
        return Promise(pod, node, state, choices.peak(kinds, shares, pod.key), shares, until)

    def promise(self, promise: Promise) -> None:
        """Note what is EXPECTED or CLAIMED; it ends by itself."""
        with self.lock:
            before = self._promises.get(promise.pod.uid)
            if before is None or before.state in PASSING:
                self._put(promise)

    def find(self, uid: str) -> Promise | None:
        """Return what is promised to a pod."""
        return self._promises.get(uid)

    def release(self, uid: str) -> None:
        """Note that a pod was surely not bound, nor will be by what has been asked so far."""
        with self.lock:
            promise = self._promises.get(uid)
            if promise is not None and promise.state is not State.BOUND:
                self._end(uid)

    def expire(self, now: float) -> list[asks.Pod]:
        """End what was to last until *now* and is not being bound; return whose it was."""
        with self.lock:
            late = [it for it in self._pending.values() if it.until <= now and it.state in PASSING]
            for promise in late:
                self._end(promise.pod.uid)
            return [it.pod for it in late]

    def doubtful(self, now: float) -> list[Promise]:
        """Return those whose bind should have been answered by *now*, and was not."""
        with self.lock:
            return [
                it
                for it in self._pending.values()
                if it.state is State.BINDING and it.until <= now
            ]

    def differences(self, other: Book) -> list[str]:
        """Say in what this book is another than *other*, which was made from the same objects.

        What the API server has not heard of yet counts for nothing.
        """
        with self.lock, other.lock:
            return sorted(self._differences(other))

    # What stands behind it.

    def _differences(self, other: Book) -> Iterator[str]:
        for name in self.stands.keys() | other.stands.keys():
            one, two = self.stands.get(name), other.stands.get(name)
            if (one.devices if one else ()) != (two.devices if two else ()):
                yield f"node {name}: other devices"
            mine, theirs = (dict(it.placed) if it else {} for it in (one, two))
            for uid in mine | theirs:  # one by one: of a busy node some are on their way
                if mine.get(uid) != theirs.get(uid):
                    yield f"node {name}: pod {uid} placed otherwise by its agent"
        for key in self.pods.keys() | other.pods.keys():
            here, there = (self._settled(key), other._settled(key))
            if here != there:
                yield f"pod {key}: {here}, not {there}"

    def _settled(self, key: str) -> str:
        pod = self.pods.get(key)
        if pod is None:
            return "unknown"
        promise = self._promises.get(pod.uid)
        if promise is None or promise.state is not State.BOUND:
            return f"{pod.uid} without a node"
        parts = sorted(
            f"{it.share.uuid} {it.share.vcore}/{it.share.vmemory}" for it in promise.held or ()
        )
        return f"{pod.uid} on {promise.node} with {', '.join(parts) or 'nothing that is known'}"

    def _bound(self, pod: asks.Pod, promise: Promise | None) -> None:
        if (
            promise is not None
            and promise.state is State.BOUND
            and (promise.node, promise.held) == (pod.node, pod.held)
        ):
            promise.pod = pod
            return
        shares = None
        if promise is not None and promise.node == pod.node and promise.held == pod.held:
            shares = promise.shares
        self._put(Promise(pod, pod.node, State.BOUND, pod.held, shares))

    def _doubt(self, promise: Promise) -> None:
        """Let what was bound, and is not any more, be looked after.

        That is so where the API server was restored from a copy of before.
        """
        promise.state, promise.until = State.BINDING, -math.inf
        self._pending[promise.pod.uid] = promise

    def _again(self, promise: Promise | None, node: str) -> Shares | None:
        """Return what is promised already, if that can still be given."""
        if promise is None or promise.node != node or promise.shares is None:
            return None
        stand, pod = self.stands[node], promise.pod
        if not stand.unit:
            return None
        seen = facts.Node(stand.devices, tuple(stand.held((pod.uid,))))
        numbered = {str(at): promise.shares[name] for at, name in enumerate(pod.names)}
        return None if place.complaint(seen, stand.wanted(pod), numbered) else promise.shares

    def _put(self, promise: Promise) -> None:
        uid = promise.pod.uid
        self._end(uid)
        self._promises[uid] = promise
        if promise.state is not State.BOUND:
            self._pending[uid] = promise
        stand = self._stand(promise.node)
        stand.tenants[uid] = promise
        stand.changed()
        self._changed(promise.node)

    def _end(self, uid: str) -> None:
        promise = self._promises.pop(uid, None)
        if promise is None:
            return
        self._pending.pop(uid, None)
        stand = self.stands[promise.node]
        del stand.tenants[uid]
        stand.changed()
        self._tidy(stand)
        self._changed(promise.node)

    def _forget(self, pod: asks.Pod) -> None:
        self._leave_gang(pod)
        del self.pods[pod.key]
        self._end(pod.uid)

    def _leave_gang(self, pod: asks.Pod) -> None:
        if pod.gang:
            members = self.gangs[pod.gang.name]
            del members[pod.uid]
            if not members:
                del self.gangs[pod.gang.name]

    def _stand(self, name: str) -> Stand:
        return self.stands.setdefault(name, Stand(name))

    def _tidy(self, stand: Stand) -> None:
        """Forget a node of which nothing is known and where nobody is."""
        if not (stand.unit or stand.trouble or stand.tenants):
            del self.stands[stand.name]

    def _changed(self, name: str) -> None:
        for changed in self._listeners:
            changed(name)
