"""Pods of groups that another system places as a whole, of which the extender sees single pods.

kube-scheduler asks about each pod of such a group. If the last one does not fit, none is bound,
which the extender does not see: the devices of the others stay reserved for a moment. A group that
is tried again and again would so keep them from all other pods. So after an attempt in vain a
group gives way for a while to the pods that were refused.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyvgpu.kube.objects import Object

# Where a pod names its group: a field of its metadata, and the key in it.
MARKS = (
    ("labels", "scheduling.x-k8s.io/pod-group"),  # the coscheduling plugin's PodGroup
    ("labels", "pod-group.scheduling.sigs.k8s.io"),  # the same, formerly
    ("annotations", "scheduling.k8s.io/group-name"),  # Volcano's PodGroup
    ("annotations", "scheduling.volcano.sh/group-name"),  # the same, newer
    ("annotations", "yunikorn.apache.org/task-group-name"),  # YuniKorn's task group
    ("annotations", "gang.scheduling.koordinator.sh/name"),  # Koordinator's gang
)
FIELDS = (  # of the specification: Kubernetes' own Workload and PodGroup
    ("workloadRef", "name"),
    ("schedulingGroup", "podGroupName"),
)
YIELD_SECONDS = 15.0  # longer than kube-scheduler's backoff of a refused pod


def name_of(pod: Object) -> str:
    """Return namespace/name of the group of *pod*; empty if it has none."""
    metadata, spec = objects.section(pod, "metadata"), objects.section(pod, "spec")
    names = [objects.section(metadata, place).get(key) for place, key in MARKS]
    names += [objects.section(spec, field).get(key) for field, key in FIELDS]
    return next((sys.intern(f"{metadata.get('namespace')}/{name}") for name in names if name), "")


class Yields:
    """Groups that give way after an attempt in vain."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # seconds, by group

    def begin(self, groups: Iterable[str], now: float) -> None:
        """Note *groups* whose devices were reserved, and not taken."""
        self._until |= dict.fromkeys(filter(None, groups), now + YIELD_SECONDS)

    def holds(self, group: str, now: float) -> bool:
        """Return whether *group* gives way."""
        return self._until.get(group, 0.0) > now

    def over(self, now: float) -> set[str]:
        """Forget the groups that no longer give way, and return them."""
        ended = {group for group, until in self._until.items() if until <= now}
        for group in ended:
            del self._until[group]
        return ended
