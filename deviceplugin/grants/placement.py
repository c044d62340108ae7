"""Place the containers of a pod on this node: their requests, and the devices chosen for them.

Pure. If the scheduler extender has chosen the devices, the pod gets these or none.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, TypeAlias

from pyvgpu import errors
from pyvgpu.allocator import (
    datatypes,
    device_selector,
    free_capacity,
    placement_explanation,
    pod_placement,
    requests,
)
from pyvgpu.deviceplugin.grants import holdings
from pyvgpu.deviceplugin.kubelet import device_ids
from pyvgpu.deviceplugin.kubelet.device_ids import ResourceKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pyvgpu.deviceplugin.grants import pod_identity
    from pyvgpu.deviceplugin.kubelet import plugin_messages


Shares: TypeAlias = dict[str, tuple[datatypes.NodeShare, ...]]  # by container


class RefusedError(errors.UnavailableError):
    """A container must not start; *final*: it never can.

    Otherwise it may be able to start soon; if not, the pod is evicted after a while.
    """

    def __init__(self, text: str, *, final: bool) -> None:
        super().__init__(text)
        self.final = final


class WaitsError(RefusedError):
    """A container cannot start yet; its pod waits without a deadline.

    A replacement pod would have to wait as well.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text, final=False)


class _NoPlaceError(Exception):
    """A pod does not fit on a node: *what* that means, and *why*."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")
        self.what, self.why = what, why


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """Constraints on the devices of a pod: from the scheduler, kubelet or the pod's user."""

    # UUIDs already chosen, by container; other containers are placed here.
    devices: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    shares: Mapping[str, tuple[datatypes.NodeShare, ...]] | None = None  # all of the pod's shares
    # Requested by the pod's user; *shares* respect it already.
    wanted: device_selector.DeviceSelector = dataclasses.field(
        default_factory=device_selector.DeviceSelector
    )

    @property
    def by_others(self) -> bool:
        """Whether any device was chosen elsewhere; else all are chosen here."""
        return bool(self.devices) or self.shares is not None


NOTHING = Chosen()


def aligned(chosen: Chosen, numa: Collection[int | None]) -> Chosen | None:
    """Return *chosen* with the NUMA node that all ids have which kubelet chose for a pod.

    None if they are of several, or if another component or the pod's user chose already.
    """
    wanted = chosen.wanted
    if len(numa) != 1 or None in numa or chosen.by_others or wanted.selector.numa is not None:
        return None
    (node,) = numa
    selector = dataclasses.replace(wanted.selector, numa=node)
    return dataclasses.replace(chosen, wanted=dataclasses.replace(wanted, selector=selector))


def read_requests(
    containers: Iterable[pod_identity.PodContainer],
    others: Sequence[pod_identity.PodContainer],
    devices: Iterable[datatypes.NodeDevice],
    unit: int,
    count_of: Callable[[str], int | None] = lambda _: None,
) -> tuple[datatypes.Container, ...]:
    """Return the requests of *containers*; RefusedError for one that no device can satisfy.

    *others* are all containers of the pod, *unit* is the bytes of one vmemory, and *count_of*
    returns over how many devices a container is to be spread, None if not specified. As their
    order is not known, sidecars go first.
    """
    least = min((device.least_bytes for device in devices), default=1)
    found = []
    for container in containers:
        need = _need(container, unit, count_of(container.name), least)
        found.append(
            datatypes.Container(container.name, need, holdings.kind_of(container, others))
        )
    order = (
        datatypes.ContainerKind.SIDECAR,
        datatypes.ContainerKind.INIT,
        datatypes.ContainerKind.APP,
    )
    return tuple(sorted(found, key=lambda part: order.index(part.kind)))


def _need(
    one: pod_identity.PodContainer, unit: int, count: int | None, least: int
) -> datatypes.ContainerNeed:
    try:
        return requests.read(len(one.vcore), len(one.vmemory) * unit, count, least=least)
    except errors.UsageError as exc:
        raise RefusedError(f"container {one.name}: {exc}", final=True) from exc


def check_needs(selector: datatypes.Selector, requested: Iterable[datatypes.Container]) -> None:
    """Raise RefusedError for a container that no device of the pod's *selector* can ever serve."""
    for part in requested:
        try:
            device_selector.check_need(selector, part.need)
        except errors.UsageError as exc:
            raise RefusedError(f"container {part.name}: {exc}", final=True) from exc


def place_pod(
    now: datatypes.NodeDevices,
    empty: Callable[[], datatypes.NodeDevices],
    pod: datatypes.Pod,
    chosen: Chosen = NOTHING,
) -> Shares:
    """Return the shares of each container on the node as it is *now*.

    If they do not fit, or not on the chosen devices, the *empty* node, without other pods,
    decides: WaitsError if they fit there, RefusedError if not, which is final unless they would
    fit with its unhealthy devices.
    """
    try:
        return _placed(now, pod, chosen)
    except _NoPlaceError as exc:
        without = empty()
        if fits(without, pod, chosen):
            raise WaitsError(f"{exc.what}{placement_explanation.FOR_NOW}{exc.why}") from exc
        well = tuple(dataclasses.replace(device, unhealthy="") for device in without.devices)
        passes = not well or fits(datatypes.NodeDevices(well, without.held), pod, chosen)
        raise RefusedError(str(exc), final=not passes) from exc


def fits(node: datatypes.NodeDevices, pod: datatypes.Pod, chosen: Chosen = NOTHING) -> bool:
    """Return whether *pod* fits on *node*, on the *chosen* devices if there are any."""
    try:
        _placed(node, pod, chosen)
    except _NoPlaceError:
        return False
    return True


def _placed(node: datatypes.NodeDevices, pod: datatypes.Pod, chosen: Chosen) -> Shares:
    if not chosen.by_others:
        try:
            return pod_placement.place(node, pod)
        except placement_explanation.Refused as exc:
            raise _NoPlaceError("there is no room on this node", str(exc)) from exc
    shares = dict(chosen.shares) if chosen.shares is not None else _completed(node, pod, chosen)
    wrong = pod_placement.problem(node, pod, shares)
    if wrong:
        raise _NoPlaceError("the devices chosen for it cannot be given", wrong)
    return {container.name: tuple(shares[container.name]) for container in pod.containers}


def _completed(node: datatypes.NodeDevices, pod: datatypes.Pod, chosen: Chosen) -> Shares:
    """Return the shares on the *chosen* devices, with a place for containers without a choice."""
    found = {
        placed.name: tuple(_share(node, placed.need, uuid) for uuid in chosen.devices[placed.name])
        for placed in pod.containers
        if placed.name in chosen.devices
    }
    for container in pod.containers:
        if container.name not in found:
            found[container.name] = _beside(node, pod, found, container)
    return found


def _share(
    node: datatypes.NodeDevices, need: datatypes.ContainerNeed, uuid: str
) -> datatypes.NodeShare:
    sizes = {device.uuid: device.memory_bytes for device in node.devices}
    return datatypes.NodeShare(
        uuid, need.vcore, sizes.get(uuid, 1) if need.whole else need.vmemory
    )


def _beside(
    node: datatypes.NodeDevices,
    pod: datatypes.Pod,
    found: Mapping[str, Sequence[datatypes.NodeShare]],
    one: datatypes.Container,
) -> tuple[datatypes.NodeShare, ...]:
    """Return a place for a container besides those *found*, preferably on their devices."""
    both = tuple(
        container for container in pod.containers if container.name in found or container is one
    )
    part = dataclasses.replace(pod, containers=both)
    own = dict.fromkeys(share.uuid for shares in found.values() for share in shares)
    if one.need.count == 1:
        for uuid in dict.fromkeys((*own, *(device.uuid for device in node.devices))):
            shares = (_share(node, one.need, uuid),)
            if not pod_placement.problem(node, part, {**found, one.name: shares}):
                return shares
    taken = pod_placement.holdings(
        [other for other in both if other is not one], found, "the same pod"
    )
    rest = datatypes.NodeDevices(node.devices, (*node.held, *taken))
    alone = dataclasses.replace(pod, containers=(one,))
    return _placed(rest, alone, NOTHING)[one.name]


@dataclasses.dataclass(frozen=True, slots=True)
class Offered:
    """The node's state and the ids of the requested resource."""

    node: datatypes.NodeDevices
    everything: Sequence[str]  # all ids of the resource, in the order of the devices
    # Ids in use that kubelet takes for free, since it has lost its checkpoint.
    lost: Collection[str] = frozenset()


def preferred(
    kind: ResourceKind,
    asked: plugin_messages.PreferredRequest,
    offered: Offered,
    packing: datatypes.Packing,
    unit: int,
) -> tuple[str, ...]:
    """Return the ids to take: first those of the devices that would be chosen, then others."""
    node, everything = offered.node, offered.everything
    need = _need_of_ids(kind, asked.size, node, unit)
    found = None
    if need is not None:
        pod = datatypes.Pod((datatypes.Container("", need),), packing=packing)
        found = pod_placement.find(free_capacity.of(node), pod)
    chosen = {share.uuid for share in found[""]} if found else set()
    best: list[Sequence[str]] = []
    first = 0
    for device in node.devices:
        size = holdings.size_of(kind, device, unit)
        if device.uuid in chosen:
            best.append(everything[first : first + size])
        first += size
    order = [
        device_id
        for device_id in itertools.chain(*best, everything)
        if device_id not in offered.lost
    ]
    return device_ids.preferred(asked.available, asked.must, asked.size, order)


def _need_of_ids(
    kind: ResourceKind, size: int, node: datatypes.NodeDevices, unit: int
) -> datatypes.ContainerNeed | None:
    """Return a request with *size* ids of this kind, and the minimum of the other resource."""
    least = min((device.least_bytes for device in node.devices), default=1)
    if kind is ResourceKind.VMEMORY:
        return datatypes.ContainerNeed(1, size * unit) if size else None
    try:
        return requests.read(size, least)
    except errors.UsageError:
        return None
