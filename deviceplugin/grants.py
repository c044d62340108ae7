"""A grant: what one container was promised of devices, from Allocate until it is no more.

Facts only. A grant is made with a random id before anybody knows whom it is for, and bound when
that is known; :mod:`.checkpoint` remembers it, :mod:`.folders` makes it real.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, quantity, quota, share
from pyvgpu.allocator import facts

if TYPE_CHECKING:
    from pyvgpu import device

_ID = re.compile(r"[0-9a-f]{16}")  # as the arbiter knows runs: see csrc/arbiter/run.h


def new_id() -> str:
    """Return an id that nobody can foresee."""
    return os.urandom(8).hex()


def is_id(text: str) -> bool:
    """Return whether *text* can be the id of a grant."""
    return _ID.fullmatch(text) is not None


@dataclasses.dataclass(frozen=True, slots=True)
class Owner:
    """The container that a grant is for."""

    uid: str  # the pod's
    namespace: str
    pod: str
    container: str

    @property
    def label(self) -> str:
        """How it is called in messages."""
        return f"{self.namespace}/{self.pod}/{self.container}"


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """A device that was allocated to a claim, as the claim says it."""

    request: str  # of the claim
    device: str  # its name among those of the driver
    share_id: str = ""  # which of the shares of that device; empty: it has no others


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """The ResourceClaim that a grant is for; see :mod:`.dra`."""

    uid: str
    namespace: str
    name: str
    results: tuple[Result, ...]
    shares: tuple[facts.Share, ...]  # what was allocated, whatever the grant has of it now
    policy: quota.Policy = quota.Policy.HARD  # as it is configured
    ceiling: int | None = None
    priority: quota.Priority = quota.Priority.NORMAL


@dataclasses.dataclass(frozen=True, slots=True)
class Grant:
    """A promise to one container; without an owner, to whoever holds these ids.

    One for a claim has no ids, and is everybody's who uses that claim; its owner is the pod for
    which it was allocated, and the claim in the place of a container.
    """

    id: str
    vcore_ids: frozenset[str]
    created: float  # seconds since the epoch
    owner: Owner | None = None
    vmemory_ids: frozenset[str] = frozenset()
    shares: tuple[facts.Share, ...] = ()
    policy: quota.Policy = quota.Policy.HARD
    ceiling: int | None = None  # vcore that elastic may reach; None: the whole device
    wished: bool = False  # policy and ceiling are what the pod's annotations say
    priority: quota.Priority = quota.Priority.NORMAL
    prioritized: bool = False  # that is what they say
    chosen: bool = False  # its devices are what the scheduler has sealed
    claim: Claim | None = None

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
        """Whether it is known whom the grant is for."""
        return self.owner is not None

    @property
    def over(self) -> bool:
        """Whether its pod is, and only processes that will not end keep what they hold."""
        return self.bound and not self.vcore_ids and self.claim is None

    def ended(self) -> Grant:
        """Return the grant without what it was given by, which is others' from now on."""
        return dataclasses.replace(
            self, vcore_ids=frozenset(), vmemory_ids=frozenset(), claim=None
        )

    def promised(self, unit: int) -> tuple[int, int]:
        """Return the vcore and the bytes of each device that it was given, a unit being *unit*.

        Its administrator may have lowered what it has. Where a claim has not the same of each
        device, it is the least.
        """
        if self.claim is not None:
            given = self.claim.shares
            return min(it.vcore for it in given), min(it.vmemory for it in given)
        count = len(self.shares)
        return len(self.vcore_ids) // count, len(self.vmemory_ids) * unit // count

    def share_of(self, one: facts.Share, held: device.Device) -> share.Share:
        """Return what the grant gives of a device, as quotas have it: *one* of its shares."""
        return share.Share(held, one.vcore, one.vmemory, self.policy, self.ceiling, self.priority)

    @property
    def whole(self) -> bool:
        """Whether it is of whole devices, which have the driver itself and no shim."""
        return bool(self.shares) and self.shares[0].vcore == quantity.WHOLE_DEVICE

    @property
    def label(self) -> str:
        """How it is called in messages: as its container, if one has it."""
        return self.owner.label if self.owner else f"grant {self.id}"


def dump(grant: Grant) -> dict[str, Any]:
    """Return *grant* as what JSON can carry."""
    return {
        "id": grant.id,
        "vcore_ids": sorted(grant.vcore_ids),
        "created": grant.created,
        "owner": _fields(grant.owner) if grant.owner else None,
        "vmemory_ids": sorted(grant.vmemory_ids),
        "shares": [_fields(share) for share in grant.shares],
        "policy": grant.policy.name.lower(),
        "ceiling": grant.ceiling,
        "wished": grant.wished,
        "chosen": grant.chosen,
        **_priority(grant),
        **({"prioritized": True} if grant.prioritized else {}),
        **({"claim": _claim(grant.claim)} if grant.claim else {}),
    }


def _claim(claim: Claim) -> dict[str, Any]:
    found = _fields(claim)
    for name in ("results", "shares"):
        found[name] = [_fields(it) for it in found[name]]
    del found["priority"]
    return {**found, "policy": claim.policy.name.lower(), **_priority(claim)}


def _priority(it: Grant | Claim) -> dict[str, str]:
    """Return what says a priority; nothing for the normal one, which most have."""
    return {} if it.priority is quota.Priority.NORMAL else {"priority": it.priority.name.lower()}


def _fields(fact: Owner | facts.Share | Result | Claim) -> dict[str, Any]:
    """Return the fields of a fact of plain values: dataclasses.asdict would copy each, slowly."""
    return {name: getattr(fact, name) for name in fact.__slots__}


def load(found: Any) -> Grant:
    """Return the grant that :func:`dump` gave; DataError if it is none."""
    try:
        owner, ceiling, claim = found["owner"], found["ceiling"], found.get("claim")
        return Grant(
            id=found["id"],
            vcore_ids=frozenset(map(str, found["vcore_ids"])),
            created=float(found["created"]),
            owner=None if owner is None else Owner(**owner),
            vmemory_ids=frozenset(map(str, found["vmemory_ids"])),
            shares=tuple(facts.Share(**share) for share in found["shares"]),
            policy=quota.Policy.parse(found["policy"], "policy"),
            ceiling=None if ceiling is None else int(ceiling),
            wished=bool(found["wished"]),
            priority=_load_priority(found),
            prioritized=bool(found.get("prioritized")),
            chosen=bool(found.get("chosen")),
            claim=None if claim is None else _load_claim(claim),
        )
    except (KeyError, TypeError, ValueError, AttributeError, errors.UsageError) as exc:
        raise errors.DataError(f"this is no grant: {exc!r}") from exc


def _load_claim(found: Any) -> Claim:
    return Claim(
        str(found["uid"]),
        str(found["namespace"]),
        str(found["name"]),
        tuple(Result(**it) for it in found["results"]),
        tuple(facts.Share(**it) for it in found["shares"]),
        quota.Policy.parse(found["policy"], "policy"),
        None if found["ceiling"] is None else int(found["ceiling"]),
        _load_priority(found),
    )


def _load_priority(found: Any) -> quota.Priority:
    """Return the priority of what was dumped."""
    return quota.Priority.parse(found.get("priority", "normal"), "priority")
