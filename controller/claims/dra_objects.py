"""Read ResourceSlices, DeviceClasses and ResourceClaims to explain why a pod waits; pure.

kube-scheduler decides which device a claim gets. This module only reads which devices exist, which
are allocated and what a claim requests. It does not evaluate CEL selectors, it quotes them.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names, quantity
from pyvgpu.allocator import amounts, datatypes, mig_placement
from pyvgpu.allocator import annotations as notes
from pyvgpu.controller.scheduler import pod_request
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyvgpu.kube.objects import Object

MEBIBYTE: int = quantity.UNITS["Mi"]  # the unit of vmemory in slices, and so here
OF_THE_DRIVER = f'device.driver == "{names.DRA_DRIVER}"'  # the selectors of the default class
NO_PARTITION = (
    f'device.attributes["{names.DRA_DRIVER}"].?{names.DRA_MIG_PROFILE}.orValue("") == ""'
)
ANY_PARTITION = NO_PARTITION.replace("==", "!=")
_OF_PROFILE = re.compile(
    re.escape(f'device.attributes["{names.DRA_DRIVER}"].')
    + rf'(?:{names.DRA_MIG_PROFILE}|\?{names.DRA_MIG_PROFILE}\.orValue\(""\)) == "([^"\\]+)"'
)
_MOST_PARTITIONS = 32  # of one request

_Place = tuple[str, str]  # the pool and the name of a device


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionRequest:
    """What a claim requests of one MIG partition."""

    profile: str  # *: the smallest that has as much
    part: pod_request.ContainerRequest


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What one claim requests of our devices."""

    parts: tuple[pod_request.ContainerRequest, ...]  # one for each request of shares
    unevaluated: tuple[str, ...] = ()  # further conditions, which this module does not evaluate
    partitions: tuple[PartitionRequest, ...] = ()


def slices(listed: Iterable[Object]) -> list[Object]:
    """Return our driver's slices of the newest generation of their pool."""
    ours = [
        one for one in listed if objects.section(one, "spec").get("driver") == names.DRA_DRIVER
    ]
    newest: dict[str, int] = {}
    for one in ours:
        pool = objects.section(one, "spec", "pool")
        name, now = str(pool.get("name")), _number(pool.get("generation"))
        newest[name] = max(newest.get(name, 0), now)
    return [
        one
        for one in ours
        if _number(objects.section(one, "spec", "pool").get("generation"))
        == newest[str(objects.section(one, "spec", "pool").get("name"))]
    ]


def nodes(found: Iterable[Object]) -> dict[str, notes.Published]:
    """Return the devices in *found*, the result of :func:`slices`, by node.

    A GPU with MIG partitions is one of them, with the profiles of its partitions.
    """
    devices: dict[str, list[datatypes.NodeDevice]] = {}
    partitions: dict[tuple[str, str], list[Object]] = {}  # by node and UUID
    counters: dict[tuple[str, str], Object] = {}  # by node and name
    for resource_slice in found:
        spec = objects.section(resource_slice, "spec")
        node = str(spec.get("nodeName") or "")
        there = devices.setdefault(node, [])
        for one in objects.entries(spec, "devices"):
            device = _device(one, len(there))
            if _partition(one):
                partitions.setdefault((node, device.uuid), []).append(one)
            else:
                there.append(device)
        for one in objects.entries(spec, "sharedCounters"):
            counters[node, str(one.get("name"))] = objects.section(one, "counters")
    for (node, _), those in partitions.items():
        consumed = objects.entries(those[0], "consumesCounters")
        sums = counters.get((node, str(consumed[0].get("counterSet"))), {}) if consumed else {}
        devices[node].append(_gpu(those, sums, len(devices[node])))
    return {name: notes.Published(MEBIBYTE, tuple(those)) for name, those in devices.items()}


def tenants(found: Iterable[Object], claims: Iterable[Object]) -> list[pod_request.PodRequest]:
    """Return the holders of devices in the slices *found*: pods, or claims that no pod uses."""
    places = {place: where for resource_slice in found for place, where in _places(resource_slice)}
    held: dict[tuple[str, str], list[datatypes.Holding]] = {}
    uids: dict[tuple[str, str], str] = {}
    for claim in claims:
        holder, uid = _holder(claim)
        for result in _results(claim):
            where = places.get((str(result.get("pool")), str(result.get("device"))))
            if where is None or result.get("adminAccess"):
                continue
            node, device, share = where
            share = share or _share(objects.section(result, "consumedCapacity"), device)
            held.setdefault((node, holder), []).append(datatypes.Holding(share, holder))
            uids[node, holder] = uid
    return [
        pod_request.PodRequest(
            holder, uids[node, holder], pod_request.PodShape(()), (), node=node, held=tuple(those)
        )
        for (node, holder), those in held.items()
    ]


def wanted(spec: Object, classes: Mapping[str, Object]) -> ClaimRequest:
    """Return what a claim's *spec* requests of our devices; UsageError if that can never fit."""
    parts: list[pod_request.ContainerRequest] = []
    unevaluated: list[str] = []
    partitions: list[PartitionRequest] = []
    for request in objects.entries(objects.section(spec, "devices"), "requests"):
        name = str(request.get("name"))
        asked = objects.section(request, "exactly")
        others = objects.entries(request, "firstAvailable")
        if not asked and others:
            asked = others[0]
            unevaluated.append(f"request {name} has {len(others)} alternatives; this is the first")
        if asked.get("adminAccess"):
            continue
        called = str(asked.get("deviceClassName"))
        if called not in classes:
            raise errors.UsageError(
                f"request {name}: deviceClassName {called}: there is no such DeviceClass; the "
                f"chart creates vgpu and vgpu-whole"
            )
        of_class = list(_expressions(objects.section(classes[called], "spec")))
        if not is_ours(classes[called]):
            unevaluated.append(f"request {name} is for devices of another driver ({called})")
            continue
        conditions = [
            expression
            for expression in (*of_class, *_expressions(asked))
            if expression not in (OF_THE_DRIVER, NO_PARTITION)
        ]
        if any(names.DRA_MIG_PROFILE in expression for expression in conditions):
            profile = mig_placement.SMALLEST
            for expression in tuple(conditions):
                named_profile = _OF_PROFILE.fullmatch(expression)
                if named_profile:
                    profile = named_profile[1]
                if named_profile or expression == ANY_PARTITION:
                    conditions.remove(expression)
            count = min(max(_number(asked.get("count", 1)), 1), _MOST_PARTITIONS)
            partitions += [PartitionRequest(profile, _instance(asked, name))] * count
        else:
            parts.append(_part(asked, name))
        unevaluated += [
            f"request {name} requires devices that match: {expression}"
            for expression in conditions
        ]
    unevaluated += [
        f"all devices must have {'the same' if key == 'matchAttribute' else 'another'} {value}"
        for entry in objects.entries(objects.section(spec, "devices"), "constraints")
        for key, value in entry.items()
        if key in ("matchAttribute", "distinctAttribute")
    ]
    return ClaimRequest(tuple(parts), tuple(unevaluated), tuple(partitions))


def is_ours(device_class: Object) -> bool:
    """Return whether a DeviceClass selects devices of our driver."""
    found = _expressions(objects.section(device_class, "spec"))
    return any(names.DRA_DRIVER in expression for expression in found)


def whole_devices(pod: Object) -> int:
    """Return how many whole devices a pod asks for among its limits, without a claim."""
    spec = objects.section(pod, "spec")
    return sum(
        amounts.whole(limits[names.DEVICE_RESOURCE], names.DEVICE_RESOURCE)
        for entry in objects.entries(spec, "containers")
        if names.DEVICE_RESOURCE in (limits := objects.section(entry, "resources", "limits"))
    )


def allocated(claim: Object) -> tuple[str, ...]:
    """Return the devices allocated to a claim, as pool/device; empty if it waits."""
    return tuple(f"{result.get('pool')}/{result.get('device')}" for result in _results(claim))


_NOT_UNHEALTHY = (names.DRA_CORDONED_TAINT, names.DRA_OCCUPIED_TAINT)


def _device(one: Object, index: int) -> datatypes.NodeDevice:
    attributes, capacity = objects.section(one, "attributes"), objects.section(one, "capacity")

    def said(name: str, kind: str, default: Any) -> Any:
        return objects.section(attributes, name).get(kind, default)

    memory = objects.section(capacity, names.DRA_VMEMORY)
    least = objects.section(memory, "requestPolicy", "validRange").get("min")
    taints = {str(entry.get("key")): entry for entry in objects.entries(one, "taints")}
    others = [key for key in taints if key not in _NOT_UNHEALTHY]
    return datatypes.NodeDevice(
        uuid=str(said(names.DRA_UUID, "string", one.get("name"))),
        index=index,
        memory_bytes=_bytes(memory.get("value")),
        model=str(said(names.DRA_MODEL, "string", "")),
        compute_class=str(said(names.DRA_COMPUTE_CLASS, "string", "")),
        numa=said(names.DRA_NUMA, "int", None),
        unhealthy=f"taint {', '.join(others)}" if others else "",
        cordoned=names.DRA_CORDONED_TAINT in taints,
        least_bytes=max(_bytes(least), 1),
    )


def _places(
    found: Object,
) -> Iterator[tuple[_Place, tuple[str, datatypes.NodeDevice, datatypes.NodeShare | None]]]:
    """Yield the node and device of each entry of a slice; of a partition also its only share."""
    spec = objects.section(found, "spec")
    pool, node = (
        str(objects.section(spec, "pool").get("name")),
        str(spec.get("nodeName") or ""),
    )
    for one in objects.entries(spec, "devices"):
        device, mig = _device(one, 0), _partition(one)
        share = None
        if mig:
            own = objects.section(one, "capacity")
            vcore = _number(objects.section(own, names.DRA_VCORE).get("value"))
            share = datatypes.NodeShare(
                device.uuid, min(max(vcore, 1), datatypes.WHOLE), max(device.memory_bytes, 1), mig
            )
        yield (pool, str(one.get("name"))), (node, device, share)


def _gpu(partitions: list[Object], sums: Object, index: int) -> datatypes.NodeDevice:
    """Return the GPU of these MIG partitions; the *sums* are its counters.

    A place that others occupy is none of its placements.
    """
    profiles: dict[str, datatypes.MigProfile] = {}
    devices = [_device(one, index) for one in partitions]
    placements = [mig_placement.split(_partition(one)) for one in partitions]
    for one, device, (name, start) in zip(partitions, devices, placements, strict=True):
        taints = {entry.get("key") for entry in objects.entries(one, "taints")}
        counters = {
            key: max(_number(objects.section(entry).get("value")), 1)
            for consumed in objects.entries(one, "consumesCounters")
            for key, entry in objects.section(consumed, "counters").items()
        }
        (most,) = [
            _number(objects.section(sums, key).get("value"))
            for key in counters
            if key.startswith(names.DRA_INSTANCES)
        ] or [0]
        profile = profiles.get(name) or datatypes.MigProfile(
            name,
            0,
            device.memory_bytes,
            counters.get(names.DRA_MULTIPROCESSORS, 1),
            counters.get(names.DRA_COMPUTE_SLICES, 1),
            max(sum(key.startswith(names.DRA_MEMORY_SLICE) for key in counters), 1),
            most or sum(other == name for other, _ in placements),
            (),
        )
        if names.DRA_OCCUPIED_TAINT not in taints:
            starts = tuple(sorted((*profile.starts, start)))
            profile = dataclasses.replace(profile, starts=starts)
        profiles[name] = profile
    return dataclasses.replace(
        devices[0],
        memory_bytes=max(device.memory_bytes for device in devices),
        profiles=tuple(profiles.values()),
    )


def _partition(one: Object) -> str:
    """Return the placement of a MIG partition, such as 1g.10gb@6; empty for any other device."""
    attributes = objects.section(one, "attributes")
    profile = objects.section(attributes, names.DRA_MIG_PROFILE).get("string")
    start = _number(objects.section(attributes, names.DRA_MIG_START).get("int"))
    return mig_placement.place(str(profile), start) if profile else ""


def _results(claim: Object) -> list[Object]:
    devices = objects.section(claim, "status", "allocation", "devices")
    listed = objects.entries(devices, "results")
    return [result for result in listed if result.get("driver") == names.DRA_DRIVER]


def _holder(claim: Object) -> tuple[str, str]:
    """Return the holder of a claim, as namespace/name, and its uid."""
    meta = objects.section(claim, "metadata")
    users = objects.entries(objects.section(claim, "status"), "reservedFor")
    if users:
        return f"{meta.get('namespace')}/{users[0].get('name')}", str(users[0].get("uid"))
    return f"{meta.get('namespace')}/claim {meta.get('name')}", str(meta.get("uid"))


def _share(consumed: Object, device: datatypes.NodeDevice) -> datatypes.NodeShare:
    """Return what was consumed of a device; a capacity that is not given counts as all of it."""
    vcore = _capacity(consumed, names.DRA_VCORE)
    vmemory = _capacity(consumed, names.DRA_VMEMORY)
    return datatypes.NodeShare(
        device.uuid,
        datatypes.WHOLE if vcore is None else min(max(_number(vcore), 1), datatypes.WHOLE),
        max(device.memory_bytes if vmemory is None else _bytes(vmemory), 1),
    )


def _part(asked: Object, name: str) -> pod_request.ContainerRequest:
    """Return one request; one that leaves out a capacity takes the whole device."""
    requested = objects.section(asked, "capacity", "requests")
    vcore, vmemory = (
        _capacity(requested, capacity) for capacity in (names.DRA_VCORE, names.DRA_VMEMORY)
    )
    count = max(_number(asked.get("count", 1)), 1)
    each = datatypes.WHOLE if vcore is None or vmemory is None else _number(vcore)
    if not 1 <= each <= datatypes.WHOLE:
        raise errors.UsageError(
            f"request {name}: capacity vcore {vcore}: must be from 1 to {datatypes.WHOLE} of each "
            "device, such as 50"
        )
    units = 0 if vmemory is None else -(-_bytes(vmemory) // MEBIBYTE)
    if each == datatypes.WHOLE:
        return pod_request.ContainerRequest(
            datatypes.ContainerKind.APP, each * count, units * count
        )
    return pod_request.ContainerRequest(
        datatypes.ContainerKind.APP, each * count, units * count, count if count > 1 else None
    )


def _instance(asked: Object, name: str) -> pod_request.ContainerRequest:
    """Return one request of a MIG partition; a capacity that it leaves out is the least."""
    requested = objects.section(asked, "capacity", "requests")
    vcore = _number(_capacity(requested, names.DRA_VCORE) or 1)
    if not 1 <= vcore <= datatypes.WHOLE:
        raise errors.UsageError(
            f"request {name}: capacity vcore {_capacity(requested, names.DRA_VCORE)}: must be "
            f"from 1 to {datatypes.WHOLE} of the GPU, such as 50"
        )
    units = -(-_bytes(_capacity(requested, names.DRA_VMEMORY)) // MEBIBYTE)
    return pod_request.ContainerRequest(datatypes.ContainerKind.APP, vcore, max(units, 1))


def _capacity(amounts: Object, name: str) -> str | None:
    found = amounts.get(name, amounts.get(f"{names.DRA_DRIVER}/{name}"))
    return None if found is None else str(found)


def _expressions(spec: Object) -> Iterator[str]:
    for entry in objects.entries(spec, "selectors"):
        yield " ".join(str(objects.section(entry, "cel").get("expression")).split())


def _bytes(text: object) -> int:
    """Parse a quantity; 0 if it is empty or not a whole number of bytes."""
    try:
        return quantity.parse_size(str(text), "vmemory") if text else 0
    except errors.UsageError:
        return 0


def _number(value: object) -> int:
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def named(
    wants: Mapping[str, Sequence[pod_request.ContainerRequest]],
) -> tuple[tuple[str, ...], tuple[pod_request.ContainerRequest, ...]]:
    """Return the names and the parts of all *wants* (by claim name) of one pod."""
    found = [
        (name if len(parts) == 1 else f"{name} ({at})", part)
        for name, parts in wants.items()
        for at, part in enumerate(parts, 1)
    ]
    return tuple(name for name, _ in found), tuple(part for _, part in found)
