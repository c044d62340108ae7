"""Quota over all claims of a namespace: the sum of requests, and whether one more fits; pure.

A ResourceQuota counts the devices of a class. This module sums how much of them claims request:
those that exist, and those just admitted that do not exist yet, which a ledger holds.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors, names, quantity
from pyvgpu.allocator import datatypes
from pyvgpu.controller.claims import claim_templates
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyvgpu.kube.objects import Object

RESERVED_SECONDS = 120.0  # within it an admitted claim exists, or never will
ALL = "All"  # the allocation mode for every matching device
_LONGEST = 15  # digits of a vcore
_LONGEST_SUM = 40  # digits of a reservation's numbers: int() refuses thousands


@dataclasses.dataclass(frozen=True, slots=True)
class Amount:
    """The sum of one claim's requests."""

    vcore: int = 0
    vmemory: int | None = 0  # bytes; None: not given

    def __add__(self, other: Amount) -> Amount:
        sizes = (self.vmemory, other.vmemory)
        known = None if None in sizes else sum(size or 0 for size in sizes)
        return Amount(self.vcore + other.vcore, known)


@dataclasses.dataclass(frozen=True, slots=True)
class ReservedClaim:
    """The request of an admitted claim, and when it was admitted."""

    amount: Amount
    at: float  # seconds since the epoch

    @property
    def text(self) -> str:
        """Its form in a ledger."""
        return f"{self.amount.vcore} {self.amount.vmemory or 0} {self.at:.0f}"


@dataclasses.dataclass(frozen=True, slots=True)
class Total:
    """The limit of a namespace."""

    vcore: int | None = None  # None: unlimited
    vmemory: int | None = None  # bytes


def total_of(namespace: Object) -> Total:
    """Read the annotations of *namespace*; UsageError for an invalid value."""
    noted = objects.section(namespace, "metadata", "annotations")
    vcore, vmemory = (noted.get(key) for key in (names.TOTAL_VCORE, names.TOTAL_VMEMORY))
    if vcore is not None and not _is_whole(str(vcore)):
        raise errors.UsageError(
            f"annotation {names.TOTAL_VCORE} {str(vcore)[:40]!r} of the namespace: must be a "
            "whole number, such as 400"
        )
    return Total(
        None if vcore is None else int(vcore),
        None if vmemory is None else _bytes(vmemory, f"annotation {names.TOTAL_VMEMORY}"),
    )


def asked_by(claim: Object) -> Amount:
    """Return what *claim* requests of our classes; alternatives count as their maximum.

    UsageError for a request without a definite sum.
    """
    total = Amount()
    for request in objects.entries(objects.section(claim, "spec", "devices"), "requests"):
        amounts = list(_alternatives(request))
        if amounts:
            sizes = [amount.vmemory for amount in amounts]
            known = None if None in sizes else max(size or 0 for size in sizes)
            total += Amount(max(amount.vcore for amount in amounts), known)
    return total


def held_by(claim: Object) -> Amount:
    """Return how much an existing claim counts; never raises for an invalid request."""
    try:
        amount = asked_by(claim)
    except errors.UsageError:
        amount = Amount(0, None)
    if amount.vmemory is not None:
        return amount
    devices = objects.section(claim, "status", "allocation", "devices")
    got = [
        objects.section(entry, "consumedCapacity").get(names.DRA_VMEMORY)
        for entry in objects.entries(devices, "results")
        if entry.get("driver") == names.DRA_DRIVER and not entry.get("adminAccess")
    ]
    return Amount(amount.vcore, sum(_bytes(size, "consumed") for size in got if size))


def read(ledger: Object) -> dict[str, ReservedClaim]:
    """Return the reservations in *ledger* by claim uid; malformed entries are skipped."""
    found: dict[str, ReservedClaim] = {}
    for uid, text in objects.section(ledger, "data").items():
        numbers = str(text).split()
        if len(numbers) >= 3 and all(_is_whole(number, _LONGEST_SUM) for number in numbers[:3]):
            vcore, vmemory, at = map(int, numbers[:3])  # a later version may add to these
            found[uid] = ReservedClaim(Amount(vcore, vmemory), float(at))
    return found


def left(
    reserved: Mapping[str, ReservedClaim], there: Iterable[str], now: float
) -> dict[str, ReservedClaim]:
    """Return the reservations of claims that are not *there* and may still be created."""
    known = set(there)
    return {
        uid: amount
        for uid, amount in reserved.items()
        if uid not in known and now - amount.at < RESERVED_SECONDS
    }


def why_not(
    total: Total, asked: Amount, there: Iterable[Amount], reserved: Iterable[ReservedClaim]
) -> str:
    """Return why *asked* exceeds *total* together with the other claims; empty if it does not."""
    used = sum((*there, *(reservation.amount for reservation in reserved)), Amount())
    if total.vcore is not None and used.vcore + asked.vcore > total.vcore:
        return (
            f"the claim requests {asked.vcore} vcore, other claims of this namespace "
            f"{used.vcore}: the total may be at most {total.vcore}, by annotation "
            f"{names.TOTAL_VCORE}"
        )
    if total.vmemory is None:
        return ""
    if asked.vmemory is None:
        return (
            "the claim requests all the memory of a device, because capacity.requests.vmemory "
            "is not set; in a namespace with a total limit it must be set, such as 8Gi"
        )
    if (used.vmemory or 0) + asked.vmemory > total.vmemory:
        most = quantity.format_size(total.vmemory)
        return (
            f"the claim requests {quantity.format_size(asked.vmemory)} of vmemory, other "
            f"claims of this namespace {quantity.format_size(used.vmemory or 0)}: the total "
            f"may be at most {most}, by annotation {names.TOTAL_VMEMORY}"
        )
    return ""


def _alternatives(request: Object) -> Iterator[Amount]:
    exactly = objects.section(request, "exactly")
    for asked in [exactly] if exactly else objects.entries(request, "firstAvailable"):
        called = str(asked.get("deviceClassName"))
        ours = called == claim_templates.CLASS or called.startswith(f"{claim_templates.CLASS}-")
        if asked.get("adminAccess") or not ours:
            continue
        if called == claim_templates.MIG_CLASS:
            raise errors.UsageError(
                f"request {request.get('name')}: deviceClassName {called}: a MIG partition has "
                "at least what is requested, so in a namespace with a total limit it must be "
                f"{claim_templates.CLASS}"
            )
        if asked.get("allocationMode") == ALL:
            raise errors.UsageError(
                f"request {request.get('name')}: allocationMode {ALL}: in a namespace with a "
                f"total limit it must be ExactCount, with a count such as 2"
            )
        count = int(asked.get("count") or 1)
        requested = objects.section(asked, "capacity", "requests")
        vcore, vmemory = (
            requested.get(capacity) for capacity in (names.DRA_VCORE, names.DRA_VMEMORY)
        )
        if vcore is not None and not _is_whole(str(vcore)):
            raise errors.UsageError(
                f"request {request.get('name')}: capacity vcore {str(vcore)[:40]!r}: must be a "
                f"whole number from 1 to {datatypes.WHOLE}, such as 50"
            )
        yield Amount(
            count * (datatypes.WHOLE if vcore is None else int(vcore)),
            None if vmemory is None else count * _bytes(vmemory, "capacity vmemory"),
        )


def _is_whole(text: str, longest: int = _LONGEST) -> bool:
    return text.isdecimal() and len(text) <= longest


def _bytes(text: object, option: str) -> int:
    return quantity.parse_size(str(text), option)
