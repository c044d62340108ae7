"""Gives grants: an id at Allocate, what it is worth when its container is about to start.

Allocate names no pod, so it only makes a grant with a random id, and remembers it. Whose it is,
two sources say before the container is made (``identity``); then all containers of the pod are
placed at once, that is remembered, and their folders and CDI specifications are made. A grant that
is not bound has no specification, so nothing starts on it, whoever calls whom or not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.allocator import facts, requests
from pyvgpu.deviceplugin import (
    endings,
    events,
    grants,
    holdings,
    identity,
    ids,
    messages,
    placing,
    preference,
    remembering,
    resize,
)
from pyvgpu.deviceplugin.ids import Kind
from pyvgpu.deviceplugin.placing import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyvgpu.deviceplugin import service, surroundings
    from pyvgpu.deviceplugin.checkpoint import Checkpoint

log = logging.getLogger(__name__)


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
        self._doubted: dict[str, float] = {}  # since when, by the uid of a pod
        self.endings = endings.Endings(sizes.clock)
        self.tell: Callable[[events.Event], None] = lambda _: None
        self.find_name: Callable[[str], tuple[str, str]] = lambda _: ("", "")
        # Who has chosen the devices of a pod, if that is not us; it raises RefusedError.
        self.choose: Callable[[identity.Pod], placing.Chosen | None] = lambda _: None
        self.given: Callable[[identity.Pod, placing.Shares], None] = lambda *_: None
        self.changed: Callable[[], None] = lambda: None  # what is granted, or a device
        self.until_known: Callable[[], object] = lambda: None  # the cluster has heard of that

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

    def recover(self) -> None:
        """Take up what an earlier life has left: remember it again, and make what is lacking."""
        with self._deciding:
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
            log.info("remembered %s of %s", grant.id, _whose(grant))

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
                self._folders.mend(after)
            except errors.PyVgpuError:
                self._checkpoint.put(before)
                raise
        log.info("changed %s of %s", after.id, after.owner.label if after.owner else "nobody")
        if after.owner is not None:
            who, text = after.owner, f"what a container is held to now: {resize.describe(after)}"
            reason = events.Reason.RESIZED
            self.tell(events.Event(who.uid, who.namespace, who.pod, text, reason))
        return after

    @property
    def known(self) -> dict[str, grants.Grant]:
        """The grants that there are, by id."""
        return self._checkpoint.grants

    # --- what kubelet asks --------------------------------------------------------------------

    def allocate(self, kind: Kind, given: frozenset[str]) -> messages.Answer:
        """Answer with a new grant for vcore; vmemory follows what its container's vcore says."""
        if kind is Kind.VCORE:
            self._check(len(given))
        with self._deciding:
            # Kubelet gives them to somebody: so whoever had them is over.
            self._end(it for it in self._overlapping(kind, given) if it.bound)
            if kind is Kind.VMEMORY:
                return messages.Answer()
            grant = grants.Grant(grants.new_id(), given, time.time())
            answer = self._folders.answer(grant.id, len(given))
            self._checkpoint.note(grant)
        self._checkpoint.settle()
        log.info("granted %d vcore as %s", len(given), grant.id)
        return answer

    def _check(self, vcore: int) -> None:
        """Refuse what no container can have here."""
        requests.read(vcore, self._sizes.unit)
        if vcore < facts.WHOLE and not self._sizes.shares:
            raise errors.UsageError(
                f"vcore {vcore}: this node gives whole devices only (--share-mode=false); valid "
                f"would be {facts.WHOLE}"
            )

    def start(self, kind: Kind, held: frozenset[str]) -> None:
        """Be back when every grant with the ids *held* is bound and made; RefusedError if not."""
        with self._deciding:
            known = self._known(kind, held)
            for grant in known:
                self._start_again(grant)
        if known:
            self._checkpoint.settle()
            return
        try:
            listing, entries = self._sources.pods.listing(), self._sources.state.read()
            pod = identity.identify(kind, held, entries, listing)
        except errors.UnavailableError as exc:
            raise self._doubt(kind, held, exc) from exc
        if not pod.name:  # PodResources names nobody with nothing but init containers here
            namespace, name = self.find_name(pod.uid)
            pod = dataclasses.replace(pod, namespace=namespace, name=name)
        try:
            chosen = self.choose(pod)
            with self._deciding:
                identity.check(pod.uid, entries, self._sources.state.read())
                self.endings.note(listing)
                self._bind(pod, chosen)
                self._doubted.pop(pod.uid, None)
        except RefusedError as exc:
            if exc.final or self._is_late(pod.uid):
                self.tell(events.Event(pod.uid, pod.namespace, pod.name, str(exc), evict=True))
            raise
        self._checkpoint.settle()  # with all who start now
        self.until_known()

    def prefer(self, kind: Kind, asked: messages.Choice) -> tuple[str, ...]:
        """Return which of the free ids kubelet shall take; it decides nothing."""
        held = holdings.held(self._checkpoint.grants.values(), self._sizes.unit)
        node = facts.Node(self._devices, held)
        return preference.preferred(kind, asked, node, self._sizes.packing, self._sizes.unit)

    def collect(self) -> None:
        """End the grants of pods that are over; those that kubelet never took, after a while."""
        with self._deciding:
            before = self._checkpoint.grants  # what is bound meanwhile may not be listed
        if not before:
            return
        listing = self._sources.pods.listing()
        entries = self._sources.state.read()
        said = endings.Said(listing, frozenset(it.grant for it in entries))
        over = self.endings.over(before.values(), said)
        with self._deciding:
            self._doubted = {
                uid: since
                for uid, since in self._doubted.items()
                if any(it.uid == uid for it in entries)
            }
            known = self._checkpoint.grants
            self._end(it for it in over if known.get(it.id) == it)
            self.endings.keep(self._checkpoint.grants.values())

    # --- how ------------------------------------------------------------------------------------

    def _overlapping(self, kind: Kind, wanted: frozenset[str]) -> list[grants.Grant]:
        return [
            it for it in self._checkpoint.grants.values() if not wanted.isdisjoint(_ids(it, kind))
        ]

    def _known(self, kind: Kind, held: frozenset[str]) -> list[grants.Grant]:
        """Return the grants with these ids of containers that were bound before and start again.

        Nothing if there may be others: kubelet has given one of these ids anew.
        """
        found = self._overlapping(kind, held)
        if not all(it.bound for it in found):
            return []
        return [it for it in found if _ids(it, kind) == held]

    def _bind(self, pod: identity.Pod, chosen: placing.Chosen | None) -> None:
        """Bind and make all grants of a pod that are not, on the devices *chosen* for it."""
        own = {it.name: self._grant_of(pod, it) for it in pod.containers}
        ids_of_own = {it.id for it in own.values()}
        self._end(
            it
            for it in self._checkpoint.grants.values()
            if it.id not in ids_of_own and identity.supersedes(pod, it)
        )
        wanting = [it for it in pod.containers if not own[it.name].bound]
        shares = self._place(pod, wanting, chosen) if wanting else {}
        bound = {
            it.name: dataclasses.replace(
                own[it.name],
                owner=grants.Owner(pod.uid, pod.namespace, pod.name, it.name),
                vmemory_ids=it.vmemory,
                shares=shares[it.name],
                chosen=chosen is not None and chosen.shares is not None,
            )
            for it in wanting
        }
        if bound:
            self._checkpoint.note(*bound.values())
        for grant in (own | bound).values():
            self._make(grant)
        for name, grant in bound.items():
            log.info("bound %s to %s/%s/%s", grant.id, pod.namespace, pod.name, name)
        if bound:
            self.given(pod, {name: it.shares for name, it in (own | bound).items()})
        if any(it.whole for it in bound.values()):
            self._offer()  # it takes the memory that nobody asked for
        else:
            self.changed()

    def _grant_of(self, pod: identity.Pod, one: identity.Container) -> grants.Grant:
        """Return a container's grant; if kubelet alone remembers it, as it was before."""
        if not one.vcore:
            raise RefusedError(
                f"container {one.name}: vmemory without vcore: nothing can be done with memory "
                "alone; ask for at least 1 vcore beside it",
                final=True,
            )
        if not grants.is_id(one.grant):
            raise RefusedError(
                f"container {one.name} has its vcore from another plugin; delete the pod, so that "
                "it is made anew",
                final=True,
            )
        found = self._checkpoint.grants.get(one.grant)
        if found is None:
            return grants.Grant(one.grant, one.vcore, time.time())
        if found.over:
            raise RefusedError(
                f"container {one.name}: what it was granted was given to another; delete the pod, "
                "so that it is made anew",
                final=True,
            )
        if found.owner is not None and (pod.uid, one.name) != (
            found.owner.uid,
            found.owner.container,
        ):
            raise RefusedError(
                f"container {one.name} comes with grant {found.id}, which is that of "
                f"{found.owner.label}",
                final=True,
            )
        return found

    def _place(
        self,
        pod: identity.Pod,
        wanting: Sequence[identity.Container],
        chosen: placing.Chosen | None,
    ) -> placing.Shares:
        wanted = placing.wishes(wanting, pod.containers, self._devices, self._sizes.unit)
        known = self._checkpoint.grants.values()
        now = facts.Node(self._devices, holdings.held(known, self._sizes.unit))
        later = now
        if any(it.sick for it in self._devices) or any(it.over for it in known):
            # What is away may be back in a moment, as the driver while it is exchanged; and what
            # is kept by processes whose pod is over may be free then.
            later = facts.Node(
                tuple(dataclasses.replace(it, sick="") for it in self._devices),
                holdings.held((it for it in known if not it.over), self._sizes.unit),
            )
        pod_wanted = facts.Pod(wanted, packing=self._sizes.packing)
        return placing.place_pod(now, later, pod_wanted, chosen)

    def _start_again(self, grant: grants.Grant) -> None:
        """Make what was bound before; while a device of it is sick, nothing starts on it."""
        owner = grant.owner or grants.Owner("", "", "", "")
        sick = holdings.sick(grant, self._devices)
        try:
            if sick:
                raise RefusedError(f"what was granted is on a sick device: {sick}", final=False)
            self._make(grant)
            self._doubted.pop(owner.uid, None)
        except RefusedError as exc:
            if exc.final or self._is_late(owner.uid):
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
            log.warning("revoked %s of %s, of which a process lives on", grant.id, _whose(grant))
        for grant in ended:
            log.info("ended %s of %s", grant.id, _whose(grant))
        if left or ended:
            self._offer()

    def _offer(self) -> None:
        """Tell kubelet what it can count on now."""
        known = self._checkpoint.grants.values()
        for kind, offer in self._offers.items():
            given = frozenset().union(*(_ids(it, kind) for it in known))
            stands = holdings.stands(kind, self._devices, known, self._sizes.unit)
            count = sum(it.size for it in stands)
            everything = offer.everything
            if len(everything) != count:
                everything = offer.resource.ids(count)
            offer.set(count, ids.unhealthy(everything, stands, given, offer.unhealthy))
        self.changed()

    def _doubt(
        self, kind: Kind, held: frozenset[str], exc: errors.UnavailableError
    ) -> RefusedError:
        """Return what a doubt means: it passes, or it has lasted too long."""
        text = f"it is not known yet whom this is for: {exc}"
        with contextlib.suppress(errors.UnavailableError):
            entries = self._sources.state.read()
            for uid in {it.uid for it in entries if it.kind is kind and it.ids == held}:
                if self._is_late(uid):
                    self.tell(events.Event(uid, "", "", text, evict=True))
                    return RefusedError(text, final=True)
        return RefusedError(text, final=False)

    def _is_late(self, uid: str) -> bool:
        """Whether a pod has been refused for reasons that might pass for too long."""
        now = self._sizes.clock()
        return now - self._doubted.setdefault(uid, now) > self._sizes.bind_seconds


def _whose(grant: grants.Grant) -> str:
    return grant.owner.label if grant.owner else "nobody"


def _ids(grant: grants.Grant, kind: Kind) -> frozenset[str]:
    return grant.vcore_ids if kind is Kind.VCORE else grant.vmemory_ids
