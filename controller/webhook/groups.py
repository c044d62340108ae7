"""Pods of a group that another system would schedule all together: our scheduler does not.

A pod that our scheduler places although it belongs to such a group would be placed alone, which
its user would notice only by a deadlock. Our own gangs are annotations: docs/placement.md. A pod
group of Kueue is none of these: Kueue admits its quota as a whole, and leaves the placement to us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.kube import objects

if TYPE_CHECKING:
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


def why_not(pod: Object) -> str:
    """Return why our scheduler cannot place *pod*; empty if it can."""
    metadata = objects.section(pod, "metadata")
    if objects.section(metadata, "annotations").get(names.GANG_ANNOTATION):
        return ""  # our own gang, whatever other systems read
    for place, key in MARKS:
        if group := objects.section(metadata, place).get(key):
            return _refusal(f"metadata.{place} {key}: {group}", str(group))
    spec = objects.section(pod, "spec")
    for field, key in FIELDS:
        if field in spec and spec[field] is not None:
            group = str(objects.section(spec, field).get(key) or "train")
            return _refusal(f"spec.{field}", group)
    return ""


def _refusal(what: str, group: str) -> str:
    return (
        f"{what}: the scheduler of pods with devices does not know this group, and would place "
        f"the pod alone; valid would be the annotations {names.GANG_ANNOTATION}: {group} and "
        f'{names.GANG_SIZE_ANNOTATION}: "4", with the number of its pods'
    )
