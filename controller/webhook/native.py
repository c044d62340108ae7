"""Convert marked sidecars to native ones: init containers with restartPolicy Always.

Kubelet ends those itself after the main containers, and ignores their exit codes. But main
containers start only after a native sidecar has started, including its startupProbe and postStart
hook; a sidecar that waits for a main container would deadlock. So a sidecar that may depend on a
main container is not converted, and only namespaces that opt in get conversions.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyvgpu.controller.sidecar import marking, sidecar_pods
    from pyvgpu.controller.sidecar.nodes import Release
    from pyvgpu.controller.webhook import drafts
    from pyvgpu.kube.objects import Object

SINCE = (1, 29)  # enabled by default; an older kubelet restarts it for ever


@dataclasses.dataclass(frozen=True, slots=True)
class NativeSidecars:
    """The sidecars to move, in start order; and why others stay."""

    moves: tuple[sidecar_pods.Container, ...]
    why_not: Mapping[str, str]


def plan(pod: Object, marks: marking.Marking, oldest: Release | None) -> NativeSidecars:
    """Plan for a pod being created; *oldest* is the oldest kubelet release of the cluster."""
    if oldest is None or oldest < SINCE:
        release = ".".join(map(str, SINCE))
        why = f"native sidecars need kubelets of Kubernetes {release} or later on all nodes"
        return NativeSidecars((), {entry.name: why for entry in marks.sidecars})
    specs = objects.entries(objects.section(pod, "spec"), "containers")
    why_not = {entry.name: _why_not(specs[entry.index]) for entry in marks.sidecars}
    moves = [entry for entry in marks.sidecars if not why_not[entry.name]]
    # Kubelet ends them in reverse start order, and the lowest order must end first. The sort is
    # stable: sidecars of equal order start in the order of the spec.
    moves.sort(key=lambda entry: -marks.wishes[entry.name].order)
    return NativeSidecars(tuple(moves), {name: why for name, why in why_not.items() if why})


def move(draft: drafts.Draft, moves: Sequence[sidecar_pods.Container]) -> None:
    """Append the sidecars to the init containers."""
    specs = list(objects.entries(objects.section(draft.document, "spec"), "containers"))
    for entry in moves:
        draft.append({**specs[entry.index], "restartPolicy": "Always"}, "spec", "initContainers")
    for index in sorted((entry.index for entry in moves), reverse=True):
        draft.remove("spec", "containers", index)


def _why_not(container: Object) -> str:
    if container.get("startupProbe"):
        return "its startupProbe may need a main container, and those would wait for it"
    if objects.section(container, "lifecycle").get("postStart"):
        return "its postStart hook may need a main container, and those would wait for it"
    if container.get("restartPolicy") or container.get("restartPolicyRules"):
        return "it has a restartPolicy of its own"
    return ""
