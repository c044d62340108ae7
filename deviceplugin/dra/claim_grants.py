"""Translate an allocated ResourceClaim into grants of shares on this node; pure.

The scheduler has chosen the devices and the capacity consumed of each, and has written both into
the claim. A claim is one quota, which all containers that use the claim share. Only if every
container names one of its requests, each request is a quota of its own.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names, quantity
from pyvgpu.allocator import datatypes, elastic, mig_placement
from pyvgpu.deviceplugin import allocation_api, grants
from pyvgpu.deviceplugin.dra import mig_partitions, resource_slices
from pyvgpu.deviceplugin.grants.placement import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """A claim, identified as in kubelet's calls."""

    namespace: str
    uid: str
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """A device of a prepared claim."""

    request: str
    pool: str
    device: str
    cdi: tuple[str, ...]  # full names, such as pyvgpu.io/grant=0123
    share_id: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """The allocation of one device for one request."""

    result: grants.ClaimResult
    vcore: int
    vmemory: int | None  # bytes; None: the whole device's
    pool: str  # of the device
    admin: bool = False  # adminAccess, for monitoring: consumes nothing
    asked: str = ""  # the request, with the alternative that was allocated: main/large


@dataclasses.dataclass(frozen=True, slots=True)
class Allocated:
    """An allocated claim, as far as it concerns this node."""

    named: Named
    pod: str  # name of the pod for which it is reserved
    pod_uid: str
    pieces: tuple[Piece, ...]
    configurations: tuple[Mapping[str, Any], ...] = ()  # see allocator/elastic.py

    @property
    def requests(self) -> tuple[str, ...]:
        """The requests with allocated devices, without those with adminAccess."""
        return tuple(
            dict.fromkeys(piece.result.request for piece in self.pieces if not piece.admin)
        )


def read(document: Mapping[str, Any], named: Named, node: str) -> Allocated:
    """Parse the claim *document*; RefusedError if it cannot be prepared here."""
    try:
        uid = str(document["metadata"]["uid"])
        if uid != named.uid:
            raise _refused(named, f"was replaced by another one, with uid {uid}", final=True)
        status = document.get("status") or {}
        allocation = status.get("allocation")
        if not allocation:
            raise _refused(named, "is not allocated (any more)", final=False)
        devices = allocation["devices"]
        pods = [
            consumer
            for consumer in status.get("reservedFor") or ()
            if consumer["resource"] == "pods"
        ]
        pod = pods[0] if pods else {"name": "", "uid": ""}
        return Allocated(
            named,
            str(pod["name"]),
            str(pod["uid"]),
            tuple(_pieces(devices.get("results") or (), named, node)),
            tuple(devices.get("config") or ()),
        )
    except (KeyError, TypeError, AttributeError) as exc:
        raise _refused(named, f"cannot be parsed: {exc!r}", final=True) from exc


def _pieces(results: Iterable[Mapping[str, Any]], named: Named, node: str) -> Iterator[Piece]:
    for allocated in results:
        if allocated["driver"] != names.DRA_DRIVER:
            continue
        pool = str(allocated["pool"])
        if pool not in (node, mig_partitions.pool_of(node)):
            raise _refused(named, f"has a device of pool {pool!r}, not {node!r}", final=True)
        result = grants.ClaimResult(
            str(allocated["request"]).partition("/")[0],
            str(allocated["device"]),
            str(allocated.get("shareID") or ""),
        )
        consumed = allocated.get("consumedCapacity")
        vcore, vmemory = quantity.WHOLE_DEVICE, None
        if consumed is not None:
            vcore = _amount(consumed, names.DRA_VCORE, quantity.WHOLE_DEVICE, named)
            vmemory = _amount(consumed, names.DRA_VMEMORY, quantity.MAXIMUM_BYTES, named)
        yield Piece(
            result,
            vcore,
            vmemory,
            pool,
            bool(allocated.get("adminAccess")),
            str(allocated["request"]),
        )


def _amount(consumed: Mapping[str, Any], name: str, most: int, named: Named) -> int:
    text = consumed.get(name, consumed.get(f"{names.DRA_DRIVER}/{name}"))
    if text is None:
        raise _refused(named, f"was allocated no {name}", final=True)
    try:
        found = quantity.parse_size(str(text), name)
    except errors.UsageError as exc:
        raise _refused(named, f"was allocated an invalid capacity: {exc}", final=True) from exc
    if found > most:
        raise _refused(named, f"was allocated {name} {text}: at most {most}", final=True)
    return found


# --- containers that use a claim -------------------------------------------------------------


def uses(pod: Mapping[str, Any], claims: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the requests through which *pod*'s containers use each of *claims*; '' is all of it.

    RefusedError for a container that would have several quotas at once.
    """
    wanted = frozenset(claims)
    named = dict(_claims_of(pod))
    found: dict[str, set[str]] = {name: set() for name in wanted}
    for container in _containers(pod):
        own = {
            (named[reference["name"]], reference.get("request") or "")
            for reference in (container.get("resources") or {}).get("claims") or ()
            if named.get(reference["name"]) in wanted
        }
        if len(own) > 1:
            several = ", ".join(
                sorted(f"{claim}/{request}" if request else claim for claim, request in own)
            )
            raise RefusedError(
                f"container {container['name']} uses {several}: a container can have one quota "
                "only; put them into one claim as several requests, and name only the claim in "
                "the container",
                final=True,
            )
        for claim, request in own:
            found[claim].add(request)
    extended = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    if extended.get("resourceClaimName") in wanted:
        mapped = extended.get("requestMappings") or ()
        found[extended["resourceClaimName"]] |= {mapping["requestName"] for mapping in mapped}
    return {claim: frozenset(requests) for claim, requests in found.items()}


def _claims_of(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the claims' names within the pod, each with the name of the ResourceClaim."""
    for claim in pod["spec"].get("resourceClaims") or ():
        if claim.get("resourceClaimName"):
            yield claim["name"], claim["resourceClaimName"]
    for status in (pod.get("status") or {}).get("resourceClaimStatuses") or ():
        if status.get("resourceClaimName"):
            yield status["name"], status["resourceClaimName"]


def _containers(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from pod["spec"].get("initContainers") or ()
    yield from pod["spec"]["containers"]


# --- grants of a claim -----------------------------------------------------------------------


def parts(claim: Allocated, used: frozenset[str]) -> dict[str, tuple[Piece, ...]]:
    """Return the pieces of each quota of a claim, by request; '' is the whole claim.

    *used* are the requests that containers name. RefusedError if some containers name a request
    and others the whole claim.
    """
    given = tuple(piece for piece in claim.pieces if not piece.admin)
    if not given:
        return {}
    if len(given) < len(claim.pieces):
        raise _refused(
            claim.named,
            "mixes requests with adminAccess and others; put them into a claim of their own",
            final=True,
        )
    if len(claim.requests) == 1 or used <= {""}:
        return {"": given}
    if "" in used:
        raise _refused(
            claim.named,
            f"is used as a whole and by its requests {', '.join(sorted(used - {''}))}: either all "
            "containers name a request, and each request is a quota, or none does",
            final=True,
        )
    return {
        request: tuple(piece for piece in given if piece.result.request == request)
        for request in claim.requests
    }


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimContext:
    """The state of the node for which a claim is prepared."""

    name: str  # the node's
    node: datatypes.NodeDevices
    gives: Callable[[str], bool]  # whether a device, by its UUID, is allocated through DRA
    now: float  # seconds since the epoch


def grants_of(claim: Allocated, used: frozenset[str], around: ClaimContext) -> list[grants.Grant]:
    """Return new grants for a claim; RefusedError if the node cannot give what was allocated.

    The scheduler allocates only what is free; but processes of a force-deleted pod may still run,
    and their share of the device is not free before they end.
    """
    found = []
    for request, pieces in parts(claim, used).items():
        shares = _shares(claim, pieces, around)
        time_sharing = _time_sharing_of(claim, pieces, shares)
        name = f"{claim.named.name}/{request}" if request else claim.named.name
        found.append(
            grants.Grant(
                grants.new_id(),
                frozenset(),
                around.now,
                grants.Owner(claim.pod_uid, claim.named.namespace, claim.pod, name),
                shares=shares,
                policy=time_sharing.policy,
                ceiling=time_sharing.ceiling,
                priority=time_sharing.priority,
                claim=grants.GrantClaim(
                    claim.named.uid,
                    claim.named.namespace,
                    claim.named.name,
                    tuple(piece.result for piece in pieces),
                    shares,
                    time_sharing.policy,
                    time_sharing.ceiling,
                    time_sharing.priority,
                ),
            )
        )
    _check_room(claim, [share for grant in found for share in grant.shares], around.node)
    return found


def _shares(
    claim: Allocated, pieces: Sequence[Piece], around: ClaimContext
) -> tuple[datatypes.NodeShare, ...]:
    """Return one share for each device, the sum of its pieces; or one MIG instance."""
    partitions = mig_partitions.pool_of(around.name)
    if any(piece.pool == partitions for piece in pieces):
        return (_instance(claim, pieces, around),)
    known = {
        resource_slices.device_name(own_device.uuid): own_device
        for own_device in around.node.devices
        if not own_device.profiles
    }
    sums: dict[str, tuple[int, int]] = {}
    for piece in pieces:
        device = _usable(claim, piece, known.get(piece.result.device), around)
        vcore, vmemory = sums.get(device.uuid, (0, 0))
        vcore += piece.vcore
        vmemory += device.memory_bytes if piece.vmemory is None else piece.vmemory
        sums[device.uuid] = vcore, vmemory
    memory = {own_device.uuid: own_device.memory_bytes for own_device in around.node.devices}
    wholes = {vcore >= quantity.WHOLE_DEVICE for vcore, _ in sums.values()}
    if len(wholes) > 1:
        raise _refused(
            claim.named,
            "has a whole device and a share together, and no container can have both; request "
            "less than 100 vcore of each, or 100 of each, or let containers name requests",
            final=True,
        )
    return tuple(
        _share(claim, uuid, vcore, memory[uuid] if vcore == quantity.WHOLE_DEVICE else vmemory)
        for uuid, (vcore, vmemory) in sums.items()
    )


def _usable(
    claim: Allocated,
    piece: Piece,
    device: datatypes.NodeDevice | None,
    around: ClaimContext,
) -> datatypes.NodeDevice:
    """Return the *device* of a piece; RefusedError if claims cannot use it now."""
    if device is None or not around.gives(device.uuid):
        why = "not there (any more)" if device is None else "not allocated through claims"
        raise _refused(
            claim.named, f"its device {piece.result.device} is {why} on this node", final=False
        )
    if device.unhealthy:
        text = f"its device {device.label} is unhealthy: {device.unhealthy}"
        raise _refused(claim.named, text, final=False)
    if device.allocated_by not in ("", allocation_api.Api.DRA):
        raise _refused(
            claim.named,
            f"its device {device.label} is allocated by {device.allocated_by}",
            final=False,
        )
    return device


def _instance(
    claim: Allocated, pieces: Sequence[Piece], around: ClaimContext
) -> datatypes.NodeShare:
    """Return the share that is the MIG instance of a claim's only piece."""
    if len(pieces) > 1:
        raise _refused(
            claim.named,
            "has a MIG instance and another device together, and a process sees one MIG device "
            "only; request one instance, or let each container name a request of its own",
            final=True,
        )
    (piece,) = pieces
    places = {
        name: (device, place)
        for device in around.node.devices
        for name, place in mig_partitions.named(device).items()
    }
    device, place = places.get(piece.result.device, (None, ""))
    device = _usable(claim, piece, device, around)
    name, _ = mig_placement.split(place)
    profile = next(each for each in device.profiles if each.name == name)
    vcore = mig_placement.vcore(device.profiles, profile)
    return datatypes.NodeShare(device.uuid, vcore, profile.memory_bytes, place)


def _share(claim: Allocated, uuid: str, vcore: int, vmemory: int) -> datatypes.NodeShare:
    try:
        return datatypes.NodeShare(uuid, vcore, vmemory)
    except errors.DataError as exc:
        raise _refused(claim.named, str(exc), final=True) from exc


def _time_sharing_of(
    claim: Allocated, pieces: Sequence[Piece], shares: Sequence[datatypes.NodeShare]
) -> elastic.TimeSharing:
    """Return the configuration of the requests of *pieces*, which form one quota."""
    most = max(share.vcore for share in shares)
    try:
        found = {
            elastic.of_request(claim.configurations, request)
            for request in dict.fromkeys(piece.asked for piece in pieces)
        }
    except (errors.UsageError, AttributeError, TypeError) as exc:
        raise _refused(claim.named, f"its configuration: {exc}", final=True) from exc
    if len(found) > 1:
        raise _refused(
            claim.named,
            "its requests form one quota, but have different configurations; configure all of "
            "them alike, or let containers name requests",
            final=True,
        )
    (time_sharing,) = found
    if most == quantity.WHOLE_DEVICE or any(share.mig for share in shares):
        return elastic.TimeSharing()
    if time_sharing.ceiling is not None and time_sharing.ceiling < most:
        raise _refused(
            claim.named,
            f"its configuration: {elastic.LIMIT} {time_sharing.ceiling}: must be from its own "
            f"{most} vcore to {quantity.WHOLE_DEVICE}, such as {quantity.WHOLE_DEVICE}",
            final=True,
        )
    return time_sharing


def _check_room(
    claim: Allocated, wanted: Sequence[datatypes.NodeShare], node: datatypes.NodeDevices
) -> None:
    """Refuse shares that exceed the free capacity of a device."""
    for device in node.devices:
        own = [share for share in wanted if share.uuid == device.uuid]
        if not own:
            continue
        held = [holding for holding in node.held if holding.share.uuid == device.uuid]
        if device.profiles:
            _check_places(claim, own, device, held)
            continue
        vcore = quantity.WHOLE_DEVICE - sum(holding.share.vcore for holding in held)
        vmemory = device.memory_bytes - sum(holding.share.vmemory for holding in held)
        needs = sum(share.vcore for share in own), sum(share.vmemory for share in own)
        if needs[0] > vcore or needs[1] > vmemory:
            raise _refused(
                claim.named,
                f"needs {needs[0]} vcore and {quantity.format_size(needs[1])} of {device.label}, "
                f"of which {max(vcore, 0)} and {quantity.format_size(max(vmemory, 0))} are free; "
                f"held by {', '.join(sorted({holding.holder for holding in held})) or 'no claim'}",
                final=False,
            )


def _check_places(
    claim: Allocated,
    wanted: Sequence[datatypes.NodeShare],
    device: datatypes.NodeDevice,
    held: Sequence[datatypes.Holding],
) -> None:
    """Refuse MIG instances that do not fit beside those on the GPU, whatever was allocated.

    The scheduler's counters should exclude it, but Kubernetes 1.36 had a defect there.
    """
    occupied = tuple(sorted({*device.taken, *(each.share.mig for each in held if each.share.mig)}))
    for share in wanted:
        name, start = mig_placement.split(share.mig)
        if start not in mig_placement.starts(device.profiles, occupied, name):
            raise _refused(
                claim.named,
                f"needs {share.mig} on {device.label}, which has no place for it beside "
                f"{', '.join(occupied)}; held by "
                f"{', '.join(sorted({each.holder for each in held})) or 'no claim'}",
                final=False,
            )
        occupied = mig_placement.after(occupied, share.mig)


def _refused(named: Named, text: str, *, final: bool) -> RefusedError:
    return RefusedError(f"claim {named.namespace}/{named.name}: {text}", final=final)
