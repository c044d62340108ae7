"""A grant: the devices' shares of one container, from Allocate until the container is gone.

Data only. A grant is created with a random id before its container is known, and bound once it
is; grants/grant_log stores it, containers/store writes its files.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import TYPE_CHECKING, Any, TypeVar

from pyvgpu import errors, quantity, quota, share
from pyvgpu.allocator import datatypes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyvgpu import device

_Made = TypeVar("_Made")
_ID = re.compile(r"[0-9a-f]{16}")  # as the arbiter knows runs: see csrc/arbiter/run.h


def new_id() -> str:
    """Return an unpredictable id."""
    return os.urandom(8).hex()


def is_id(text: str) -> bool:
    """Return whether *text* can be the id of a grant."""
    return _ID.fullmatch(text) is not None


@dataclasses.dataclass(frozen=True, slots=True)
class Owner:
    """The container that a grant belongs to."""

    uid: str  # the pod's
    namespace: str
    pod: str
    container: str

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{self.namespace}/{self.pod}/{self.container}"


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimResult:
    """A device in a claim's allocation result."""

    request: str  # of the claim
    device: str  # its name in the ResourceSlice
    share_id: str = ""  # the share of that device; empty: it is not shared


@dataclasses.dataclass(frozen=True, slots=True)
class GrantClaim:
    """The ResourceClaim that a grant belongs to; see the package dra."""

    uid: str
    namespace: str
    name: str
    results: tuple[ClaimResult, ...]
    shares: tuple[
        datatypes.NodeShare, ...
    ]  # as allocated; the grant's may have been changed since
    policy: quota.TimePolicy = quota.TimePolicy.HARD  # as the claim configures it
    ceiling: int | None = None
    priority: quota.Priority = quota.Priority.NORMAL


@dataclasses.dataclass(frozen=True, slots=True)
class Grant:
    """The shares of one container; without an owner, of the container that holds these ids.

    A claim's grant has no ids, and every container that uses the claim shares it; its owner is the
    pod for which the claim was allocated, with the claim in place of a container.
    """

    id: str
    vcore_ids: frozenset[str]
    created: float  # seconds since the epoch
    owner: Owner | None = None
    vmemory_ids: frozenset[str] = frozenset()
    shares: tuple[datatypes.NodeShare, ...] = ()
    policy: quota.TimePolicy = quota.TimePolicy.HARD
    ceiling: int | None = None  # vcore that elastic may reach; None: the whole device
    annotated: bool = False  # policy and ceiling come from the pod's annotations
    priority: quota.Priority = quota.Priority.NORMAL
    prioritized: bool = False  # the priority comes from them
    chosen: bool = False  # the scheduler chose its devices, and signed the choice
    claim: GrantClaim | None = None
    isolation: quota.Isolation = quota.Isolation.QUOTA  # MPS, or that of the quota

    def __post_init__(self) -> None:
        if not is_id(self.id):
            raise errors.DataError(f"grant {self.id!r}: its id must be 16 hexadecimal digits")
        if (self.owner is None) != (not self.shares):
            raise errors.DataError(f"grant {self.id}: has an owner and shares, or neither")
        if self.owner is None and not self.vcore_ids:
            raise errors.DataError(f"grant {self.id}: has no owner and no device")
        if len({share.uuid for share in self.shares}) != len(self.shares):
            raise errors.DataError(f"grant {self.id}: two shares of one device")
        if len({share.vcore == quantity.WHOLE_DEVICE for share in self.shares}) > 1:
            raise errors.DataError(f"grant {self.id}: whole devices and shares together")

    @property
    def bound(self) -> bool:
        """Whether the grant's container is known."""
        return self.owner is not None

    @property
    def over(self) -> bool:
        """Whether its pod is gone, and only processes that are still running hold it."""
        return self.bound and not self.vcore_ids and self.claim is None

    def ended(self) -> Grant:
        """Return the grant without its ids and claim, which can be allocated again."""
        return dataclasses.replace(
            self, vcore_ids=frozenset(), vmemory_ids=frozenset(), claim=None
        )

    def allocated(self, unit: int) -> tuple[int, int]:
        """Return the vcore and bytes originally granted of each device; *unit*: bytes of vmemory.

        An administrator may have lowered the current shares. If a claim's shares differ between
        devices, the smallest counts.
        """
        if self.claim is not None:
            given = self.claim.shares
            return min(part.vcore for part in given), min(part.vmemory for part in given)
        count = len(self.shares)
        return len(self.vcore_ids) // count, len(self.vmemory_ids) * unit // count

    def share_of(self, one: datatypes.NodeShare, held: device.Device) -> share.Share:
        """Return *one* of its shares as a quota of the device *held*."""
        return share.Share(
            held,
            one.vcore,
            one.vmemory,
            self.policy,
            self.ceiling,
            self.priority,
            self.isolation,
        )

    @property
    def whole(self) -> bool:
        """Whether it is for whole devices, which are used with the driver and no shim."""
        return bool(self.shares) and (
            self.shares[0].vcore == quantity.WHOLE_DEVICE or bool(self.mig)
        )

    @property
    def mig(self) -> str:
        """The placement of its own MIG instance, such as 1g.10gb@6; empty: it has none."""
        return self.shares[0].mig if self.shares else ""

    @property
    def label(self) -> str:
        """Its name in messages: that of its container, if bound."""
        return self.owner.label if self.owner else f"grant {self.id}"


def dump(grant: Grant) -> dict[str, Any]:
    """Return *grant* as a JSON-serializable value."""
    return {
        "id": grant.id,
        "vcore_ids": sorted(grant.vcore_ids),
        "created": grant.created,
        "owner": _fields(grant.owner) if grant.owner else None,
        "vmemory_ids": sorted(grant.vmemory_ids),
        "shares": [_share(share) for share in grant.shares],
        "policy": grant.policy.name.lower(),
        "ceiling": grant.ceiling,
        "annotated": grant.annotated,
        "chosen": grant.chosen,
        **_priority(grant),
        **({"prioritized": True} if grant.prioritized else {}),
        **({"claim": _claim(grant.claim)} if grant.claim else {}),
        **({"isolation": "mps"} if grant.isolation is quota.Isolation.MPS else {}),
    }


def _claim(claim: GrantClaim) -> dict[str, Any]:
    found = _fields(claim)
    for name in ("results", "shares"):
        found[name] = [
            _share(member) if name == "shares" else _fields(member) for member in found[name]
        ]
    del found["priority"]
    return {**found, "policy": claim.policy.name.lower(), **_priority(claim)}


def _share(share: datatypes.NodeShare) -> dict[str, Any]:
    """Return the JSON fields of a share; most have no MIG instance of their own."""
    found = _fields(share)
    if not share.mig:
        del found["mig"]
    return found


def _priority(it: Grant | GrantClaim) -> dict[str, str]:
    """Return the priority's JSON field; nothing for the normal one, which most have."""
    return {} if it.priority is quota.Priority.NORMAL else {"priority": it.priority.name.lower()}


def _fields(fact: Owner | datatypes.NodeShare | ClaimResult | GrantClaim) -> dict[str, Any]:
    """Return a dataclass's fields, uncopied: dataclasses.asdict copies each, which is slow."""
    return {name: getattr(fact, name) for name in fact.__slots__}


def load(found: Any) -> Grant:
    """Return the grant that :func:`dump` serialized; DataError if it is invalid.

    After an upgrade or a rollback another version has written it: unknown fields are ignored, and
    absent ones that a running container can do without have defaults.
    """
    try:
        owner, ceiling, claim = found["owner"], found.get("ceiling"), found.get("claim")
        return Grant(
            id=found["id"],
            vcore_ids=frozenset(map(str, found["vcore_ids"])),
            created=float(found["created"]),
            owner=None if owner is None else _made(Owner, owner),
            vmemory_ids=frozenset(map(str, found["vmemory_ids"])),
            shares=tuple(_made(datatypes.NodeShare, share) for share in found["shares"]),
            policy=quota.TimePolicy.parse(found.get("policy", "hard"), "policy"),
            ceiling=None if ceiling is None else int(ceiling),
            annotated=bool(found.get("annotated")),
            priority=_load_priority(found),
            prioritized=bool(found.get("prioritized")),
            chosen=bool(found.get("chosen")),
            claim=None if claim is None else _load_claim(claim),
            isolation=quota.Isolation.parse(found.get("isolation", "quota"), "isolation"),
        )
    except (KeyError, TypeError, ValueError, AttributeError, errors.UsageError) as exc:
        raise errors.DataError(f"invalid grant: {exc!r}") from exc


def _load_claim(found: Any) -> GrantClaim:
    return GrantClaim(
        str(found["uid"]),
        str(found["namespace"]),
        str(found["name"]),
        tuple(_made(ClaimResult, result) for result in found["results"]),
        tuple(_made(datatypes.NodeShare, fields) for fields in found["shares"]),
        quota.TimePolicy.parse(found.get("policy", "hard"), "policy"),
        None if found.get("ceiling") is None else int(found["ceiling"]),
        _load_priority(found),
    )


def _made(kind: type[_Made], found: Mapping[str, Any]) -> _Made:
    """Return a dataclass made from the fields in *found* that it has."""
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in found.items() if name in known})


def _load_priority(found: Any) -> quota.Priority:
    """Return the priority of a serialized grant or claim."""
    return quota.Priority.parse(found.get("priority", "normal"), "priority")
