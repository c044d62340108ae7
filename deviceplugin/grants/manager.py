"""Grant manager: creates a grant at Allocate, and binds it to its container before the start.

Allocate names no pod, so it only stores a grant with a random id. Before the container is created,
two sources identify its pod (``pod_identity``); then all containers of the pod are placed at once,
the result is stored, and their folders and CDI specifications are written. An unbound grant has no
specification, so no container starts on it, whichever calls kubelet makes or omits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from pyvgpu import errors
from pyvgpu.allocator import datatypes, requests
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.grants import (
    events,
    grant_binding,
    holdings,
    lifecycle,
    placement,
    pod_finder,
    pod_identity,
    prestart,
    resize,
)
from pyvgpu.deviceplugin.grants.placement import RefusedError, WaitsError
from pyvgpu.deviceplugin.kubelet import device_ids, plugin_messages
from pyvgpu.deviceplugin.kubelet.device_ids import ResourceKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyvgpu.deviceplugin.grants import interfaces
    from pyvgpu.deviceplugin.grants.grant_log import Checkpoint
    from pyvgpu.deviceplugin.kubelet import checkpoint_file
    from pyvgpu.deviceplugin.kubelet.offers import Offer

log = logging.getLogger(__name__)

One = TypeVar("One")
Done = TypeVar("Done")


class GrantManager:
    """Creates, binds and ends the grants of both resources; thread-safe."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        folders: interfaces.GrantFiles,
        sources: interfaces.KubeletSources,
        sizes: interfaces.Sizes,
        offers: dict[ResourceKind, Offer],
        policy: interfaces.StartPolicy,
        observers: interfaces.Observers,
    ) -> None:
        self._checkpoint = checkpoint
        self._folders = folders
        self._sources = sources
        self._sizes = sizes
        self._offers = offers
        self._devices: tuple[datatypes.NodeDevice, ...] = ()
        self._lock = threading.RLock()
        self._holdings = holdings.Holdings(sizes.unit)
        self._doubts = pod_finder.Doubts(sizes.bind_seconds, sizes.clock)
        self._waiting: dict[str, frozenset[str]] = {}  # the grants of waiting pods, by uid
        self._queue: dict[str, None] = {}  # uids of pods that wait for room, in order of arrival
        finder = pod_finder.PodFinder(
            sources, self._doubts, lambda: self.known, observers.reported
        )
        self._starts = prestart.Starts(
            finder.prepare, finder.find, self._bind_all, self._refused, policy
        )
        self._admit = policy.admit
        self._fresh = prestart.Fresh(sizes.clock)
        self._endings = lifecycle.Endings(sizes.clock, folders.is_used, policy.is_over)
        self.observers = observers

    @property
    def devices(self) -> tuple[datatypes.NodeDevice, ...]:
        """The devices of the node, as they were last seen."""
        return self._devices

    def wanted(self) -> set[str]:
        """Return the ids of all grants, including those that only kubelet knows."""
        written = {entry.grant for entry in self._sources.state.read()}
        return written | set(self._checkpoint.grants)

    @property
    def shared(self) -> dict[str, int]:
        """The ids of grants of shares, with the number of devices of each."""
        return {
            grant.id: len(grant.shares)
            for grant in self._checkpoint.grants.values()
            if grant.bound and not grant.whole and not grant.over
        }

    @property
    def waiting(self) -> frozenset[str]:
        """The grants of waiting pods: for room, the scheduler's key, or the API server."""
        return frozenset().union(*list(self._waiting.values()))

    def recover(self) -> None:
        """Recover the grants of the previous run, and restore their missing files."""
        with self._lock:
            self._known_to_kubelet()
            try:
                self._remember()
            except errors.UnavailableError as exc:
                log.warning("cannot read kubelet's view of the grants: %s", exc)
            for grant in self._checkpoint.grants.values():
                if grant.bound and not grant.over:
                    try:
                        self._folders.repair(grant)
                    except errors.PyVgpuError as exc:
                        log.warning("cannot restore grant %s: %s", grant.id, exc)

    def _remember(self) -> None:
        """Recover grants that are on disk and in kubelet's state, but not in the checkpoint."""
        entries = self._sources.state.read()
        found = lifecycle.lost_shares(entries, self._checkpoint.grants, self._folders.recall)
        if not found:
            return
        for grant in lifecycle.recovered(found, entries, self._sources.pods.listing()):
            isolation = grant_binding.isolation_on(grant.shares, self._devices)
            self._checkpoint.put(dataclasses.replace(grant, isolation=isolation))
            log.info("recovered %s of %s", grant.id, grant.label)

    def see(self, devices: Sequence[datatypes.NodeDevice]) -> None:
        """Update the devices and their state."""
        with self._lock:
            self._devices = tuple(devices)
            self._offer()

    def change(self, grant_id: str, alter: Callable[[grants.Grant], grants.Grant]) -> grants.Grant:
        """Replace a grant by the result of *alter*, while its container runs."""
        with self._lock:
            before = self._checkpoint.grants.get(grant_id)
            if before is None:
                raise errors.UnavailableError(f"grant {grant_id}: has just ended")
            after = alter(before)
            self._checkpoint.put(after)
            try:
                self.observers.growing(after)
                self._folders.repair(after)
            except errors.PyVgpuError:
                self._checkpoint.put(before)
                raise
        log.info("changed %s of %s", after.id, after.label)
        if after.owner is not None:
            owner, text = after.owner, f"a container's quota is now: {resize.describe(after)}"
            reason = events.Reason.RESIZED
            self.observers.reported(
                events.GrantEvent(owner.uid, owner.namespace, owner.pod, text, reason)
            )
        return after

    @property
    def known(self) -> Mapping[str, grants.Grant]:
        """All grants, by id."""
        return self._checkpoint.grants

    # --- kubelet's calls ----------------------------------------------------------------------

    def allocate(
        self, kind: ResourceKind, given: frozenset[str]
    ) -> plugin_messages.AllocateResponse:
        """Create a grant for vcore ids; vmemory ids join the grant of their container's vcore."""
        if kind is ResourceKind.VCORE:
            self._check(len(given))
        with self._lock:
            # Kubelet allocates these ids again, so a grant that it knew with them has ended.
            there = self._checkpoint.known.having(kind, given, bound=True)
            kubelets = self._known_to_kubelet() if there else frozenset()
            self._end([former for former in there if former.id in kubelets])
            if kind is ResourceKind.VMEMORY:
                return plugin_messages.AllocateResponse()
            grant = grants.Grant(grants.new_id(), given, time.time())
            answer = self._folders.answer(grant.id, len(given))
            self._checkpoint.note(grant, soon=True)
        self._checkpoint.settle()
        log.debug("granted %d vcore as %s", len(given), grant.id)  # its container is not known yet
        return answer

    def _check(self, vcore: int) -> None:
        """Refuse a number of vcore that no container can have on this node."""
        requests.read(vcore, self._sizes.unit)
        if vcore < datatypes.WHOLE and not self._sizes.shares:
            raise errors.UsageError(
                f"vcore {vcore}: this node allocates whole devices only (--share-mode=false); "
                f"valid "
                f"would be {datatypes.WHOLE}"
            )

    def _start_known(self, kind: ResourceKind, held: frozenset[str]) -> bool:
        """Restart on grants bound before with the ids *held*; false if there are none.

        RefusedError if their containers cannot start.
        """
        with self._lock:
            known = self._known(kind, held)
            for grant in known:
                self._start_again(kind, grant)
        if known:
            self._checkpoint.settle()
        return bool(known)

    def start(self, kind: ResourceKind, held: frozenset[str], done: prestart.Done) -> None:
        """Call *done* once the grants with the ids *held* are bound and on disk, or on failure."""
        if self._start_known(kind, held):
            done(None)
        else:
            self._starts.begin(grant_binding.StartingIds(kind, held), done)

    def _refused(self, pod: pod_identity.KnownPod, exc: Exception) -> None:
        """Write an event for a waiting pod; evict one that can never start, or is too late."""
        if isinstance(exc, WaitsError):
            self._doubts.forget(pod.uid)  # a later doubt starts its own deadline
            with self._lock:
                self._waiting[pod.uid] = frozenset(container.grant for container in pod.containers)
            reason = events.Reason.WAITS
            self.observers.reported(
                events.GrantEvent(pod.uid, pod.namespace, pod.name, str(exc), reason)
            )
        elif isinstance(exc, RefusedError) and (exc.final or self._doubts.is_late(pod.uid)):
            self.observers.reported(
                events.GrantEvent(pod.uid, pod.namespace, pod.name, str(exc), evict=True)
            )

    def prefer(
        self, kind: ResourceKind, asked: plugin_messages.PreferredRequest
    ) -> tuple[str, ...]:
        """Return the free ids that kubelet should take; a hint that binds nothing."""
        known = self._checkpoint.grants.values()
        held = self._holdings.held(known)
        kubelets = self._endings.known(self._sources.pods.life())
        lost = [grant for grant in known if grant.bound and grant.id not in kubelets]
        offered = placement.Offered(
            datatypes.NodeDevices(self._devices, held),
            self._offers[kind].everything,
            frozenset().union(*(_ids(grant, kind) for grant in lost)),
        )
        return placement.preferred(kind, asked, offered, self._sizes.packing, self._sizes.unit)

    # --- claims ---------------------------------------------------------------------------------

    def give(
        self,
        choose: Callable[
            [datatypes.NodeDevices, Mapping[str, grants.Grant]], Sequence[grants.Grant]
        ],
    ) -> None:
        """Store and write the grants that *choose* returns for the node; on the disk on return.

        No other grant is bound meanwhile. RefusedError if their files cannot be written.
        """
        with self._lock:
            known = self._checkpoint.grants
            chosen = choose(
                datatypes.NodeDevices(self._devices, self._holdings.held(known.values())), known
            )
            new = [candidate for candidate in chosen if known.get(candidate.id) != candidate]
            if new:
                self._checkpoint.note(*new, soon=True)
            for grant in chosen:
                self._make(grant)
        self._checkpoint.settle()
        for grant in new:
            log.info("granted %s to %s", grant.id, grant.label)
        if new:
            self.observers.changed()

    def end(self, over: Callable[[grants.Grant], bool], *, used: bool = True) -> None:
        """End the grants for which *over* is true; those in use by processes only if *used*."""
        with self._lock:
            found = [grant for grant in self._checkpoint.grants.values() if over(grant)]
            self._end([grant for grant in found if used or not self._folders.is_used(grant.id)])

    # --- garbage collection ---------------------------------------------------------------------

    def collect(self) -> None:
        """End the grants of pods that are over, and after a while those never used by kubelet."""
        with self._lock:
            # Grants bound after this may not be listed yet; kubelet itself unprepares claims.
            before = {
                k: grant for k, grant in self._checkpoint.grants.items() if grant.claim is None
            }
        if not before:
            return
        listing = self._sources.pods.listing()
        entries = self._sources.state.read()
        if self._sources.pods.life() != listing.life:
            return  # kubelet has restarted: the entries may be those of the new one
        said = lifecycle.KubeletState(listing, entries)
        over = self._endings.over(before.values(), said)
        with self._lock:
            uids = {entry.uid for entry in entries}
            self._doubts.keep(uids)
            self._waiting = {uid: waiting for uid, waiting in self._waiting.items() if uid in uids}
            self._queue = {uid: None for uid in self._queue if uid in uids}
            self._fresh.keep(self._checkpoint.grants)
            known = self._checkpoint.grants
            self._end(grant for grant in over if known.get(grant.id) == grant)
            self._endings.keep(self._checkpoint.grants.values())

    # --- binding --------------------------------------------------------------------------------

    def _bind_all(self, found: Sequence[grant_binding.IdentifiedPod]) -> list[None | Exception]:
        """Bind pods that are fully identified, and write their files; on the disk on return.

        Each step runs for the whole batch before the next: switching between steps costs as much
        as the steps.
        """
        with self._lock:
            written = self._sources.state.read()
            alone = len(found) == 1
            bound = [
                _tried(lambda identified: self._bind(identified, written, alone=alone), pod)
                for pod in found
            ]
            results = [
                outcome if isinstance(outcome, Exception) else _tried(self._make_all, outcome)
                for outcome in bound
            ]
        self._checkpoint.settle()
        return results

    def _known(self, kind: ResourceKind, held: frozenset[str]) -> list[grants.Grant]:
        """Return the bound grants with these ids, of containers that restart.

        Nothing if there may be others: kubelet has allocated one of these ids again.
        """
        known = self._checkpoint.known
        if known.are_open(kind, held):
            return []
        found = [
            grant for grant in known.having(kind, held, bound=True) if _ids(grant, kind) == held
        ]
        if (
            len({grant.owner.uid for grant in found if grant.owner}) > 1
        ):  # kubelet has lost one of the pods
            kubelets = self._known_to_kubelet()
            return [grant for grant in found if grant.id in kubelets]
        return found

    def _known_to_kubelet(self) -> frozenset[str]:
        """Return the grants that kubelet has known of since it started."""
        entries = None
        with contextlib.suppress(errors.UnavailableError):
            entries = self._sources.state.read()
        return self._endings.known(self._sources.pods.life(), entries)

    def _bind(
        self, one: grant_binding.IdentifiedPod, written: checkpoint_file.Entries, *, alone: bool
    ) -> grant_binding.Bound:
        """Bind the unbound grants of a pod to the devices chosen for it."""
        pod_identity.check(one.pod.uid, one.entries, written)
        if self._sources.pods.life() != one.listing.life:
            raise pod_identity.DoubtError("kubelet has restarted since it listed the pod")
        self._endings.note(lifecycle.KubeletState(one.listing, written))
        pod, chosen, known = one.pod, one.chosen, self._checkpoint.known
        own = grant_binding.grants_of(pod, known.grants, time.time())
        kubelets = self._endings.known(one.listing.life, written)

        def kept(grant_id: str) -> bool:
            return grant_id in written.grants and self._folders.is_used(grant_id)

        mine = {grant.id for grant in own.values()}
        self._end(grant_binding.superseded(pod, mine, known, kubelets, kept))
        wanting = [container for container in pod.containers if not own[container.name].bound]
        shares = self._place(one, wanting, written) if wanting else {}
        self._queue.pop(pod.uid, None)
        if self._waiting.pop(pod.uid, None) is not None:
            self.observers.withdrawn(pod.uid, events.Reason.WAITS)
        new = grant_binding.bound(pod, own, shares, chosen, self._devices)
        if new:
            self._checkpoint.note(*new.values(), soon=alone)
        return grant_binding.Bound(one, own | new, new)

    def _place(
        self,
        one: grant_binding.IdentifiedPod,
        wanting: Sequence[pod_identity.PodContainer],
        written: checkpoint_file.Entries,
    ) -> placement.Shares:
        """Return the shares of containers of a pod; RefusedError if it cannot be placed now."""
        pod = one.pod
        ahead = list(itertools.takewhile(lambda uid: uid != pod.uid, self._queue))
        if (aligned := placement.aligned(one.chosen, self._numa_nodes_of(wanting))) is not None:
            with contextlib.suppress(RefusedError):  # there is room on other NUMA nodes, or none
                return self._room().place(wanting, pod, aligned, ahead)
        try:
            return self._room().place(wanting, pod, one.chosen, ahead)
        except WaitsError:
            if not self._end_dropped(one, written):
                self._queue.setdefault(pod.uid)
                raise
        return self._place(one, wanting, written)

    def _numa_nodes_of(self, wanting: Iterable[pod_identity.PodContainer]) -> set[int | None]:
        """Return the NUMA nodes of the ids that kubelet chose for containers."""
        found: set[int | None] = set()
        for kind in (ResourceKind.VCORE, ResourceKind.VMEMORY):
            offer = self._offers.get(kind)
            if offer is not None and offer.numa:
                for container in wanting:
                    ids = container.vcore if kind is ResourceKind.VCORE else container.vmemory
                    found.update(map(offer.numa.get, ids))
        return found

    def _end_dropped(
        self, one: grant_binding.IdentifiedPod, written: checkpoint_file.Entries
    ) -> bool:
        """End grants that kubelet's latest state shows to be over; whether there were any."""
        said = lifecycle.KubeletState(one.listing, written)
        before = [grant for grant in one.before.values() if grant.claim is None and not grant.over]
        known = self._checkpoint.grants
        over = [
            grant for grant in self._endings.dropped(before, said) if known.get(grant.id) == grant
        ]
        self._end(over)
        return bool(over)

    def _make_all(self, bound: grant_binding.Bound) -> None:
        """Write the files of a pod's grants; RefusedError if one was reassigned meanwhile."""
        pod, held = bound.found.pod, bound.found.held
        for grant in bound.everything.values():
            if self.known.get(grant.id) != grant:
                raise RefusedError(f"grant {grant.id} was given to another pod", final=False)
            self._make(grant)
            asked = _ids(grant, held.kind) == held.ids
            self._fresh.note(grant.id, held.kind if asked else None)
        for name, grant in bound.new.items():
            log.info("bound %s to %s/%s/%s", grant.id, pod.namespace, pod.name, name)
        if bound.new:
            self.observers.bound(
                pod, {name: grant.shares for name, grant in bound.everything.items()}
            )
        if any(made.whole for made in bound.new.values()):
            self._offer()  # a whole device also takes the memory that its pod did not request
        else:
            self.observers.changed()
        self._doubts.forget(pod.uid)
        self._check_admitted(tuple(bound.everything.values()))

    def _check_admitted(self, own: Sequence[grants.Grant]) -> None:
        """Raise WaitsError while the pod with the bound grants *own* has no room to run."""
        if self._admit is None:
            return
        self._admit(own)
        owner = own[0].owner
        if owner is not None and self._waiting.pop(owner.uid, None) is not None:
            self.observers.withdrawn(owner.uid, events.Reason.WAITS)

    def _room(self) -> grant_binding.NodeCapacity:
        sizes, known = self._sizes, self._checkpoint.grants.values()
        return grant_binding.NodeCapacity(
            self._devices, known, self._holdings, sizes.unit, sizes.packing
        )

    def _start_again(self, kind: ResourceKind, grant: grants.Grant) -> None:
        """Prepare a bound grant for a restart; RefusedError while a device of it is unhealthy."""
        owner = grant.owner or grants.Owner("", "", "", "")
        unhealthy = holdings.unhealthy(grant, self._devices)
        try:
            if unhealthy:
                raise RefusedError(f"a granted device is unhealthy: {unhealthy}", final=False)
            if not self._fresh.take(grant.id, kind):
                self._make(grant)
                self._fresh.note(grant.id, kind)
            self._doubts.forget(owner.uid)
            own = self._checkpoint.known.of_pod(owner.uid)
            self._check_admitted([one for one in own if not one.over])
        except WaitsError as exc:
            self._waiting[owner.uid] = frozenset({grant.id})
            reason = events.Reason.WAITS
            self.observers.reported(
                events.GrantEvent(owner.uid, owner.namespace, owner.pod, str(exc), reason)
            )
            raise
        except RefusedError as exc:
            if exc.final or self._doubts.is_late(owner.uid):
                self.observers.reported(
                    events.GrantEvent(owner.uid, owner.namespace, owner.pod, str(exc), evict=True)
                )
            raise

    def _make(self, grant: grants.Grant) -> None:
        try:
            self._folders.make(grant)
        except errors.DataError as exc:
            raise RefusedError(
                f"a granted device does not exist any more: {exc}", final=True
            ) from exc
        except errors.UnavailableError as exc:
            if not grant.mig:
                raise
            raise RefusedError(f"its MIG instance {grant.mig}: {exc}", final=False) from exc

    def _end(self, over: Iterable[grants.Grant]) -> None:
        """End grants: no container starts on them again, and their shares are free.

        If a process of one still runs, the grant is revoked: the process can allocate no more. Its
        share is free when the process has ended, and is offered under no id until then.
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
            self._checkpoint.drop(*(gone.id for gone in ended))
        for grant in left:
            log.warning("revoked %s of %s: one of its processes still runs", grant.id, grant.label)
        for grant in ended:
            log.info("ended %s of %s", grant.id, grant.label)
        if left or ended:
            self._offer()

    def _offer(self) -> None:
        """Update the healthy ids that kubelet sees."""
        known = self._checkpoint.grants.values()
        for kind, offer in self._offers.items():
            given = frozenset().union(*(_ids(grant, kind) for grant in known))
            capacities = holdings.capacities(
                offer.resource, self._devices, known, self._sizes.unit
            )
            count = sum(capacity.size for capacity in capacities)
            if count > device_ids.MOST_IDS:  # the devices are unhealthy for this reason
                count = 0
            everything = offer.everything
            if len(everything) != count:
                everything = offer.resource.ids(count)
            offer.set(
                count,
                device_ids.unhealthy(everything, capacities, given, offer.unhealthy),
                device_ids.numa_nodes(everything, capacities),
            )
        self.observers.changed()


def _ids(grant: grants.Grant, kind: ResourceKind) -> frozenset[str]:
    return grant.vcore_ids if kind is ResourceKind.VCORE else grant.vmemory_ids


def _tried(do: Callable[[One], Done], one: One) -> Done | Exception:
    try:
        return do(one)
    except Exception as exc:  # fails this one, not the batch
        return exc
