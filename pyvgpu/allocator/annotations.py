"""The annotations by which node agents and the scheduler communicate.

    pyvgpu.io/node-devices    on a node, by its agent: its devices, and the agent's own placements
    pyvgpu.io/devices         on a pod, by the scheduler: the devices of each container, sealed

Any user who may edit a pod can also write the second one. So it is sealed (HMAC) with a key that
only the scheduler and the agents have, over the pod's uid and the node: it is valid for that pod
on that node only. ``schemas.py`` has the JSON schemas of both, for other programs.

During an upgrade writers and readers have different versions. A reader ignores unknown fields, and
has a default for each field but those that identify a device or state an amount: these a later
version may not omit. ``v`` changes only if earlier readers must not use the document.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names
from pyvgpu.allocator import datatypes, mig_placement

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Shares = Mapping[str, Sequence[datatypes.NodeShare]]  # by container

VERSION = 1
_FOR_INSTANCES = "it is for MIG instances that pods request"
_FOR_MPS = "it is divided by MPS, which pods request"
_MOST_SLICES = 64  # of memory, of one GPU
LEAST_KEY_BYTES = hashlib.sha256().digest_size
LONGEST = 1 << 18  # Kubernetes' limit for all annotations of an object


@dataclasses.dataclass(frozen=True, slots=True)
class Published:
    """The devices and placements that an agent publishes for its node."""

    memory_unit: int  # bytes of one vmemory
    devices: tuple[datatypes.NodeDevice, ...]
    minors: Mapping[str, int] = dataclasses.field(default_factory=dict)  # by UUID, if known
    placed: Mapping[str, Shares] = dataclasses.field(default_factory=dict)  # by a pod's uid


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceChoice:
    """The devices chosen for a pod on a node."""

    uid: str  # the pod's
    node: str
    containers: Shares


def publish(node: Published) -> str:
    """Return the text of a node's annotation."""
    at = {device.uuid: device.index for device in node.devices}
    document = {
        "v": VERSION,
        "memory_unit": node.memory_unit,
        "devices": [
            {
                "uuid": one.uuid,
                "index": one.index,
                "minor": node.minors.get(one.uuid),
                "bytes": one.memory_bytes,
                "least": one.least_bytes,
                "model": one.model,
                "class": one.compute_class,
                "numa": one.numa,
                # Compact, by index, because 16 devices have 240 links.
                "links": {
                    str(at[uuid]): [int(link.path), link.nvlinks]
                    for uuid, link in one.links.items()
                    if uuid in at
                },
                # Readers that know no instances or MPS must not place shares on this GPU.
                "health": one.unhealthy or _reserved(one),
                "cordoned": one.cordoned,
                "allocatedBy": one.allocated_by,
                **_instances(one),
                **({"mps": True} if one.mps else {}),
                **({"reservable": one.reservable} if one.reservable != 100 else {}),
            }
            for one in node.devices
        ],
        "grants": {uid: _dump(shares) for uid, shares in node.placed.items()},
    }
    return _text(document)


def read_node(text: str) -> Published:
    """Parse a node's annotation; DataError if it is not valid."""
    document = _parse(text, names.NODE_DEVICES_ANNOTATION)
    try:
        listed = document["devices"]
        if type(listed) is not list:
            raise TypeError("devices")
        uuids = {str(_number(one["index"])): _word(one["uuid"]) for one in listed}
        if len(uuids) != len(listed):
            raise ValueError("two devices of one index")
        devices = tuple(_device(one, uuids) for one in listed)
        minors = {
            one["uuid"]: _number(one["minor"]) for one in listed if one.get("minor") is not None
        }
        placed = {_word(uid): _load(shares) for uid, shares in document.get("grants", {}).items()}
        datatypes.NodeDevices(devices)
        return Published(_number(document["memory_unit"], 1), devices, minors, placed)
    except (KeyError, TypeError, ValueError, AttributeError, errors.DataError) as exc:
        raise errors.DataError(f"{names.NODE_DEVICES_ANNOTATION}: is damaged: {exc!r}") from exc


def seal(choice: DeviceChoice, key: bytes) -> str:
    """Return the text of a pod's annotation."""
    document = _unsealed(choice)
    return _text({**document, "sig": _signature(document, key)})


def open_sealed(text: str, keys: Iterable[bytes], uid: str, node: str) -> DeviceChoice:
    """Return the choice for the pod *uid* on *node*, sealed with one of the *keys*.

    DataError if the seal, the pod or the node does not match. There are several keys during a key
    rotation.
    """
    option = names.DEVICES_ANNOTATION
    document = _parse(text, option)
    sealed = document.pop("sig", None)
    # Sign the parsed document in canonical form, so that the seal covers exactly what is used.
    if not (isinstance(sealed, str) and sealed.isascii()) or not any(
        hmac.compare_digest(sealed, _signature(document, key)) for key in keys
    ):
        raise errors.DataError(
            f"{option}: is not sealed by this cluster's scheduler, which alone may write it"
        )
    return _choice(document, uid, node)


def show(text: str, uid: str, node: str) -> DeviceChoice:
    """Return the choice without checking its seal: only for display, never for allocation."""
    return _choice(_parse(text, names.DEVICES_ANNOTATION), uid, node)


def _choice(document: Mapping[str, Any], uid: str, node: str) -> DeviceChoice:
    option = names.DEVICES_ANNOTATION
    try:
        choice = DeviceChoice(document["uid"], document["node"], _load(document["containers"]))
    except (KeyError, TypeError, ValueError, AttributeError, errors.DataError) as exc:
        raise errors.DataError(f"{option}: is damaged: {exc!r}") from exc
    if (choice.uid, choice.node) != (uid, node):
        raise errors.DataError(
            f"{option}: is for pod {choice.uid} on {choice.node}, but this is {uid} on {node}"
        )
    return choice


def _unsealed(choice: DeviceChoice) -> dict[str, Any]:
    return {
        "v": VERSION,
        "uid": choice.uid,
        "node": choice.node,
        "containers": _dump(choice.containers),
    }


def _signature(document: Mapping[str, Any], key: bytes) -> str:
    if len(key) < LEAST_KEY_BYTES:
        raise errors.DataError(
            f"a key of {len(key)} bytes: must have at least {LEAST_KEY_BYTES}, such as from "
            "`head -c 32 /dev/urandom`"
        )
    return hmac.new(key, _text(document).encode(), hashlib.sha256).hexdigest()


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _parse(text: str, option: str) -> dict[str, Any]:
    try:
        if len(text) > LONGEST:
            raise ValueError("it is too long")
        document = json.loads(text)
        if type(document) is not dict:
            raise TypeError("it is not an object")
    except (ValueError, TypeError, RecursionError) as exc:
        raise errors.DataError(f"{option}: is damaged: {exc}") from exc
    version = document.get("v")
    if type(version) is not int or version != VERSION:
        raise errors.DataError(
            f"{option}: has version {version!r}, this pyvgpu supports {VERSION}"
        )
    return document


def _dump(shares: Shares) -> dict[str, list[dict[str, object]]]:
    return {
        container: [
            {
                "uuid": one.uuid,
                "vcore": one.vcore,
                "bytes": one.vmemory,
                **({"mig": one.mig} if one.mig else {}),
            }
            for one in parts
        ]
        for container, parts in shares.items()
    }


def _reserved(device: datatypes.NodeDevice) -> str:
    """Return why a reader that does not know its isolation must not use *device*."""
    return _FOR_INSTANCES if device.profiles else _FOR_MPS if device.mps else ""


def _instances(device: datatypes.NodeDevice) -> dict[str, object]:
    if not device.profiles:
        return {}
    return {
        "mig": [
            {
                "name": one.name,
                "id": one.id,
                "bytes": one.memory_bytes,
                "sms": one.sms,
                "slices": one.slices,
                "size": one.size,
                "most": one.most,
                "starts": list(one.starts),
            }
            for one in device.profiles
        ],
        "taken": list(device.taken),
    }


def _profile(found: Mapping[str, Any]) -> datatypes.MigProfile:
    starts = tuple(_number(start) for start in found["starts"])
    most = max(starts, default=0)
    if most > _MOST_SLICES or _number(found["size"], 1) > _MOST_SLICES:
        raise ValueError("memory slices")
    return datatypes.MigProfile(
        _word(found["name"]),
        _number(found["id"]),
        _number(found["bytes"], 1),
        _number(found["sms"], 1),
        _number(found["slices"], 1),
        found["size"],
        _number(found["most"], 1),
        starts,
    )


def _place(text: object) -> str:
    word = _word(text)
    if word:
        mig_placement.split(word)
    return word


def _load(found: Mapping[str, Any]) -> dict[str, tuple[datatypes.NodeShare, ...]]:
    return {
        _word(container): tuple(
            datatypes.NodeShare(
                _word(one["uuid"]),
                _number(one["vcore"]),
                _number(one["bytes"]),
                _place(one.get("mig", "")),
            )
            for one in parts
        )
        for container, parts in found.items()
    }


def _device(found: Mapping[str, Any], uuids: Mapping[str, str]) -> datatypes.NodeDevice:
    cordoned = found.get("cordoned", False)
    if type(cordoned) is not bool:
        raise TypeError("cordoned")
    profiles = tuple(map(_profile, found.get("mig", ())))
    unhealthy = _word(found.get("health", ""))
    mps = found.get("mps", False)
    if type(mps) is not bool:
        raise TypeError("mps")
    if (profiles and unhealthy == _FOR_INSTANCES) or (mps and unhealthy == _FOR_MPS):
        unhealthy = ""
    return datatypes.NodeDevice(
        uuid=_word(found["uuid"]),
        index=_number(found["index"]),
        memory_bytes=_number(found["bytes"], 1),
        model=_word(found.get("model", "")),
        compute_class=_word(found.get("class", "")),
        numa=None if found.get("numa") is None else _number(found["numa"]),
        links={
            uuids[index]: datatypes.DeviceLink(datatypes.LinkPath(_number(path)), _number(nvlinks))
            for index, (path, nvlinks, *_) in found.get("links", {}).items()
        },
        unhealthy=unhealthy,
        cordoned=cordoned,
        allocated_by=_word(found.get("allocatedBy", "")),
        profiles=profiles,
        taken=tuple(_place(text) for text in found.get("taken", ())),
        mps=mps,
        reservable=_number(found.get("reservable", 100), 100),
        **({"least_bytes": _number(found["least"], 1)} if "least" in found else {}),
    )


def _number(value: object, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{value!r} is not a number from {least}")
    return value


def _word(value: object) -> str:
    if type(value) is not str or not value.isprintable():
        raise ValueError(f"{value!r} is not a word")
    return value
