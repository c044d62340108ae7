"""The end of grants, and their recovery after the checkpoint was lost.

A pod that kubelet does not list may still run.

A kubelet that has just started lists no pod until it has reached the API server, which may be down
for hours while all containers run on. If it has lost its checkpoint, it never learns the devices
of running pods again. So a missing pod or grant counts only if this run of kubelet has known it:
within one run, kubelet forgets no live pod. A grant is over if

- this kubelet has listed the pod, and does not list it any more; or
- this kubelet's checkpoint had the grant, and does not have it any more; or
- the API server says that the pod does not exist any more, or has ended; or
- neither can tell (no API server, or a static pod), this kubelet has neither listed the pod nor
  had the grant for FORGET_SECONDS, and no process uses the grant.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.grants import pod_identity
from pyvgpu.deviceplugin.kubelet.device_ids import ResourceKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping

    from pyvgpu.allocator import datatypes
    from pyvgpu.deviceplugin.grants import Grant, Owner
    from pyvgpu.deviceplugin.kubelet.checkpoint_file import Entries
    from pyvgpu.deviceplugin.kubelet.pod_resources import Life, Listing

    Shares = Mapping[str, tuple[datatypes.NodeShare, ...]]  # by the id of a grant

FORGET_SECONDS = 60.0  # after which a grant is over that kubelet's checkpoint never had
ASK_SECONDS = 30.0  # between two API requests about a pod that kubelet lists without its devices


@dataclasses.dataclass(frozen=True, slots=True)
class KubeletState:
    """Kubelet's state at one moment."""

    listing: Listing
    entries: Entries  # its checkpoint


@dataclasses.dataclass(frozen=True, slots=True)
class _Past:
    """All that one run of kubelet has listed and written since it started."""

    seen: frozenset[tuple[str, str]]  # pods, by namespace and name
    written: frozenset[str]  # grants


class Endings:
    """Tracks the pods and grants that this run of kubelet has had, and grants unknown to it."""

    def __init__(
        self,
        clock: Callable[[], float],
        is_used: Callable[[str], bool],
        is_over: Callable[[Owner], bool] | None = None,
    ) -> None:
        self._clock = clock
        self._is_used = is_used  # whether a process uses the grant with that id
        self._lock = threading.Lock()
        self._life: Life | None = None  # of kubelet
        self._seen: frozenset[tuple[str, str]] = frozenset()  # pods, by namespace and name
        self._written: frozenset[str] = frozenset()  # grants that this kubelet has had
        self._unknown: dict[str, float] = {}  # since when its checkpoint lacks a grant
        self._unknown_to: Life | None = None  # the run of kubelet for which that holds
        self._asked: dict[str, float] = {}  # by grant: the last API request about its listed pod
        self._is_over = is_over  # whether a pod is over, by the API server; None: there is none

    def note(self, said: KubeletState) -> _Past:
        """Record a kubelet's listing and checkpoint, both of one run; return its whole past."""
        with self._lock:
            self._meet(said.listing.life, said.entries)
            self._seen |= said.listing.names
            return _Past(self._seen, self._written)

    def known(self, life: Life | None, entries: Entries | None = None) -> frozenset[str]:
        """Return the grants that the kubelet of this *life* has had; its checkpoint has *entries*.

        If it allocates the ids of one of them again, that grant is over. It does not know other
        grants, and allocates their ids although they are in use.
        """
        with self._lock:
            self._meet(life, entries)
            return self._written

    def _meet(self, life: Life | None, entries: Entries | None) -> None:
        if life != self._life:
            self._life, self._seen, self._written = life, frozenset(), frozenset()
        # It may have failed to read a file written before its start.
        if life is not None and entries is not None and entries.written >= life.begun:
            self._written |= entries.grants

    def over(self, known: Collection[Grant], said: KubeletState) -> list[Grant]:
        """Return those of *known* that are over, all of which were bound before *said*."""
        now = self._clock()
        past = self.note(said)  # another thread may note a new kubelet during the API requests
        before = self._unknown if self._unknown_to == said.listing.life else {}
        self._unknown_to = said.listing.life
        self._unknown = {
            grant.id: before.get(grant.id, now)
            for grant in known
            if grant.id not in said.entries.grants
        }
        return [
            grant
            for grant in known
            if _is_dropped(grant, said, past) or self._is_gone(grant, said, now)
        ]

    def dropped(self, known: Iterable[Grant], said: KubeletState) -> list[Grant]:
        """Return those that are over by kubelet's state alone, without API requests."""
        with self._lock:
            if said.listing.life != self._life:
                return []
            past = _Past(self._seen, self._written)
        return [grant for grant in known if _is_dropped(grant, said, past)]

    def _is_gone(self, grant: Grant, said: KubeletState, now: float) -> bool:
        """Return whether a grant is over that this kubelet may not know."""
        owner, since = grant.owner, self._unknown.get(grant.id)
        if owner is None:
            return since is not None and now - since > FORGET_SECONDS
        listed = _name(owner) in said.listing.names
        if since is None and (listed or not owner.pod):
            return False
        if self._is_over is not None:
            if not (listed and self._was_asked(grant.id, now)) and self._is_over(owner):
                return True
            if not pod_identity.is_static(owner.uid):
                return False
        late = since is not None and now - since > FORGET_SECONDS
        return late and not listed and not self._is_used(grant.id)

    def _was_asked(self, grant_id: str, now: float) -> bool:
        """Return whether the API server was queried within ASK_SECONDS; if not, record it now."""
        if now - self._asked.get(grant_id, -ASK_SECONDS) < ASK_SECONDS:
            return True
        self._asked[grant_id] = now
        return False

    def keep(self, known: Iterable[Grant]) -> None:
        """Forget all grants and pods but *known*, which are all current grants.

        A starting pod's listing is noted under the lock under which the pod is bound, so it is not
        forgotten in between.
        """
        kept = list(known)
        ids = {grant.id for grant in kept}
        self._asked = {grant_id: when for grant_id, when in self._asked.items() if grant_id in ids}
        with self._lock:
            self._written &= ids
            self._seen &= {_name(grant.owner) for grant in kept if grant.owner is not None}


def _is_dropped(grant: Grant, said: KubeletState, past: _Past) -> bool:
    owner = grant.owner
    if owner is None:
        return False
    if grant.over or (grant.id in past.written and grant.id not in said.entries.grants):
        return True
    return _name(owner) in past.seen and _name(owner) not in said.listing.names


def _name(owner: Owner) -> tuple[str, str]:
    return owner.namespace, owner.pod


def lost_shares(
    entries: Entries,
    known: Container[str],
    recall: Callable[[str], tuple[datatypes.NodeShare, ...]],
) -> Shares:
    """Return the shares, from *recall*, of the grants in kubelet's *entries* not in *known*."""
    lost = [
        entry.grant for entry in entries if grants.is_id(entry.grant) and entry.grant not in known
    ]
    return {each: shares for each in lost if (shares := recall(each))}


def recovered(found: Shares, entries: Entries, listed: Listing) -> Iterator[grants.Grant]:
    """Yield the grants *found*, with their owners from kubelet's *entries* and *listed* pods."""
    for entry in entries:
        if entry.grant not in found:
            continue
        memory = [
            sibling.ids
            for sibling in entries.of_pod(entry.uid)
            if (sibling.container, sibling.kind) == (entry.container, ResourceKind.VMEMORY)
        ]
        namespace = name = ""
        with contextlib.suppress(pod_identity.DoubtError):
            pod = pod_identity.identify(entry.kind, entry.ids, entries, listed)
            namespace, name = pod.namespace, pod.name
        yield grants.Grant(
            entry.grant,
            entry.ids,
            time.time(),
            grants.Owner(entry.uid, namespace, name, entry.container),
            frozenset().union(*memory),
            found[entry.grant],
        )
