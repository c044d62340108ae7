"""What gpu-admission and gpu-manager write on pods, for those who have the one or the other.

    tencent.com/predicate-gpu-idx-<i>   minors of the devices of container i of spec.containers;
                                        empty: none are chosen for it
    tencent.com/predicate-node          the node that gpu-admission means
    tencent.com/predicate-time          when it was chosen, in nanoseconds
    tencent.com/gpu-assigned            "true" once the devices are given, "false" before

Nobody seals them: they choose among what is free, and never give more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyvgpu.allocator import facts

INDEX, NODE, TIME = (f"{names.GAIA_PREDICATE}{it}" for it in ("gpu-idx-", "node", "time"))
ASSIGNED = names.GAIA_ASSIGNED_ANNOTATION


def notes(
    containers: Iterable[str],
    shares: Mapping[str, Sequence[facts.Share]],
    node: str,
    minors: Mapping[str, int],
    when: str,
) -> dict[str, str]:
    """Return what is to be noted on a pod, but for whether it has its devices.

    *containers* are those of spec.containers, *shares* what they get on *node*, whose devices
    have these *minors* by UUID: a container of which one is not known is left out.
    """
    found = {
        f"{INDEX}{index}": ",".join(str(minors[it.uuid]) for it in shares[name])
        for index, name in enumerate(containers)
        if name in shares and all(it.uuid in minors for it in shares[name])
    }
    return found | {NODE: node, TIME: when}


def now(seconds: float) -> str:
    """Return a time, in seconds since 1970, as it is written there."""
    return str(round(seconds * 1e9))
