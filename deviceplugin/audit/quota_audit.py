"""Audit of quotas: compare the usage that NVML reports for processes with their grants; pure.

The shim lives in its tenant's process, so a malicious tenant can bypass it: link the driver
statically, or call the device's kernel interface itself. NVML still reports its usage. A finding
counts only if two consecutive audits have it: a process may start or end between two NVML calls.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from pyvgpu import quantity
from pyvgpu.deviceplugin.containers.process_owner import Whose
from pyvgpu.machine import memory_limit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pyvgpu.deviceplugin.audit import device_time
    from pyvgpu.deviceplugin.audit.corrections import Tampering
    from pyvgpu.deviceplugin.grants import Grant

# What the driver may allocate for a process beyond all that the shim charges, until measured.
TOLERANCE_BYTES = memory_limit.MARGIN_BYTES

_UNKNOWN = Whose()


class ViolationKind(enum.Enum):
    """The kind of a violation."""

    NO_SHIM = "no-shim"  # a process that uses a shared device without the shim
    FOREIGN = "foreign"  # a process on a device that was not granted to its container
    ABOVE = "above"  # a container that holds more memory than its quota
    TIME = "time"  # a container that used more of a device's time than its limit, for a minute
    TAMPERED = "tampered"  # a container whose ledger something other than the shim has changed
    OUTSIDE = "outside"  # a process outside containers on a device that is granted


_OF_CONTAINERS = (ViolationKind.ABOVE, ViolationKind.TIME, ViolationKind.TAMPERED)
_SEEN_OFTEN = (ViolationKind.TIME, ViolationKind.TAMPERED)  # found over several audits already


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessSnapshot:
    """Processes and their memory on the devices at one moment."""

    held: Mapping[str, Mapping[int, int]]  # by UUID: the node's pid -> bytes, as NVML reports
    whose: Mapping[int, Whose]  # by pid; without processes that have ended
    shimmed: Collection[int]  # pids that have a live slot in the ledger of their grant
    above: Collection[
        device_time.Above
    ] = ()  # containers that used too much time in the last minute
    tampered: Mapping[str, Sequence[Tampering]] = dataclasses.field(
        default_factory=dict
    )  # by grant


NOTHING = ProcessSnapshot({}, {}, ())


@dataclasses.dataclass(frozen=True, slots=True)
class Violation:
    """A violation by a process or a container."""

    kind: ViolationKind
    uuid: str  # the device
    pids: tuple[int, ...]  # of the processes
    grant: str  # its id; empty: none
    pod: str  # uid of the pod; empty: none
    size: int  # bytes that the processes hold
    text: str

    @property
    def key(self) -> tuple[ViolationKind, str, tuple[int, ...], str]:
        """Identity of the finding in all audits; a container's does not depend on processes."""
        pids = () if self.kind in _OF_CONTAINERS else self.pids
        return self.kind, self.uuid, pids, self.grant


def find(
    seen: ProcessSnapshot, grants: Mapping[str, Grant], labels: Mapping[str, str]
) -> list[Violation]:
    """Return all current findings; *labels* are display names of the devices, by UUID."""
    found: list[Violation] = []
    given = {share.uuid for grant in grants.values() for share in grant.shares}
    for uuid, by_pid in seen.held.items():
        if uuid not in given:
            continue  # no container has it, so none loses by this use
        label = labels.get(uuid, uuid)
        for pid, size in by_pid.items():
            one = _evaluated(seen, grants, uuid, pid)
            if one is not None:
                kind, how = one
                whose = seen.whose[pid]
                text = f"process {pid} of {_name(whose, grants)} uses {label} {how}: " + (
                    quantity.format_size(size)
                )
                pod = _pod(whose, grants)
                found.append(Violation(kind, uuid, (pid,), whose.grant, pod, size, text))
        found += _above(seen, grants, uuid, label)
    return [*found, *_above_time(seen, grants, labels), *_tampered(seen, grants, labels)]


def confirmed(before: Iterable[Violation], now: Iterable[Violation]) -> list[Violation]:
    """Return the findings of *now* that the audit *before* had, too."""
    known = {finding.key for finding in before}
    return [finding for finding in now if finding.kind in _SEEN_OFTEN or finding.key in known]


def doomed(
    wrong: Iterable[Violation], seen: ProcessSnapshot, grants: Mapping[str, Grant]
) -> list[tuple[Violation, int]]:
    """Return the container processes to kill for the findings *wrong*, if the action is to kill.

    Processes that bypass the shim are first. If every process of a container runs under the shim
    and the container still exceeds its quota, its largest process is chosen. Processes of an
    unknown grant are spared: the agent may have lost that grant, and recover it in a moment.
    """
    found = [suspect for suspect in wrong if not suspect.grant or suspect.grant in grants]
    bare = [
        suspect
        for suspect in found
        if suspect.kind in (ViolationKind.NO_SHIM, ViolationKind.FOREIGN)
    ]
    chosen = [(suspect, pid) for suspect in bare for pid in suspect.pids]
    worked = {(suspect.grant, suspect.uuid) for suspect in bare}
    for finding in found:
        if finding.kind is ViolationKind.ABOVE and (finding.grant, finding.uuid) not in worked:
            held = seen.held.get(finding.uuid, {})
            chosen.append((finding, max(finding.pids, key=lambda pid: held.get(pid, 0))))
    return chosen


def _evaluated(
    seen: ProcessSnapshot, grants: Mapping[str, Grant], uuid: str, pid: int
) -> tuple[ViolationKind, str] | None:
    """Return the kind of violation by a process on a granted device, and how; None if none."""
    whose = seen.whose.get(pid)
    if whose is None:
        return None  # it has ended
    if not whose.inside:
        return ViolationKind.OUTSIDE, "outside any container"
    grant = grants.get(whose.grant)
    if grant is None:
        # The container of a whole device has no grant folder: only its pod is known, and for a
        # claim only the first of its pods.
        own = [
            candidate
            for candidate in grants.values()
            if candidate.whole and _may_be(candidate, whose.pod)
        ]
        if any(share.uuid == uuid for candidate in own for share in candidate.shares):
            return None
        return ViolationKind.FOREIGN, "without a grant for it"
    if all(share.uuid != uuid for share in grant.shares):
        return ViolationKind.FOREIGN, "without a grant for it"
    if pid not in seen.shimmed and not grant.whole:
        return ViolationKind.NO_SHIM, "without the shim"
    return None


def _may_be(grant: Grant, pod: str) -> bool:
    return grant.claim is not None or (grant.owner is not None and grant.owner.uid == pod)


def _above(
    seen: ProcessSnapshot, grants: Mapping[str, Grant], uuid: str, label: str
) -> Iterator[Violation]:
    """Yield the containers whose processes together hold more of a device than their quota."""
    held: dict[str, dict[int, int]] = {}
    for pid, size in seen.held[uuid].items():
        whose = seen.whose.get(pid, _UNKNOWN)
        if whose.grant:
            held.setdefault(whose.grant, {})[pid] = size
    for grant_id, by_pid in held.items():
        grant = grants.get(grant_id)
        if grant is None or grant.whole:
            continue
        quota = next((share.vmemory for share in grant.shares if share.uuid == uuid), None)
        size = sum(by_pid.values())
        if quota is not None and size > quota + TOLERANCE_BYTES:
            whose = seen.whose[min(by_pid)]
            yield Violation(
                ViolationKind.ABOVE,
                uuid,
                tuple(sorted(by_pid)),
                grant_id,
                _pod(whose, grants),
                size,
                f"{_name(whose, grants)} holds {quantity.format_size(size)} of {label}, its quota "
                f"is {quantity.format_size(quota)}",
            )


def _above_time(
    seen: ProcessSnapshot, grants: Mapping[str, Grant], labels: Mapping[str, str]
) -> Iterator[Violation]:
    for above in seen.above:
        if above.grant in grants:
            whose = Whose(above.grant)
            text = (
                f"{_name(whose, grants)} used {above.percent}% of the time of "
                f"{labels.get(above.uuid, above.uuid)} over a minute, as NVML says, and may have "
                f"{above.allowed}%"
            )
            yield Violation(
                ViolationKind.TIME, above.uuid, (), above.grant, _pod(whose, grants), 0, text
            )


def _tampered(
    seen: ProcessSnapshot, grants: Mapping[str, Grant], labels: Mapping[str, str]
) -> Iterator[Violation]:
    """Yield for each container the newest change that was found in its ledger."""
    for grant_id, changes in seen.tampered.items():
        if changes and grant_id in grants:
            newest, whose = changes[0], Whose(grant_id)
            of_device = f" of {labels.get(newest.uuid, newest.uuid)}" if newest.uuid else ""
            text = (
                f"the ledger of {_name(whose, grants)}{of_device} was changed by something other "
                f"than the shim: {newest.text}"
            )
            pod = _pod(whose, grants)
            yield Violation(
                ViolationKind.TAMPERED, newest.uuid, newest.pids, grant_id, pod, 0, text
            )


def _pod(whose: Whose, grants: Mapping[str, Grant]) -> str:
    grant = grants.get(whose.grant)
    return grant.owner.uid if grant is not None and grant.owner is not None else whose.pod


def _name(whose: Whose, grants: Mapping[str, Grant]) -> str:
    grant = grants.get(whose.grant)
    if grant is not None and grant.owner is not None:
        return grant.owner.label
    if whose.pod:
        owners = (known.owner for known in grants.values())
        named = next(
            (owner for owner in owners if owner is not None and owner.uid == whose.pod), None
        )
        return f"{named.namespace}/{named.pod}" if named else f"pod {whose.pod}"
    return f"grant {whose.grant}" if whose.grant else "the node itself"
