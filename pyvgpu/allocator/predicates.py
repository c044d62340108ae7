"""Annotations of gpu-admission and gpu-manager on pods, for compatibility.

    tencent.com/predicate-gpu-idx-<i>   minors of the devices of container i of spec.containers;
                                        empty: none are chosen for it
    tencent.com/predicate-node          the node that gpu-admission chose
    tencent.com/predicate-time          time of the choice, in nanoseconds
    tencent.com/gpu-assigned            "true" once the devices are allocated, "false" before

They are not sealed: they only choose among free devices, and never grant more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyvgpu.allocator import datatypes

INDEX, NODE, TIME = (f"{names.GAIA_PREDICATE}{suffix}" for suffix in ("gpu-idx-", "node", "time"))
ASSIGNED = names.GAIA_ASSIGNED_ANNOTATION


def notes(
    containers: Iterable[str],
    shares: Mapping[str, Sequence[datatypes.NodeShare]],
    node: str,
    minors: Mapping[str, int],
    when: str,
) -> dict[str, str]:
    """Return the annotations of a pod, except gpu-assigned.

    *containers* are those of spec.containers, *shares* their shares on *node*, *minors* the minor
    numbers of its devices by UUID: a container with an unknown one is left out.
    """
    found = {
        f"{INDEX}{index}": ",".join(str(minors[share.uuid]) for share in shares[name])
        for index, name in enumerate(containers)
        if name in shares and all(share.uuid in minors for share in shares[name])
    }
    return found | {NODE: node, TIME: when}


def now(seconds: float) -> str:
    """Format a time in seconds since 1970 for predicate-time."""
    return str(round(seconds * 1e9))
