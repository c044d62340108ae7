"""Gives grants: an id at Allocate, what it is worth when its container is about to start.

Allocate names no pod, so it only makes a grant with a random id, and remembers it. Whose it is,
two sources say before the container is made (``identity``); then all containers of the pod are
placed at once, that is remembered, and their folders and CDI specifications are made. A grant that
is not bound has no specification, so nothing starts on it, whoever calls whom or not.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from pyvgpu import errors
from pyvgpu.allocator import facts, requests
from pyvgpu.deviceplugin import (
    answers,
    binding,
    doubts,
    endings,
    events,
    finding,
    fresh,
    grants,
    holdings,
    identity,
    ids,
    placing,
    preference,
    remembering,
    resize,
    starting,
)
from pyvgpu.deviceplugin.ids import Kind
from pyvgpu.deviceplugin.placing import RefusedError, WaitsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyvgpu.deviceplugin import service, state, surroundings
    from pyvgpu.deviceplugin.checkpoint import Checkpoint

log = logging.getLogger(__name__)

One = TypeVar("One")
Done = TypeVar("Done")


class Granter:
    """Decides for the plugins of both resources; its methods may be called by several threads."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        folders: surroundings.Folders,
        sources: surroundings.Sources,
        sizes: surroundings.Sizes,
        offers: dict[Kind, service.Offer],
    ) -> None:
        self._checkpoint = checkpoint
        self._folders = folders
        self._sources = sources
        self._sizes = sizes
        self._offers = offers
        self._devices: tuple[facts.Device, ...] = ()
        self._deciding = threading.RLock()
        self._book = holdings.Book(sizes.unit)
        self._doubts = doubts.Doubts(sizes.bind_seconds, sizes.clock)
        self._waiting: dict[str, frozenset[str]] = {}  # the grants of pods that wait, by uid
        self._queue: dict[str, None] = {}  # the uids of those that wait for room, first come first
        finder = finding.Finder(
            sources, self._doubts, lambda: self.known, lambda event: self.tell(event)
        )
        self.starts = starting.Starts(finder.prepare, finder.find, self._bind_all, self._refused)
        self._fresh = fresh.Fresh(sizes.clock)
        self.endings = endings.Endings(sizes.clock, folders.is_used)
        self.tell: Callable[[events.Event], None] = lambda _: None
        self.withdraw: Callable[[str, events.Reason], None] = lambda *_: None  # if not posted
        self.given: Callable[[identity.Pod, placing.Shares], None] = lambda *_: None
        self.grow: Callable[[grants.Grant], None] = lambda _: None  # before a quota is larger
        self.changed: Callable[[], None] = lambda: None  # what is granted, or a device

    @property
    def devices(self) -> tuple[facts.Device, ...]:
        """The devices of the node, as they were last seen."""
        return self._devices

    def wanted(self) -> set[str]:
        """Return the ids of all grants, those that kubelet alone remembers too."""
        written = {it.grant for it in self._sources.state.read()}
        return written | set(self._checkpoint.grants)

    @property
    def shared(self) -> dict[str, int]:
        """The grants of shares, and the number of devices of each."""
        return {
            it.id: len(it.shares)
            for it in self._checkpoint.grants.values()
            if it.bound and not it.whole and not it.over
        }

    @property
    def waiting(self) -> frozenset[str]:
        """The grants of pods that wait: for room, a key of the scheduler's, or the API server."""
        return frozenset().union(*list(self._waiting.values()))

    def recover(self) -> None:
        """Take up what an earlier life has left: remember it again, and make what is lacking."""
        with self._deciding:
            self._known_to_kubelet()
            try:
                self._remember()
            except errors.UnavailableError as exc:
                log.warning("what kubelet knows of grants cannot be asked: %s", exc)
            for grant in self._checkpoint.grants.values():
                if grant.bound and not grant.over:
                    try:
                        self._folders.mend(grant)
                    except errors.PyVgpuError as exc:
                        log.warning("grant %s is not whole: %s", grant.id, exc)

    def _remember(self) -> None:
        """Learn again of grants that were made real, and that kubelet alone remembers."""
        entries = self._sources.state.read()
        found = remembering.made(entries, self._checkpoint.grants, self._folders.recall)
        if not found:
            return
        for grant in remembering.grants_of(found, entries, self._sources.pods.listing()):
            self._checkpoint.put(grant)
            log.info("remembered %s of %s", grant.id, grant.label)

    def see(self, devices: Sequence[facts.Device]) -> None:
        """Take note of how the devices are now."""
        with self._deciding:
            self._devices = tuple(devices)
            self._offer()

    def change(self, grant_id: str, alter: Callable[[grants.Grant], grants.Grant]) -> grants.Grant:
        """Let a grant be what *alter* makes of it, or raises, while its container runs."""
        with self._deciding:
            before = self._checkpoint.grants.get(grant_id)
            if before is None:
                raise errors.UnavailableError(f"grant {grant_id}: has just ended")
            after = alter(before)
            self._checkpoint.put(after)
            try:
                self.grow(after)
                self._folders.mend(after)
            except errors.PyVgpuError:
                self._checkpoint.put(before)
                raise
        log.info("changed %s of %s", after.id, after.label)
        if after.owner is not None:
            who, text = after.owner, f"what a container is held to now: {resize.describe(after)}"
            reason = events.Reason.RESIZED
            self.tell(events.Event(who.uid, who.namespace, who.pod, text, reason))
        return after

    @property
    def known(self) -> Mapping[str, grants.Grant]:
        """The grants that there are, by id."""
        return self._checkpoint.grants

    # --- what kubelet asks --------------------------------------------------------------------

    def allocate(self, kind: Kind, given: frozenset[str]) -> answers.Answer:
        """Answer with a new grant for vcore; vmemory follows what its container's vcore says."""
        if kind is Kind.VCORE:
            self._check(len(given))
        with self._deciding:
            # Kubelet gives them away: so a grant that it knew of is over.
            there = self._checkpoint.known.having(kind, given, bound=True)
            kubelets = self._known_to_kubelet() if there else frozenset()
            self._end([it for it in there if it.id in kubelets])
            if kind is Kind.VMEMORY:
                return answers.Answer()
            grant = grants.Grant(grants.new_id(), given, time.time())
            answer = self._folders.answer(grant.id, len(given))
            self._checkpoint.note(grant, soon=True)
        self._checkpoint.settle()
        log.debug("granted %d vcore as %s", len(given), grant.id)  # whose it is comes later
        return answer

    def _check(self, vcore: int) -> None:
        """Refuse what no container can have here."""
        requests.read(vcore, self._sizes.unit)
        if vcore < facts.WHOLE and not self._sizes.shares:
            raise errors.UsageError(
                f"vcore {vcore}: this node gives whole devices only (--share-mode=false); valid "
                f"would be {facts.WHOLE}"
            )

    def _start_known(self, kind: Kind, held: frozenset[str]) -> bool:
        """Make what was bound before for the ids *held*; false if nothing was. RefusedError."""
        with self._deciding:
            known = self._known(kind, held)
            for grant in known:
                self._start_again(kind, grant)
        if known:
            self._checkpoint.settle()
        return bool(known)

    def start(self, kind: Kind, held: frozenset[str], done: starting.Done) -> None:
        """Call *done* when every grant with the ids *held* is bound and made, or with why not."""
        if self._start_known(kind, held):
            done(None)
        else:
            self.starts.begin(binding.Held(kind, held), done)

    def _refused(self, pod: identity.Pod, exc: Exception) -> None:
        """Tell of a pod that waits; let one be evicted that never starts, or not for too long."""
        if isinstance(exc, WaitsError):
            self._doubts.forget(pod.uid)  # a doubt that comes later has not lasted since
            with self._deciding:
                self._waiting[pod.uid] = frozenset(it.grant for it in pod.containers)
            reason = events.Reason.WAITS
            self.tell(events.Event(pod.uid, pod.namespace, pod.name, str(exc), reason))
        elif isinstance(exc, RefusedError) and (exc.final or self._doubts.is_late(pod.uid)):
            self.tell(events.Event(pod.uid, pod.namespace, pod.name, str(exc), evict=True))

    def prefer(self, kind: Kind, asked: answers.Choice) -> tuple[str, ...]:
        """Return which of the free ids kubelet shall take; it decides nothing."""
        known = self._checkpoint.grants.values()
        held = self._book.held(known)
        kubelets = self.endings.known(self._sources.pods.life())
        lost = [it for it in known if it.bound and it.id not in kubelets]
        offered = preference.Offered(
            facts.Node(self._devices, held),
            self._offers[kind].everything,
            frozenset().union(*(_ids(it, kind) for it in lost)),
        )
        return preference.preferred(kind, asked, offered, self._sizes.packing, self._sizes.unit)

    # --- what claims are given ------------------------------------------------------------------

    def give(
        self, choose: Callable[[facts.Node, Mapping[str, grants.Grant]], Sequence[grants.Grant]]
    ) -> None:
        """Make and remember what is chosen, by what the node has and holds; on the disk on return.

        Nobody else is given anything meanwhile. RefusedError if it cannot be made real.
        """
        with self._deciding:
            known = self._checkpoint.grants
            chosen = choose(facts.Node(self._devices, self._book.held(known.values())), known)
            new = [it for it in chosen if known.get(it.id) != it]
            if new:
                self._checkpoint.note(*new, soon=True)
            for grant in chosen:
                self._make(grant)
        self._checkpoint.settle()
        for grant in new:
            log.info("granted %s to %s", grant.id, grant.label)
        if new:
            self.changed()

    def end(self, over: Callable[[grants.Grant], bool], *, used: bool = True) -> None:
        """End the grants that are *over*; of those that processes use only if *used*."""
        with self._deciding:
            found = [it for it in self._checkpoint.grants.values() if over(it)]
            self._end([it for it in found if used or not self._folders.is_used(it.id)])

    # --- what is over ---------------------------------------------------------------------------

    def collect(self) -> None:
        """End the grants of pods that are over; those that kubelet never took, after a while."""
        with self._deciding:
            # What is bound meanwhile may not be listed; of claims kubelet says itself what ends.
            before = {k: it for k, it in self._checkpoint.grants.items() if it.claim is None}
        if not before:
            return
        listing = self._sources.pods.listing()
        entries = self._sources.state.read()
        if self._sources.pods.life() != listing.life:
            return  # what is written may be another kubelet's by now
        said = endings.Said(listing, entries)
        over = self.endings.over(before.values(), said)
        with self._deciding:
            uids = {it.uid for it in entries}
            self._doubts.keep(uids)
            self._waiting = {uid: it for uid, it in self._waiting.items() if uid in uids}
            self._queue = {uid: None for uid in self._queue if uid in uids}
            self._fresh.keep(self._checkpoint.grants)
            known = self._checkpoint.grants
            self._end(it for it in over if known.get(it.id) == it)
            self.endings.keep(self._checkpoint.grants.values())

    # --- how ------------------------------------------------------------------------------------

    def _bind_all(self, found: Sequence[binding.Found]) -> list[None | Exception]:
        """Bind and make what has no need of others any more; on the disk on return.

        One thing for all of them, then the next: to go from one thing to the other takes as long.
        """
        with self._deciding:
            written = self._sources.state.read()
            alone = len(found) == 1
            bound = [_tried(lambda it: self._bind(it, written, alone=alone), it) for it in found]
            results = [
                it if isinstance(it, Exception) else _tried(self._make_all, it) for it in bound
            ]
        self._checkpoint.settle()
        return results

    def _known(self, kind: Kind, held: frozenset[str]) -> list[grants.Grant]:
        """Return the grants with these ids of containers that were bound before and start again.

        Nothing if there may be others: kubelet has given one of these ids anew.
        """
        known = self._checkpoint.known
        if known.are_open(kind, held):
            return []
        found = [it for it in known.having(kind, held, bound=True) if _ids(it, kind) == held]
        if len({it.owner.uid for it in found if it.owner}) > 1:  # one of them kubelet has lost
            kubelets = self._known_to_kubelet()
            return [it for it in found if it.id in kubelets]
        return found

    def _known_to_kubelet(self) -> frozenset[str]:
        """Return the grants that kubelet has known of since it started."""
        entries = None
        with contextlib.suppress(errors.UnavailableError):
            entries = self._sources.state.read()
        return self.endings.known(self._sources.pods.life(), entries)

    def _bind(self, one: binding.Found, written: state.Entries, *, alone: bool) -> binding.Bound:
        """Bind all grants of a pod that are not, to the devices chosen for it."""
        identity.check(one.pod.uid, one.entries, written)
        if self._sources.pods.life() != one.listing.life:
            raise identity.DoubtError("kubelet has restarted since it listed the pod")
        self.endings.note(endings.Said(one.listing, written))
        pod, chosen, known = one.pod, one.chosen, self._checkpoint.known
        own = binding.grants_of(pod, known.grants, time.time())
        kubelets = self.endings.known(one.listing.life, written)

        def kept(grant_id: str) -> bool:
            return grant_id in written.grants and self._folders.is_used(grant_id)

        mine = {it.id for it in own.values()}
        self._end(binding.superseded(pod, mine, known, kubelets, kept))
        wanting = [it for it in pod.containers if not own[it.name].bound]
        shares = self._place(one, wanting, written) if wanting else {}
        self._queue.pop(pod.uid, None)
        if self._waiting.pop(pod.uid, None) is not None:
            self.withdraw(pod.uid, events.Reason.WAITS)
        new = binding.bound(pod, own, shares, chosen)
        if new:
            self._checkpoint.note(*new.values(), soon=alone)
        return binding.Bound(one, own | new, new)

    def _place(
        self, one: binding.Found, wanting: Sequence[identity.Container], written: state.Entries
    ) -> placing.Shares:
        """Return the shares of containers of a pod; RefusedError if there are none now."""
        pod = one.pod
        ahead = list(itertools.takewhile(lambda uid: uid != pod.uid, self._queue))
        try:
            return self._room().place(wanting, pod, one.chosen, ahead)
        except WaitsError:
            if not self._end_dropped(one, written):
                self._queue.setdefault(pod.uid)
                raise
        return self._place(one, wanting, written)

    def _end_dropped(self, one: binding.Found, written: state.Entries) -> bool:
        """End what is over by what kubelet has just said, before the collector does; if any is."""
        said = endings.Said(one.listing, written)
        before = [it for it in one.before.values() if it.claim is None and not it.over]
        known = self._checkpoint.grants
        over = [it for it in self.endings.dropped(before, said) if known.get(it.id) == it]
        self._end(over)
        return bool(over)

    def _make_all(self, bound: binding.Bound) -> None:
        """Make the grants of a pod; RefusedError for one that was given to another meanwhile."""
        pod, held = bound.found.pod, bound.found.held
        for grant in bound.everything.values():
            if self.known.get(grant.id) != grant:
                raise RefusedError(f"grant {grant.id} was given to another", final=False)
            self._make(grant)
            asked = _ids(grant, held.kind) == held.ids
            self._fresh.note(grant.id, held.kind if asked else None)
        for name, grant in bound.new.items():
            log.info("bound %s to %s/%s/%s", grant.id, pod.namespace, pod.name, name)
        if bound.new:
            self.given(pod, {name: it.shares for name, it in bound.everything.items()})
        if any(it.whole for it in bound.new.values()):
            self._offer()  # it takes the memory that nobody asked for
        else:
            self.changed()
        self._doubts.forget(pod.uid)

    def _room(self) -> binding.Room:
        sizes, known = self._sizes, self._checkpoint.grants.values()
        return binding.Room(self._devices, known, self._book, sizes.unit, sizes.packing)

    def _start_again(self, kind: Kind, grant: grants.Grant) -> None:
        """Make what was bound before; while a device of it is sick, nothing starts on it."""
        owner = grant.owner or grants.Owner("", "", "", "")
        sick = holdings.sick(grant, self._devices)
        try:
            if sick:
                raise RefusedError(f"what was granted is on a sick device: {sick}", final=False)
            if not self._fresh.take(grant.id, kind):
                self._make(grant)
                self._fresh.note(grant.id, kind)
            self._doubts.forget(owner.uid)
        except RefusedError as exc:
            if exc.final or self._doubts.is_late(owner.uid):
                self.tell(
                    events.Event(owner.uid, owner.namespace, owner.pod, str(exc), evict=True)
                )
            raise

    def _make(self, grant: grants.Grant) -> None:
        try:
            self._folders.make(grant)
        except errors.DataError as exc:
            raise RefusedError(
                f"what was granted is not there any more: {exc}", final=True
            ) from exc

    def _end(self, over: Iterable[grants.Grant]) -> None:
        """Let grants be over: nothing starts on them again, and what they held is free.

        Where a process lives on, it gets nothing more; what it holds of a device is the device's
        again when it has ended, and no id stands for it until then.
        """
        ended, left = [], []
        for grant in over:
            if not self._folders.is_used(grant.id):
                self._folders.remove(grant.id)
                ended.append(grant)
            elif not grant.over:
                self._folders.revoke(grant.id)
                left.append(grant.ended())
        if left:
            self._checkpoint.put(*left)
        if ended:
            self._checkpoint.drop(*(it.id for it in ended))
        for grant in left:
            log.warning("revoked %s of %s, of which a process lives on", grant.id, grant.label)
        for grant in ended:
            log.info("ended %s of %s", grant.id, grant.label)
        if left or ended:
            self._offer()

    def _offer(self) -> None:
        """Tell kubelet what it can count on now."""
        known = self._checkpoint.grants.values()
        for kind, offer in self._offers.items():
            given = frozenset().union(*(_ids(it, kind) for it in known))
            stands = holdings.stands(offer.resource, self._devices, known, self._sizes.unit)
            count = sum(it.size for it in stands)
            everything = offer.everything
            if len(everything) != count:
                everything = offer.resource.ids(count)
            offer.set(count, ids.unhealthy(everything, stands, given, offer.unhealthy))
        self.changed()


def _ids(grant: grants.Grant, kind: Kind) -> frozenset[str]:
    return grant.vcore_ids if kind is Kind.VCORE else grant.vmemory_ids


def _tried(do: Callable[[One], Done], one: One) -> Done | Exception:
    try:
        return do(one)
    except Exception as exc:  # his alone
        return exc
