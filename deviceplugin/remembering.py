"""Recover the grants of a lost checkpoint, from kubelet's state and the grants' files.

Pure, except for the callback that reads a grant's files.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from pyvgpu.deviceplugin import grants, identity
from pyvgpu.deviceplugin.ids import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping

    from pyvgpu.allocator import facts
    from pyvgpu.deviceplugin.podresources import Listing
    from pyvgpu.deviceplugin.state import Entries

    Made = Mapping[str, tuple[facts.Share, ...]]  # by the id of a grant


def made(
    entries: Entries,
    known: Container[str],
    recall: Callable[[str], tuple[facts.Share, ...]],
) -> Made:
    """Return the shares, from *recall*, of the grants in kubelet's *entries* not in *known*."""
    lost = [it.grant for it in entries if grants.is_id(it.grant) and it.grant not in known]
    return {each: shares for each in lost if (shares := recall(each))}


def grants_of(found: Made, entries: Entries, listed: Listing) -> Iterator[grants.Grant]:
    """Yield the grants *found*, with their owners from kubelet's *entries* and *listed* pods."""
    for entry in entries:
        if entry.grant not in found:
            continue
        memory = [
            it.ids
            for it in entries.of_pod(entry.uid)
            if (it.container, it.kind) == (entry.container, Kind.VMEMORY)
        ]
        namespace = name = ""
        with contextlib.suppress(identity.DoubtError):
            pod = identity.identify(entry.kind, entry.ids, entries, listed)
            namespace, name = pod.namespace, pod.name
        yield grants.Grant(
            entry.grant,
            entry.ids,
            time.time(),
            grants.Owner(entry.uid, namespace, name, entry.container),
            frozenset().union(*memory),
            found[entry.grant],
        )
