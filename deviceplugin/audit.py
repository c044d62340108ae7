"""Compare what NVML says processes hold with what was granted; pure.

A shim lives in its tenant's process, so a tenant that means harm can go without one: it links the
driver statically, or speaks to the device itself. What it takes then NVML says all the same. Only
what two looks in a row have seen counts: between two questions a process may come or go.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from pyvgpu import memorylimit, quantity
from pyvgpu.deviceplugin.whose import Whose

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pyvgpu.deviceplugin import smtime
    from pyvgpu.deviceplugin.corrections import Tampering
    from pyvgpu.deviceplugin.grants import Grant

# What the driver itself may take for a process beyond all that is charged, until it is measured.
TOLERANCE_BYTES = memorylimit.MARGIN_BYTES

_NOBODY = Whose()


class Action(enum.StrEnum):
    """What is done about what is wrong."""

    REPORT = "report"  # it is told
    KILL = "kill"  # it is told, and the process is ended


class Kind(enum.Enum):
    """What is wrong."""

    NO_SHIM = "no-shim"  # a process on a shared device that no shim holds
    FOREIGN = "foreign"  # a process on a device that its container was not given
    ABOVE = "above"  # a container that holds more than its quota
    TIME = "time"  # a container that used more of a device's time than it may have, for a minute
    TAMPERED = "tampered"  # a container whose ledger something other than the shim has changed
    OUTSIDE = "outside"  # a process of the node itself on a device that is given out


_OF_CONTAINERS = (Kind.ABOVE, Kind.TIME, Kind.TAMPERED)
_SEEN_OFTEN = (Kind.TIME, Kind.TAMPERED)  # several looks have seen it already


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What is on the devices at one moment."""

    held: Mapping[str, Mapping[int, int]]  # by UUID: the node's pid -> bytes, as NVML says
    whose: Mapping[int, Whose]  # by pid; of those that have ended nothing
    shimmed: Collection[int]  # pids that have a live slot in the ledger of their grant
    above: Collection[smtime.Above] = ()  # containers that used too much time in the last minute
    tampered: Mapping[str, Sequence[Tampering]] = dataclasses.field(
        default_factory=dict
    )  # by grant


NOTHING = Seen({}, {}, ())


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """Something that ought not to be."""

    kind: Kind
    uuid: str  # the device
    pids: tuple[int, ...]  # whose they are
    grant: str  # its id; empty: it has none
    pod: str  # uid of the pod; empty: it is in none
    size: int  # bytes that they hold
    text: str

    @property
    def key(self) -> tuple[Kind, str, tuple[int, ...], str]:
        """What makes two findings the same; of a container, whatever its processes."""
        pids = () if self.kind in _OF_CONTAINERS else self.pids
        return self.kind, self.uuid, pids, self.grant


def find(seen: Seen, grants: Mapping[str, Grant], labels: Mapping[str, str]) -> list[Finding]:
    """Return what is wrong now; *labels* are what people call the devices, by UUID."""
    found: list[Finding] = []
    given = {share.uuid for grant in grants.values() for share in grant.shares}
    for uuid, by_pid in seen.held.items():
        if uuid not in given:
            continue  # whoever uses it takes it from nobody
        label = labels.get(uuid, uuid)
        for pid, size in by_pid.items():
            one = _judged(seen, grants, uuid, pid)
            if one is not None:
                kind, words = one
                whose = seen.whose[pid]
                text = f"process {pid} of {_who(whose, grants)} {words} {label}, " + (
                    f"{quantity.format_size(size)} of it"
                )
                pod = _pod(whose, grants)
                found.append(Finding(kind, uuid, (pid,), whose.grant, pod, size, text))
        found += _above(seen, grants, uuid, label)
    return [*found, *_above_time(seen, grants, labels), *_tampered(seen, grants, labels)]


def confirmed(before: Iterable[Finding], now: Iterable[Finding]) -> list[Finding]:
    """Return the findings of *now* that were there *before*, too."""
    known = {finding.key for finding in before}
    return [it for it in now if it.kind in _SEEN_OFTEN or it.key in known]


def doomed(
    wrong: Iterable[Finding], seen: Seen, grants: Mapping[str, Grant]
) -> list[tuple[Finding, int]]:
    """Return the processes to end for what is *wrong*, where all such are ended: in containers.

    Who goes past the shim goes first. Where all that a container has are held and it holds too
    much all the same, its largest goes. One of a grant that is not known is let be: it may have
    been forgotten, and be remembered in a moment.
    """
    found = [it for it in wrong if not it.grant or it.grant in grants]
    bare = [it for it in found if it.kind in (Kind.NO_SHIM, Kind.FOREIGN)]
    chosen = [(it, pid) for it in bare for pid in it.pids]
    worked = {(it.grant, it.uuid) for it in bare}
    for finding in found:
        if finding.kind is Kind.ABOVE and (finding.grant, finding.uuid) not in worked:
            held = seen.held.get(finding.uuid, {})
            chosen.append((finding, max(finding.pids, key=lambda pid: held.get(pid, 0))))
    return chosen


def _judged(
    seen: Seen, grants: Mapping[str, Grant], uuid: str, pid: int
) -> tuple[Kind, str] | None:
    """Return what is wrong with a process on a device that is given out, if anything is."""
    whose = seen.whose.get(pid)
    if whose is None:
        return None  # it has ended
    if not whose.inside:
        return Kind.OUTSIDE, "uses, beside containers,"
    grant = grants.get(whose.grant)
    if grant is None:
        # A whole device's container has no folder of a grant: the pod is what is known of it, and
        # of a claim only the first of its pods.
        own = [it for it in grants.values() if it.whole and _may_be(it, whose.pod)]
        if any(share.uuid == uuid for it in own for share in it.shares):
            return None
        return Kind.FOREIGN, "was not given, and uses,"
    if all(share.uuid != uuid for share in grant.shares):
        return Kind.FOREIGN, "was not given, and uses,"
    if pid not in seen.shimmed and not grant.whole:
        return Kind.NO_SHIM, "uses without the shim"
    return None


def _may_be(grant: Grant, pod: str) -> bool:
    return grant.claim is not None or (grant.owner is not None and grant.owner.uid == pod)


def _above(seen: Seen, grants: Mapping[str, Grant], uuid: str, label: str) -> Iterator[Finding]:
    """Give the containers that hold more of a device than their quota, whoever of theirs it is."""
    held: dict[str, dict[int, int]] = {}
    for pid, size in seen.held[uuid].items():
        whose = seen.whose.get(pid, _NOBODY)
        if whose.grant:
            held.setdefault(whose.grant, {})[pid] = size
    for grant_id, by_pid in held.items():
        grant = grants.get(grant_id)
        if grant is None or grant.whole:
            continue
        quota = next((it.vmemory for it in grant.shares if it.uuid == uuid), None)
        size = sum(by_pid.values())
        if quota is not None and size > quota + TOLERANCE_BYTES:
            whose = seen.whose[min(by_pid)]
            yield Finding(
                Kind.ABOVE,
                uuid,
                tuple(sorted(by_pid)),
                grant_id,
                _pod(whose, grants),
                size,
                f"{_who(whose, grants)} holds {quantity.format_size(size)} of {label}, its quota "
                f"is {quantity.format_size(quota)}",
            )


def _above_time(
    seen: Seen, grants: Mapping[str, Grant], labels: Mapping[str, str]
) -> Iterator[Finding]:
    for it in seen.above:
        if it.grant in grants:
            whose = Whose(it.grant)
            text = (
                f"{_who(whose, grants)} used {it.percent}% of the time of "
                f"{labels.get(it.uuid, it.uuid)} over a minute, as NVML says, and may have "
                f"{it.allowed}%"
            )
            yield Finding(Kind.TIME, it.uuid, (), it.grant, _pod(whose, grants), 0, text)


def _tampered(
    seen: Seen, grants: Mapping[str, Grant], labels: Mapping[str, str]
) -> Iterator[Finding]:
    """Say of each container the newest that was found of its ledger."""
    for grant_id, changes in seen.tampered.items():
        if changes and grant_id in grants:
            newest, whose = changes[0], Whose(grant_id)
            of_device = f" of {labels.get(newest.uuid, newest.uuid)}" if newest.uuid else ""
            text = (
                f"the ledger of {_who(whose, grants)}{of_device} was changed by something other "
                f"than the shim: {newest.text}"
            )
            pod = _pod(whose, grants)
            yield Finding(Kind.TAMPERED, newest.uuid, newest.pids, grant_id, pod, 0, text)


def _pod(whose: Whose, grants: Mapping[str, Grant]) -> str:
    grant = grants.get(whose.grant)
    return grant.owner.uid if grant is not None and grant.owner is not None else whose.pod


def _who(whose: Whose, grants: Mapping[str, Grant]) -> str:
    grant = grants.get(whose.grant)
    if grant is not None and grant.owner is not None:
        return grant.owner.label
    if whose.pod:
        owners = (it.owner for it in grants.values())
        named = next((it for it in owners if it is not None and it.uid == whose.pod), None)
        return f"{named.namespace}/{named.pod}" if named else f"pod {whose.pod}"
    return f"grant {whose.grant}" if whose.grant else "the node itself"
