"""Bind the grants of an identified pod to its containers; pure.

Each container has the grant that Allocate created for it. The unbound ones are placed together, on
the node's current state.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import quota
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.grants import holdings, placement, pod_identity
from pyvgpu.deviceplugin.grants.placement import RefusedError
from pyvgpu.deviceplugin.kubelet.device_ids import ResourceKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pyvgpu.deviceplugin.grants import grant_index
    from pyvgpu.deviceplugin.kubelet import checkpoint_file, pod_resources


@dataclasses.dataclass(frozen=True, slots=True)
class StartingIds:
    """The ids of a container that is about to start, from kubelet's call."""

    kind: ResourceKind
    ids: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class IdentifiedPod:
    """The pod of a container that is about to start, with kubelet's evidence and its devices."""

    held: StartingIds
    pod: pod_identity.KnownPod
    listing: pod_resources.Listing
    entries: checkpoint_file.Entries
    before: Mapping[str, grants.Grant]  # all grants before kubelet was queried
    chosen: placement.Chosen = placement.NOTHING


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """A pod whose grants are bound, by container; *new* are those just bound."""

    found: IdentifiedPod
    everything: Mapping[str, grants.Grant]
    new: Mapping[str, grants.Grant]


def grants_of(
    pod: pod_identity.KnownPod, known: Mapping[str, grants.Grant], now: float
) -> dict[str, grants.Grant]:
    """Return the grant of each container; RefusedError for a container that has none.

    A grant that only kubelet knows is re-created unbound, as of *now* (seconds since the epoch).
    """
    return {container.name: _grant_of(pod, container, known, now) for container in pod.containers}


def _grant_of(
    pod: pod_identity.KnownPod,
    one: pod_identity.PodContainer,
    known: Mapping[str, grants.Grant],
    now: float,
) -> grants.Grant:
    if not one.vcore:
        raise RefusedError(
            f"container {one.name}: vmemory without vcore: memory alone is useless; request "
            "at least 1 vcore as well",
            final=True,
        )
    if not grants.is_id(one.grant):
        raise RefusedError(
            f"container {one.name} has its vcore from another plugin; delete the pod, so that "
            "it is re-created",
            final=True,
        )
    found = known.get(one.grant)
    if found is None:
        return grants.Grant(one.grant, one.vcore, now)
    if found.over:
        raise RefusedError(
            f"container {one.name}: its grant was given to another container; delete the pod, "
            "so that it is re-created",
            final=True,
        )
    owner = found.owner
    if owner is not None and (pod.uid, one.name) != (owner.uid, owner.container):
        raise RefusedError(
            f"container {one.name} has grant {found.id}, which belongs to {owner.label}",
            final=True,
        )
    return found


def superseded(
    pod: pod_identity.KnownPod,
    own: Collection[str],
    there: grant_index.GrantIndex,
    kubelets: Collection[str],
    kept: Callable[[str], bool],
) -> list[grants.Grant]:
    """Return the grants that have ended, now that *pod* starts; *own* are its own.

    *kubelets* are the ids that this kubelet has known; *kept* tells by its id whether kubelet
    still knows a grant and processes use it.
    """
    vcore = frozenset[str]().union(*(container.vcore for container in pod.containers))
    vmemory = frozenset[str]().union(*(container.vmemory for container in pod.containers))
    found = [
        *there.of_pod(pod.uid),
        *(there.named(pod.namespace, pod.name) if pod.name else ()),
        *there.having(ResourceKind.VCORE, vcore, bound=True),
        *there.having(ResourceKind.VCORE, vcore, bound=False),
        *there.having(ResourceKind.VMEMORY, vmemory, bound=True),
    ]
    others = {grant.id: grant for grant in found if grant.id not in own}
    return [
        other
        for other in others.values()
        if pod_identity.supersedes(pod, other, known=other.id in kubelets, kept=kept)
    ]


def bound(
    pod: pod_identity.KnownPod,
    own: Mapping[str, grants.Grant],
    shares: placement.Shares,
    chosen: placement.Chosen,
    devices: Sequence[datatypes.NodeDevice],
) -> dict[str, grants.Grant]:
    """Return the grants *own* of the containers in *shares*, bound to these of *devices*."""
    return {
        container.name: dataclasses.replace(
            own[container.name],
            owner=grants.Owner(pod.uid, pod.namespace, pod.name, container.name),
            vmemory_ids=container.vmemory,
            shares=shares[container.name],
            chosen=chosen.shares is not None,
            isolation=isolation_on(shares[container.name], devices),
        )
        for container in pod.containers
        if container.name in shares
    }


def isolation_on(
    shares: Iterable[datatypes.NodeShare], devices: Iterable[datatypes.NodeDevice]
) -> quota.Isolation:
    """Return the isolation of a grant with these *shares* of the node's *devices*."""
    by_mps = {device.uuid for device in devices if device.mps}
    if any(share.uuid in by_mps for share in shares):
        return quota.Isolation.MPS
    return quota.Isolation.QUOTA


@dataclasses.dataclass(frozen=True, slots=True)
class NodeCapacity:
    """The node's state for placing pods."""

    devices: Sequence[datatypes.NodeDevice]
    known: Collection[grants.Grant]  # all grants
    allocated: holdings.Holdings
    unit: int  # bytes of one vmemory
    packing: datatypes.Packing

    def place(
        self,
        wanting: Iterable[pod_identity.PodContainer],
        pod: pod_identity.KnownPod,
        chosen: placement.Chosen,
        ahead: Collection[str],
    ) -> placement.Shares:
        """Return shares for the containers *wanting* of *pod*; RefusedError if it has no room.

        Pods with the uids *ahead* have waited longer. A pod that holds a share, and could get the
        rest only if one of those gave up its own, would deadlock with them: it does not wait.
        """
        count_of = chosen.wanted.count_of
        requested = placement.read_requests(
            wanting, pod.containers, self.devices, self.unit, count_of
        )
        asked = chosen.wanted.pod(requested, self.packing)
        placement.check_needs(asked.selector, requested)
        now = datatypes.NodeDevices(tuple(self.devices), self.allocated.held(self.known))
        try:
            return placement.place_pod(now, lambda: self._empty({pod.uid}, chosen), asked, chosen)
        except placement.WaitsError as exc:
            blocked = self._held({pod.uid}) and not placement.fits(
                self._empty({pod.uid, *ahead}, chosen), asked, chosen
            )
            if not blocked:
                raise
            text = f"{exc}; it holds a share that older pods wait for"
            raise RefusedError(text, final=False) from exc

    def _empty(self, uids: Collection[str], chosen: placement.Chosen) -> datatypes.NodeDevices:
        """Return the node with no pods but *uids*, and with cordons and other APIs lifted.

        They stay for a scheduler's signed choice: if a device was closed since, it chooses again.
        """
        devices = (
            self.devices
            if chosen.shares is not None
            else [
                dataclasses.replace(device, cordoned=False, allocated_by="")
                for device in self.devices
            ]
        )
        return datatypes.NodeDevices(tuple(devices), self._held(uids))

    def _held(self, uids: Collection[str]) -> tuple[datatypes.Holding, ...]:
        own = [
            grant
            for grant in self.known
            if grant.owner and grant.owner.uid in uids and not grant.over
        ]
        return holdings.held(own, self.unit)
