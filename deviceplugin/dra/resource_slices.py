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
_NUMBERS = re.compile(r"([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?(?:\.[0-9]+)*")


@dataclasses.dataclass(frozen=True, slots=True)
class Able:
    """Fields that the API server stores; older versions drop fields that they do not know."""

    sharing: bool = True  # one device for several claims
    taints: bool = True

    def both(self, other: Able) -> Able:
        """Return the fields that both this and *other* store."""
        return Able(self.sharing and other.sharing, self.taints and other.taints)

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


def name_of(node: str) -> str:
    """Return the name of a node's slice."""
    name = f"{node}-{names.DRA_DRIVER}"
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(node.encode()).hexdigest()[:16]
    return f"{node[: _LONGEST_NAME - 17 - len(names.DRA_DRIVER)].rstrip('.-')}-{digest[:8]}-" + (
        names.DRA_DRIVER
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


def slice_of(node: Mapping[str, Any], devices: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the slice of a *node*, whose metadata is given, of the first generation."""
    name = node["name"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["uid"]}
    return {
        "apiVersion": GROUP,
        "kind": "ResourceSlice",
        "metadata": {"name": name_of(name), "ownerReferences": [owner]},
        "spec": {
            "driver": names.DRA_DRIVER,
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def devices_of(
    seen: Sequence[inventory.InventoryDevice],
    devices: Iterable[datatypes.NodeDevice],
    driver: inventory.DriverVersions,
    able: Able = Able(),  # noqa: B008 - it is frozen
) -> list[dict[str, Any]]:
    """Return the entries of *devices* in a slice.

    Where the API server drops taints, devices with a taint are left out.
    """
    known = {observed.device.uuid: observed for observed in seen}
    groups = nvlink_groups(seen)
    found = []
    for device in devices:
        if device.uuid in known and (able.taints or not _taints(device)):
            attributes = _attributes(
                known[device.uuid], device, driver, groups.get(device.uuid, "")
            )
            found.append(_device(device, dict(attributes), sharing=able.sharing))
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
            names.DRA_VMEMORY: _capacity(_size(memory), _size(least), _size(MEBIBYTE)),
        },
    }
    if sharing:
        found["allowMultipleAllocations"] = True
    else:
        found["capacity"] = {
            k: {"value": amount["value"]} for k, amount in found["capacity"].items()
        }
    if taints := _taints(one):
        found["taints"] = taints
    return found


def _capacity(most: str, least: str, step: str) -> dict[str, Any]:
    """Return a capacity of which a claim gets all by default."""
    policy = {"default": most, "validRange": {"min": least, "max": most, "step": step}}
    return {"value": most, "requestPolicy": policy}


def _size(size: int) -> str:
    """Return *size* in the API server's canonical form."""
    return quantity.format_exact(size).removesuffix("B")


def _attributes(
    seen: inventory.InventoryDevice,
    one: datatypes.NodeDevice,
    driver: inventory.DriverVersions,
    group: str,
) -> Iterable[tuple[str, dict[str, Any]]]:
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


def _taints(one: datatypes.NodeDevice) -> list[dict[str, str]]:
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


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two slices are equal except for generation, metadata and timestamps."""
    return bool(_said(one) == _said(other))


def _said(one: Mapping[str, Any]) -> Any:
    spec = one["spec"]
    devices = [
        {
            **device,
            "taints": [{k: v for k, v in each.items() if k != "timeAdded"} for each in taints],
        }
        if (taints := device.get("taints"))
        else device
        for device in spec.get("devices") or ()
    ]
    return spec["driver"], spec.get("nodeName"), spec["pool"]["name"], devices


def renewed(wanted: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return *wanted* as the update of *before*, with the next generation of its pool."""
    pool = {**wanted["spec"]["pool"], "generation": before["spec"]["pool"]["generation"] + 1}
    meta = {**wanted["metadata"], "resourceVersion": before["metadata"]["resourceVersion"]}
    return {**wanted, "metadata": meta, "spec": {**wanted["spec"], "pool": pool}}


def able_by(wanted: Mapping[str, Any], kept: Mapping[str, Any]) -> Able:
    """Return the fields that a server stores that has *kept* this of the *wanted* slice."""

    def lost(field: str) -> bool:
        there = {device["name"]: device.get(field) for device in kept["spec"].get("devices") or ()}
        return any(
            device.get(field) and not there.get(device["name"])
            for device in wanted["spec"]["devices"]
        )

    return Able(sharing=not lost("allowMultipleAllocations"), taints=not lost("taints"))
