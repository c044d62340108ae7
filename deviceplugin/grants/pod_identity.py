"""Match a grant to its pod and containers, from two sources of kubelet that must agree.

Allocate names no pod. Its answer has a random id, which kubelet's checkpoint stores beside the
pod's uid and the container (``checkpoint_file``). PodResources lists the pod, its containers and
all their ids, but no uid, and no ordinary init containers. Ids are reused: an init container and
the containers after it may hold the same ones, and so may the next pod, once this one has ended.

Pure. Nothing is guessed: a missing or contradictory statement raises DoubtError, and kubelet
retries.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.deviceplugin.kubelet.device_ids import ResourceKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.deviceplugin.grants import Grant
    from pyvgpu.deviceplugin.kubelet.checkpoint_file import CheckpointEntry, Entries
    from pyvgpu.deviceplugin.kubelet.pod_resources import ListedPod as ListedPod
    from pyvgpu.deviceplugin.kubelet.pod_resources import Listing

    _Said = dict[str, dict[ResourceKind, CheckpointEntry]]  # the entries of a pod, by container

_STATIC = re.compile(r"[0-9a-f]{32}")  # the uid of a static pod: the digest of its file


class DoubtError(errors.UnavailableError):
    """A grant cannot be matched to its pod yet; it may be in a moment."""


@dataclasses.dataclass(frozen=True, slots=True)
class PodContainer:
    """A container with its grant and ids."""

    name: str
    grant: str  # empty: it has no vcore
    vcore: frozenset[str]  # ids
    vmemory: frozenset[str]
    listed: bool  # else it is an ordinary init container, which ends before others start


@dataclasses.dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod, and those of its containers that hold ids of pyvgpu."""

    uid: str
    namespace: str  # empty, as the name: only its init containers hold ids
    name: str
    containers: tuple[PodContainer, ...]


def identify(
    kind: ResourceKind, wanted: frozenset[str], entries: Entries, listed: Listing
) -> KnownPod:
    """Return the pod of a PreStartContainer call with the ids *wanted*; DoubtError if unclear.

    *entries* are kubelet's checkpoint, *listed* is the answer of PodResources.
    """
    uids = entries.pods_with(kind, wanted)
    if len(uids) != 1:
        found = "several pods" if uids else "no pod"
        raise DoubtError(f"kubelet's checkpoint has {found} with these ids of {kind.value}")
    (uid,) = uids
    said: _Said = {}
    for entry in entries.of_pod(uid):
        said.setdefault(entry.container, {})[entry.kind] = entry
    if not any(kind in held and held[kind].ids == wanted for held in said.values()):
        raise DoubtError(f"in kubelet's checkpoint pod {uid} holds other ids of {kind.value}")
    own = _listed_pod(uid, said, listed)
    return KnownPod(
        uid,
        own.namespace if own else "",
        own.name if own else "",
        tuple(_container(name, held, own) for name, held in sorted(said.items())),
    )


def check(uid: str, before: Entries, now: Entries) -> None:
    """DoubtError unless a pod has the same entries in kubelet's checkpoint *now* as *before*.

    To be called at the decision: identifying the pod takes a while, and its ids may be another
    pod's by then.
    """
    if now is before:
        return
    if set(before.of_pod(uid)) != set(now.of_pod(uid)):
        raise DoubtError(f"the ids of pod {uid} in kubelet's checkpoint have changed meanwhile")


def _listed_pod(uid: str, said: _Said, listed: Listing) -> ListedPod | None:
    """Return the pod of PodResources whose containers have exactly these ids."""
    ids = {
        kind: frozenset[str]().union(*(held[kind].ids for held in said.values() if kind in held))
        for kind in ResourceKind
    }
    found = {}
    for pod in listed.mentioning(frozenset().union(*ids.values())):
        for name, held in pod.containers.items():
            for kind, own in held.items():
                if own.isdisjoint(ids[kind]):
                    continue
                entry = said.get(name, {}).get(kind)
                if entry is None or entry.ids != own:
                    raise DoubtError(
                        f"container {name} of pod {pod.namespace}/{pod.name} has ids of "
                        f"{kind.value} by PodResources that others have in kubelet's checkpoint"
                    )
                found[pod.namespace, pod.name] = pod
    if len(found) > 1:
        raise DoubtError(f"PodResources has several pods with the ids of pod {uid}")
    return next(iter(found.values()), None)


def _container(
    name: str, held: dict[ResourceKind, CheckpointEntry], pod: ListedPod | None
) -> PodContainer:
    ids = {kind: held[kind].ids if kind in held else frozenset[str]() for kind in ResourceKind}
    listed = pod is not None and name in pod.containers
    if (
        pod is not None
        and listed
        and ids != {**dict.fromkeys(ResourceKind, frozenset()), **pod.containers[name]}
    ):
        raise DoubtError(
            f"container {name} of pod {pod.namespace}/{pod.name} has other ids by PodResources "
            "than in kubelet's checkpoint"
        )
    grant = held[ResourceKind.VCORE].grant if ResourceKind.VCORE in held else ""
    return PodContainer(name, grant, ids[ResourceKind.VCORE], ids[ResourceKind.VMEMORY], listed)


def supersedes(pod: KnownPod, grant: Grant, *, known: bool, kept: Callable[[str], bool]) -> bool:
    """Whether a grant has ended, since *pod* has its container, its pod's name or its ids.

    The same name counts unless *kept*: a force-deleted pod of that name may still be ending. The
    same ids count only if kubelet has *known* the grant: a kubelet that has lost its checkpoint
    reassigns ids of running containers.
    """
    owner = grant.owner
    if grant.claim is not None:
        return False
    if owner is not None and owner.uid == pod.uid:
        return any(container.name == owner.container for container in pod.containers)
    named = (owner.namespace, owner.pod) if owner is not None and owner.pod else None
    if named == (pod.namespace, pod.name) and not kept(grant.id):
        return True
    if owner is not None and not known:
        return False
    return any(
        not (
            grant.vcore_ids.isdisjoint(container.vcore)
            and grant.vmemory_ids.isdisjoint(container.vmemory)
        )
        for container in pod.containers
    )


def is_static(uid: str) -> bool:
    """Return whether *uid* is a static pod's, which has at most a mirror at the API server."""
    return _STATIC.fullmatch(uid) is not None
