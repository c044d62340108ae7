"""MIG profiles of a GPU at their placements, as partitionable devices in ResourceSlices; pure.

The devices of a GPU consume counters that it shares among them: its memory slices, compute slices
and multiprocessors. So the scheduler allocates only partitions that fit together, by the rules of
:mod:`pyvgpu.allocator.mig_placement`. They are a pool of their own: where the scheduler cannot use
counters, it ignores that pool, and the other devices of the node stay available.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import re
from typing import TYPE_CHECKING, Any

from pyvgpu import names
from pyvgpu.allocator import mig_placement
from pyvgpu.deviceplugin.dra import resource_slices

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pyvgpu.allocator import datatypes
    from pyvgpu.deviceplugin.devices import inventory

MOST_COUNTER_SETS = 8  # in a slice
_SEPARATE_SINCE = (1, 35)
_LONGEST_POOL = 253
_POOL = "/mig"
_TAINT = {"key": names.DRA_UNHEALTHY_TAINT, "effect": "NoSchedule"}
_NUMBER = re.compile(r"[0-9]+")


class Form(enum.Enum):
    """How a pool must contain its counters; in the other form all of it is invalid."""

    JOINED = "joined"  # in the slice of the devices that consume them
    SEPARATE = "separate"  # in slices without devices


@dataclasses.dataclass(frozen=True, slots=True)
class Partitioned:
    """A GPU: its counters, and the devices that consume them."""

    counters: Mapping[str, Any]  # its entry in sharedCounters
    devices: tuple[Mapping[str, Any], ...]

    @property
    def name(self) -> str:
        """The name of its counters, which is that of the GPU."""
        return str(self.counters["name"])


def form_of(version: Mapping[str, Any]) -> Form:
    """Return the form for an API server, by its *version*; an unknown one is a later one."""
    major, minor = (_NUMBER.match(str(version.get(part))) for part in ("major", "minor"))
    if major is None or minor is None:
        return Form.SEPARATE
    return Form.SEPARATE if (int(major[0]), int(minor[0])) >= _SEPARATE_SINCE else Form.JOINED


def pool_of(node: str) -> str:
    """Return the name of the pool of a node's partitions."""
    if len(node) + len(_POOL) <= _LONGEST_POOL:
        return f"{node}{_POOL}"
    digest = hashlib.sha256(node.encode()).hexdigest()[:16]
    return f"{node[: _LONGEST_POOL - len(_POOL) - 17].rstrip('.-')}-{digest}{_POOL}"


def named(device: datatypes.NodeDevice) -> dict[str, str]:
    """Return the placements of a GPU, such as 1g.10gb@6, by the names of their devices."""
    return {
        name_of(device.uuid, profile.name, start): mig_placement.place(profile.name, start)
        for profile in device.profiles
        for start in profile.starts
    }


def name_of(uuid: str, profile: str, start: int) -> str:
    """Return the name of a partition of the GPU *uuid*: a DNS label."""
    return f"{resource_slices.device_name(uuid)}-{_label(profile)}-{start}"


def _label(profile: str) -> str:
    return profile.lower().replace("+", "-plus-").replace(".", "-")


def uuid_of(name: str, devices: Iterable[datatypes.NodeDevice]) -> str:
    """Return the UUID of a device by its name, or that of one of its partitions; '' if none."""
    for device in devices:
        own = resource_slices.device_name(device.uuid)
        if name == own or name.startswith(f"{own}-"):
            return device.uuid
    return ""


def names_of(device: datatypes.NodeDevice, node: str) -> Iterator[tuple[str, str]]:
    """Yield the pool and name of a device, or of each of its partitions."""
    if device.profiles:
        yield from ((pool_of(node), name) for name in named(device))
    else:
        yield node, resource_slices.device_name(device.uuid)


def of_devices(
    seen: Sequence[inventory.InventoryDevice],
    devices: Iterable[datatypes.NodeDevice],
    driver: inventory.DriverVersions,
    support: resource_slices.ServerSupport,
) -> tuple[Partitioned, ...]:
    """Return the partitions of those of *devices* on which pods get MIG instances.

    Nothing if the API server drops counters; without taints the tainted ones are left out.
    """
    if not support.partitions:
        return ()
    known = {observed.device.uuid: observed for observed in seen}
    return tuple(
        Partitioned(
            {"name": resource_slices.device_name(device.uuid), "counters": _counters(device)},
            tuple(_devices(known[device.uuid], device, driver, support)),
        )
        for device in devices
        if device.profiles and device.uuid in known
    )


def _counters(device: datatypes.NodeDevice) -> dict[str, dict[str, str]]:
    profiles = device.profiles
    slices = max(start + each.size for each in profiles for start in each.starts)
    return {
        **{_memory_slice(number): _value(1) for number in range(slices)},
        names.DRA_COMPUTE_SLICES: _value(max(each.slices for each in profiles)),
        names.DRA_MULTIPROCESSORS: _value(max(each.sms for each in profiles)),
        **{_instances(each): _value(each.most) for each in profiles if _is_counted(each)},
    }


def _consumed(profile: datatypes.MigProfile, start: int) -> dict[str, dict[str, str]]:
    own = range(start, start + profile.size)
    return {
        **{_memory_slice(number): _value(1) for number in own},
        names.DRA_COMPUTE_SLICES: _value(profile.slices),
        names.DRA_MULTIPROCESSORS: _value(profile.sms),
        **({_instances(profile): _value(1)} if _is_counted(profile) else {}),
    }


def _memory_slice(number: int) -> str:
    return f"{names.DRA_MEMORY_SLICE}{number}"


def _instances(profile: datatypes.MigProfile) -> str:
    return f"{names.DRA_INSTANCES}{_label(profile.name)}"


def _is_counted(profile: datatypes.MigProfile) -> bool:
    """Return whether memory slices alone would allow more instances of a profile than exist."""
    return profile.most < len(profile.starts)


def _value(number: int) -> dict[str, str]:
    return {"value": str(number)}


def _devices(
    seen: inventory.InventoryDevice,
    device: datatypes.NodeDevice,
    driver: inventory.DriverVersions,
    support: resource_slices.ServerSupport,
) -> Iterator[dict[str, Any]]:
    common = dict(resource_slices.attributes_of(seen, device, driver, ""))
    own = resource_slices.taints_of(device)
    for profile, start in _ordered(device.profiles):
        free = mig_placement.starts(device.profiles, device.taken, profile.name)
        taken = {"key": names.DRA_OCCUPIED_TAINT, "effect": "NoSchedule"}
        taints = own if start in free else [*own, taken]
        if taints and not support.taints:
            continue
        memory = profile.memory_bytes // resource_slices.MEBIBYTE * resource_slices.MEBIBYTE
        vcore = mig_placement.vcore(device.profiles, profile)
        yield {
            "name": name_of(device.uuid, profile.name, start),
            "attributes": {
                **common,
                names.DRA_MIG_PROFILE: {"string": profile.name},
                names.DRA_MIG_START: {"int": start},
            },
            "capacity": {
                names.DRA_VCORE: _value(vcore),
                names.DRA_VMEMORY: {"value": resource_slices.size_text(memory)},
            },
            "consumesCounters": [
                {
                    "counterSet": resource_slices.device_name(device.uuid),
                    "counters": _consumed(profile, start),
                }
            ],
            **({"taints": taints} if taints else {}),
        }


def _ordered(
    profiles: tuple[datatypes.MigProfile, ...],
) -> list[tuple[datatypes.MigProfile, int]]:
    """Return the placements in the order in which the scheduler tries them.

    The smallest profile first, and of each the placement that leaves the most room on the GPU.
    """
    order = sorted(
        profiles, key=lambda each: (each.size, each.slices, "+" in each.name, each.name)
    )
    found = []
    for profile in order:
        left = {
            start: mig_placement.room(profiles, (mig_placement.place(profile.name, start),))
            for start in profile.starts
        }
        found += [(profile, start) for start in sorted(left, key=lambda at: (-left[at], -at))]
    return found


# --- slices ----------------------------------------------------------------------------------


def slices_of(
    node: Mapping[str, Any], gpus: Sequence[Partitioned], form: Form
) -> list[dict[str, Any]]:
    """Return the slices of the pool of *gpus*, in that form; none without GPUs."""
    contents: dict[str, dict[str, Any]] = {}
    if form is Form.JOINED:
        for number, gpu in enumerate(gpus):
            both = {"sharedCounters": [gpu.counters], "devices": list(gpu.devices)}
            contents[f".mig-{number}"] = both
    else:
        sets = [dict(gpu.counters) for gpu in gpus]
        for number, part in enumerate(resource_slices.chunks(sets, MOST_COUNTER_SETS)):
            contents[f".mig-counters-{number}"] = {"sharedCounters": part}
        entries = [dict(device) for gpu in gpus for device in gpu.devices]
        for number, part in enumerate(
            resource_slices.chunks(entries, resource_slices.MOST_DEVICES)
        ):
            contents[f".mig-{number}"] = {"devices": part}
    return resource_slices.slices_of(node, pool_of(node["name"]), contents)


def held_back(
    wanted: Sequence[Partitioned],
    there: Iterable[Mapping[str, Any]],
    in_use: Callable[[], Collection[str] | None],
    support: resource_slices.ServerSupport,
) -> tuple[Partitioned, ...]:
    """Return *wanted*, but GPUs with partitions in use as they are in the slices *there*.

    Changed counters of an allocated device would free what it uses; a missing one cannot be
    released. So while such a change waits, only the devices in use stay, and get no new claims.
    *in_use* returns the names of allocated devices, None if unknown; it is called if needed.
    """
    new = {gpu.name: gpu for gpu in wanted}
    changed = [gpu for gpu in published(there) if _is_changed(gpu, new.get(gpu.name))]
    if not changed:
        return tuple(wanted)
    used = in_use()
    for gpu in changed:
        kept = tuple(
            {**device, "taints": [_TAINT]} if support.taints else _untainted(device)
            for device in gpu.devices
            if used is None or device["name"] in used
        )
        if kept:
            new[gpu.name] = Partitioned(gpu.counters, kept)
    return tuple(new.values())


def published(there: Iterable[Mapping[str, Any]]) -> list[Partitioned]:
    """Return the GPUs whose counters are in the slices *there*."""
    specs = [one["spec"] for one in there]
    devices: dict[str, list[Mapping[str, Any]]] = {}
    for spec in specs:
        for device in spec.get("devices") or ():
            for consumed in device.get("consumesCounters") or ():
                devices.setdefault(consumed["counterSet"], []).append(device)
    return [
        Partitioned(counters, tuple(devices.get(counters["name"], ())))
        for spec in specs
        for counters in spec.get("sharedCounters") or ()
    ]


def _is_changed(before: Partitioned, now: Partitioned | None) -> bool:
    """Return whether a GPU has other counters, or lacks a device, or it consumes others."""
    if now is None or now.counters != before.counters:
        return True
    consumed = {device["name"]: device["consumesCounters"] for device in now.devices}
    return any(
        consumed.get(device["name"]) != device["consumesCounters"] for device in before.devices
    )


def _untainted(device: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in device.items() if key != "taints"}
