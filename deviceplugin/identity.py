"""For which pod and containers a grant is: told by two sources that must not contradict.

Allocate names no pod. What it answered has a random id, and kubelet writes that answer down beside
the pod's uid and the container (``state``). PodResources names the pod, its containers and all ids
that they hold, but no uid, and no ordinary init container. Ids are said again: an init container
and the containers after it may hold the same, and so may the next pod, once this one has ended.

Pure. Nothing is guessed: what is not said yet, or said in two ways, is a doubt, and kubelet tries
again.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.deviceplugin.ids import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.deviceplugin.grants import Grant
    from pyvgpu.deviceplugin.podresources import Listing
    from pyvgpu.deviceplugin.podresources import Pod as ListedPod
    from pyvgpu.deviceplugin.state import Entries, Entry

    _Said = dict[str, dict[Kind, Entry]]  # the entries of a pod, by container


class DoubtError(errors.UnavailableError):
    """It is not known now whose a grant is; it may be in a moment."""


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    """What a container holds."""

    name: str
    grant: str  # empty: it has no vcore
    vcore: frozenset[str]  # ids
    vmemory: frozenset[str]
    listed: bool  # else it is an ordinary init container, which ends before others begin


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """A pod and its containers that hold anything of ours."""

    uid: str
    namespace: str  # empty, as the name: it has nothing but init containers here
    name: str
    containers: tuple[Container, ...]


def identify(kind: Kind, wanted: frozenset[str], entries: Entries, listed: Listing) -> Pod:
    """Return the pod that a PreStartContainer with the ids *wanted* is about; DoubtError if none.

    *entries* are kubelet's checkpoint, *listed* is what PodResources says.
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
    return Pod(
        uid,
        own.namespace if own else "",
        own.name if own else "",
        tuple(_container(name, held, own) for name, held in sorted(said.items())),
    )


def check(uid: str, before: Entries, now: Entries) -> None:
    """DoubtError unless kubelet's checkpoint says *now* of a pod what it said *before*.

    To be asked when something is decided: to be told of the pod takes a while, and its ids may be
    another's by then.
    """
    if now is before:
        return
    if set(before.of_pod(uid)) != set(now.of_pod(uid)):
        raise DoubtError(f"what pod {uid} holds by kubelet's checkpoint has changed meanwhile")


def _listed_pod(uid: str, said: _Said, listed: Listing) -> ListedPod | None:
    """Return the pod of PodResources that has ids of these containers: exactly theirs."""
    ids = {
        kind: frozenset[str]().union(*(held[kind].ids for held in said.values() if kind in held))
        for kind in Kind
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
                        f"{kind.value} by PodResources that others have by kubelet's checkpoint"
                    )
                found[pod.namespace, pod.name] = pod
    if len(found) > 1:
        raise DoubtError(f"PodResources has several pods with the ids of pod {uid}")
    return next(iter(found.values()), None)


def _container(name: str, held: dict[Kind, Entry], pod: ListedPod | None) -> Container:
    ids = {kind: held[kind].ids if kind in held else frozenset[str]() for kind in Kind}
    listed = pod is not None and name in pod.containers
    if (
        pod is not None
        and listed
        and ids != {**dict.fromkeys(Kind, frozenset()), **pod.containers[name]}
    ):
        raise DoubtError(
            f"container {name} of pod {pod.namespace}/{pod.name} has other ids by PodResources "
            "than by kubelet's checkpoint"
        )
    grant = held[Kind.VCORE].grant if Kind.VCORE in held else ""
    return Container(name, grant, ids[Kind.VCORE], ids[Kind.VMEMORY], listed)


def supersedes(pod: Pod, grant: Grant, *, known: bool, kept: Callable[[str], bool]) -> bool:
    """Whether a grant is over since *pod* has its container, its pod's name or its ids.

    The name only if it is not *kept* for a pod of that name that is still ending, as one that was
    deleted by force. The ids only if kubelet has *known* that they were given: one that has lost
    its checkpoint gives away those of containers that run.
    """
    owner = grant.owner
    if grant.claim is not None:
        return False
    if owner is not None and owner.uid == pod.uid:
        return any(it.name == owner.container for it in pod.containers)
    named = (owner.namespace, owner.pod) if owner is not None and owner.pod else None
    if named == (pod.namespace, pod.name) and not kept(grant.id):
        return True
    if owner is not None and not known:
        return False
    return any(
        not (grant.vcore_ids.isdisjoint(it.vcore) and grant.vmemory_ids.isdisjoint(it.vmemory))
        for it in pod.containers
    )
