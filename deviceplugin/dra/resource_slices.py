"""The ResourceSlice of a node: its devices, capacities, attributes and taints; pure.

All devices of a node are in one slice, which is its pool. Each can be allocated to several claims,
as long as it has vcore and vmemory left. An unhealthy or cordoned device has a taint; a device
that the device plugin allocates is left out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from typing import TYPE_CHECKING, Any

from pyvgpu import names, quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyvgpu.allocator import datatypes
    from pyvgpu.deviceplugin.devices import inventory

GROUP = "resource.k8s.io/v1"
MEBIBYTE = 1 << 20

_LONGEST_NAME = 253
_LONGEST_TEXT = 64  # of an attribute
MOST_DEVICES = 64  # in a slice, if any of them has a taint or consumes counters
_NUMBERS = re.compile(r"([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?(?:\.[0-9]+)*")


@dataclasses.dataclass(frozen=True, slots=True)
class ServerSupport:
    """Fields that the API server stores; older versions drop fields that they do not know."""

    sharing: bool = True  # one device for several claims
    taints: bool = True
    partitions: bool = True  # counters that devices share

    def both(self, other: ServerSupport) -> ServerSupport:
        """Return the fields that both this and *other* store."""
        return ServerSupport(
            self.sharing and other.sharing,
            self.taints and other.taints,
            self.partitions and other.partitions,
        )

    @property
    def lacks(self) -> Iterator[str]:
        """A line for each dropped field: its feature gate and the consequence."""
        if not self.sharing:
            yield (
                "allowMultipleAllocations (feature gate DRAConsumableCapacity of kube-apiserver "
                "and kube-scheduler): no shares, each device is allocated whole, to one claim"
            )
        if not self.taints:
            yield (
                "taints (feature gate DRADeviceTaints of kube-apiserver and kube-scheduler): "
                "unhealthy and cordoned devices are left out"
            )
        if not self.partitions:
            yield (
                "sharedCounters (feature gate DRAPartitionableDevices of kube-apiserver and "
                "kube-scheduler): GPUs on which pods get MIG instances are left out"
            )


def name_of(node: str, suffix: str = "") -> str:
    """Return the name of a node's slice; a *suffix* such as .mig-0 is that of a further one."""
    name = f"{node}-{names.DRA_DRIVER}{suffix}"
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(node.encode()).hexdigest()[:16]
    rest = len(names.DRA_DRIVER) + len(suffix)
    return f"{node[: _LONGEST_NAME - 17 - rest].rstrip('.-')}-{digest[:8]}-" + (
        f"{names.DRA_DRIVER}{suffix}"
    )


def device_name(uuid: str) -> str:
    """Return a device's name in a slice: a DNS label."""
    return uuid.lower()


def version(text: str) -> str:
    """Return *text* as a semantic version, without leading zeros; empty if it is none."""
    match = _NUMBERS.fullmatch(text)
    if match is None:
        return ""
    return ".".join(str(int(group or 0)) for group in match.groups())


def slices_of(
    node: Mapping[str, Any], pool: str, contents: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the slices of a *pool* of a *node*, whose metadata is given, of generation 1.

    *contents* are the devices or counters of each slice, by the suffix of its name.
    """
    name = node["name"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["uid"]}
    return [
        {
            "apiVersion": GROUP,
            "kind": "ResourceSlice",
            "metadata": {"name": name_of(name, suffix), "ownerReferences": [owner]},
            "spec": {
                "driver": names.DRA_DRIVER,
                "nodeName": name,
                "pool": {"name": pool, "generation": 1, "resourceSliceCount": len(contents)},
                **content,
            },
        }
        for suffix, content in contents.items()
    ]


def device_slices(
    node: Mapping[str, Any], devices: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the slices of a node's pool of devices; one of them, if there are not many."""
    return slices_of(
        node,
        node["name"],
        {
            f".more-{number}" if number else "": {"devices": part}
            for number, part in enumerate(chunks(devices, MOST_DEVICES) or [[]])
        },
    )


def chunks(entries: Sequence[dict[str, Any]], most: int) -> list[list[dict[str, Any]]]:
    """Return *entries* in lists of at most *most*."""
    return [list(entries[first : first + most]) for first in range(0, len(entries), most)]


def devices_of(
    seen: Sequence[inventory.InventoryDevice],
    devices: Iterable[datatypes.NodeDevice],
    driver: inventory.DriverVersions,
    support: ServerSupport = ServerSupport(),  # noqa: B008 - it is frozen
) -> list[dict[str, Any]]:
    """Return the entries of *devices* in a slice; none of GPUs on which pods get MIG instances.

    Where the API server drops taints, devices with a taint are left out.
    """
    known = {observed.device.uuid: observed for observed in seen}
    groups = nvlink_groups(seen)
    found = []
    for device in devices:
        if device.profiles:
            continue
        if device.uuid in known and (support.taints or not taints_of(device)):
            attributes = attributes_of(
                known[device.uuid], device, driver, groups.get(device.uuid, "")
            )
            found.append(_device(device, dict(attributes), sharing=support.sharing))
    return found


def _device(
    one: datatypes.NodeDevice, attributes: Mapping[str, dict[str, Any]], *, sharing: bool
) -> dict[str, Any]:
    memory = one.memory_bytes // MEBIBYTE * MEBIBYTE
    least = min(-(-one.least_bytes // MEBIBYTE) * MEBIBYTE, memory)
    found: dict[str, Any] = {
        "name": device_name(one.uuid),
        "attributes": attributes,
        "capacity": {
            names.DRA_VCORE: _capacity(str(quantity.WHOLE_DEVICE), "1", "1"),
            names.DRA_VMEMORY: _capacity(size_text(memory), size_text(least), size_text(MEBIBYTE)),
        },
    }
    if sharing:
        found["allowMultipleAllocations"] = True
    else:
        found["capacity"] = {
            k: {"value": amount["value"]} for k, amount in found["capacity"].items()
        }
    if taints := taints_of(one):
        found["taints"] = taints
    return found


def _capacity(most: str, least: str, step: str) -> dict[str, Any]:
    """Return a capacity of which a claim gets all by default."""
    policy = {"default": most, "validRange": {"min": least, "max": most, "step": step}}
    return {"value": most, "requestPolicy": policy}


def size_text(size: int) -> str:
    """Return *size* in the API server's canonical form."""
    return quantity.format_exact(size).removesuffix("B")


def attributes_of(
    seen: inventory.InventoryDevice,
    one: datatypes.NodeDevice,
    driver: inventory.DriverVersions,
    group: str,
) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield the attributes of a device; *group* is its NVLink group, if it has one."""
    texts = {
        names.DRA_UUID: one.uuid,
        names.DRA_MODEL: one.model,
        names.DRA_COMPUTE_CLASS: one.compute_class,
        names.DRA_DRIVER_RELEASE_TEXT: driver.release,
        names.DRA_CUDA_VERSION_TEXT: driver.cuda,
        names.DRA_NVLINK_GROUP: group,
        names.DRA_PCIE_ROOT: seen.pcie_root,
    }
    versions = {
        names.DRA_COMPUTE_CAPABILITY: seen.compute_capability,
        names.DRA_DRIVER_RELEASE: driver.release,
        names.DRA_CUDA_VERSION: driver.cuda,
    }
    for name, text in texts.items():
        if text:
            yield name, {"string": text[:_LONGEST_TEXT]}
    for name, text in versions.items():
        if found := version(text):
            yield name, {"version": found}
    if one.numa is not None:
        yield names.DRA_NUMA, {"int": one.numa}


def taints_of(one: datatypes.NodeDevice) -> list[dict[str, str]]:
    """Return the taints that keep new claims away; running pods stay."""
    wrong = {
        names.DRA_UNHEALTHY_TAINT: bool(one.unhealthy),
        names.DRA_CORDONED_TAINT: one.cordoned,
    }
    return [{"key": key, "effect": "NoSchedule"} for key, there in wrong.items() if there]


def nvlink_groups(seen: Sequence[inventory.InventoryDevice]) -> dict[str, str]:
    """Return each device's NVLink group, by UUID, if it has one: all-to-all linked devices."""
    groups: list[list[inventory.InventoryDevice]] = []
    for one in seen:
        own = next((group for group in groups if all(_linked(one, each) for each in group)), None)
        if own is None:
            groups.append([one])
        else:
            own.append(one)
    return {
        one.device.uuid: device_name(group[0].device.uuid)
        for group in groups
        if len(group) > 1
        for one in group
    }


def _linked(one: inventory.InventoryDevice, other: inventory.InventoryDevice) -> bool:
    link = one.links.get(other.device.uuid)
    return link is not None and link.nvlinks > 0


def differs(pool: Sequence[Mapping[str, Any]], there: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the slices that are *there* are not those of the wanted *pool*.

    Generation, metadata and timestamps may differ, but all slices must be of one generation.
    """
    published = {one["metadata"]["name"]: one for one in there}
    names_of = {one["metadata"]["name"] for one in pool}
    generations = {one["spec"]["pool"]["generation"] for one in published.values()}
    return (
        published.keys() != names_of
        or len(generations) > 1
        or any(_said(one) != _said(published[one["metadata"]["name"]]) for one in pool)
    )


def _said(one: Mapping[str, Any]) -> Any:
    spec = one["spec"]
    devices = [untimed(device) for device in spec.get("devices") or ()]
    pool = spec["pool"]
    where = spec["driver"], spec.get("nodeName"), pool["name"], pool["resourceSliceCount"]
    return *where, devices, spec.get("sharedCounters") or []


def untimed(device: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a device without the times at which the server noted its taints."""
    taints = device.get("taints")
    if not taints:
        return device
    plain = [{k: v for k, v in each.items() if k != "timeAdded"} for each in taints]
    return {**device, "taints": plain}


def renewed(
    wanted: Mapping[str, Any], before: Mapping[str, Any] | None, generation: int
) -> dict[str, Any]:
    """Return *wanted* of that generation of its pool, as the update of *before* if there is one.

    All slices of a pool must be of one generation.
    """
    pool = {**wanted["spec"]["pool"], "generation": generation}
    meta = dict(wanted["metadata"])
    if before is not None:
        meta["resourceVersion"] = before["metadata"]["resourceVersion"]
    return {**wanted, "metadata": meta, "spec": {**wanted["spec"], "pool": pool}}


def support_by(wanted: Mapping[str, Any], kept: Mapping[str, Any]) -> ServerSupport:
    """Return the fields that a server stores that has *kept* this of the *wanted* slice."""

    def lost(field: str) -> bool:
        there = {device["name"]: device.get(field) for device in kept["spec"].get("devices") or ()}
        return any(
            device.get(field) and not there.get(device["name"])
            for device in wanted["spec"].get("devices") or ()
        )

    counters = wanted["spec"].get("sharedCounters") and not kept["spec"].get("sharedCounters")
    return ServerSupport(
        sharing=not lost("allowMultipleAllocations"),
        taints=not lost("taints"),
        partitions=not (counters or lost("consumesCounters")),
    )
