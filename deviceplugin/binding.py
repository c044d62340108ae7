"""What the grants of a pod become when it is known whose they are; pure.

Each container brings the grant that Allocate made for it. Those that are not bound are placed
together, on what the node has at that moment.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu.allocator import facts
from pyvgpu.deviceplugin import grants, holdings, identity, placing
from pyvgpu.deviceplugin.ids import Kind
from pyvgpu.deviceplugin.placing import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pyvgpu.deviceplugin import known, podresources, state


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """What kubelet says of a container that is about to start."""

    kind: Kind
    ids: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """The pod of a container that is about to start, who has said so, and what it is to have."""

    held: Held
    pod: identity.Pod
    listing: podresources.Listing
    entries: state.Entries
    before: Mapping[str, grants.Grant]  # all that there were before kubelet said so
    chosen: placing.Chosen = placing.NOTHING


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """A pod whose grants are bound, by container; *new* are those that were not before."""

    found: Found
    everything: Mapping[str, grants.Grant]
    new: Mapping[str, grants.Grant]


def grants_of(
    pod: identity.Pod, known: Mapping[str, grants.Grant], now: float
) -> dict[str, grants.Grant]:
    """Return the grant of each container; RefusedError for one that has none of ours.

    One that kubelet alone remembers is as it was before it was bound, made *now* (seconds since
    the epoch).
    """
    return {it.name: _grant_of(pod, it, known, now) for it in pod.containers}


def _grant_of(
    pod: identity.Pod, one: identity.Container, known: Mapping[str, grants.Grant], now: float
) -> grants.Grant:
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
    found = known.get(one.grant)
    if found is None:
        return grants.Grant(one.grant, one.vcore, now)
    if found.over:
        raise RefusedError(
            f"container {one.name}: what it was granted was given to another; delete the pod, "
            "so that it is made anew",
            final=True,
        )
    owner = found.owner
    if owner is not None and (pod.uid, one.name) != (owner.uid, owner.container):
        raise RefusedError(
            f"container {one.name} comes with grant {found.id}, which is that of {owner.label}",
            final=True,
        )
    return found


def superseded(
    pod: identity.Pod,
    own: Collection[str],
    there: known.Known,
    kubelets: Collection[str],
    kept: Callable[[str], bool],
) -> list[grants.Grant]:
    """Return the grants that are over now that *pod* starts; *own* are its own.

    *kubelets* are the ids of those that this kubelet has known of; *kept* tells by its id whether
    it knows of one still, and processes use it.
    """
    vcore = frozenset[str]().union(*(it.vcore for it in pod.containers))
    vmemory = frozenset[str]().union(*(it.vmemory for it in pod.containers))
    found = [
        *there.of_pod(pod.uid),
        *(there.named(pod.namespace, pod.name) if pod.name else ()),
        *there.having(Kind.VCORE, vcore, bound=True),
        *there.having(Kind.VCORE, vcore, bound=False),
        *there.having(Kind.VMEMORY, vmemory, bound=True),
    ]
    others = {it.id: it for it in found if it.id not in own}
    return [
        it
        for it in others.values()
        if identity.supersedes(pod, it, known=it.id in kubelets, kept=kept)
    ]


def bound(
    pod: identity.Pod,
    own: Mapping[str, grants.Grant],
    shares: placing.Shares,
    chosen: placing.Chosen,
) -> dict[str, grants.Grant]:
    """Return the grants of the containers that have *shares* now, *own* being what they were."""
    return {
        it.name: dataclasses.replace(
            own[it.name],
            owner=grants.Owner(pod.uid, pod.namespace, pod.name, it.name),
            vmemory_ids=it.vmemory,
            shares=shares[it.name],
            chosen=chosen.shares is not None,
        )
        for it in pod.containers
        if it.name in shares
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Room:
    """What there is to place pods on."""

    devices: Sequence[facts.Device]
    known: Collection[grants.Grant]  # all that there are
    book: holdings.Book
    unit: int  # bytes of one vmemory
    packing: facts.Packing

    def place(
        self,
        wanting: Iterable[identity.Container],
        pod: identity.Pod,
        chosen: placing.Chosen,
        ahead: Collection[str],
    ) -> placing.Shares:
        """Return the shares of those *wanting* of a pod; RefusedError if there are none now.

        Pods with the uids *ahead* wait as well, and for longer. One that has a part of a device
        and could have the rest only if one of those gave up its own is in their way, and they in
        its: it does not wait for as long as that takes.
        """
        count_of = chosen.wanted.count_of
        wishes = placing.wishes(wanting, pod.containers, self.devices, self.unit, count_of)
        asked = chosen.wanted.pod(wishes, self.packing)
        now = facts.Node(tuple(self.devices), self.book.held(self.known))
        try:
            return placing.place_pod(now, lambda: self._empty({pod.uid}, chosen), asked, chosen)
        except placing.WaitsError as exc:
            blocked = self._held({pod.uid}) and not placing.fits(
                self._empty({pod.uid, *ahead}, chosen), asked, chosen
            )
            if not blocked:
                raise
            text = f"{exc}; it has a part that pods wait for which came before it"
            raise RefusedError(text, final=False) from exc

    def _empty(self, uids: Collection[str], chosen: placing.Chosen) -> facts.Node:
        """Return the node with nothing but the pods *uids*, open to all that may come.

        What a scheduler has sealed it would choose anew where a device is closed since.
        """
        devices = (
            self.devices
            if chosen.shares is not None
            else [dataclasses.replace(it, cordoned=False, door="") for it in self.devices]
        )
        return facts.Node(tuple(devices), self._held(uids))

    def _held(self, uids: Collection[str]) -> tuple[facts.Holding, ...]:
        own = [it for it in self.known if it.owner and it.owner.uid in uids and not it.over]
        return holdings.held(own, self.unit)
