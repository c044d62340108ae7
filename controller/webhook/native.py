"""Move marked sidecars to where Kubernetes has native ones: init containers that restart always.

Kubelet ends those itself after the main containers, and their codes do not count. But the main
containers start only when a native sidecar has started, its startupProbe and postStart hook among
that; one that waits for a main container would then wait for ever. So what may depend on a main
container is left where it is, and only namespaces that ask for it get this at all.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu.controller import objects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyvgpu.controller.objects import Object
    from pyvgpu.controller.sidecar import marking, pods
    from pyvgpu.controller.sidecar.nodes import Release
    from pyvgpu.controller.webhook import drafts

SINCE = (1, 29)  # on by default; a kubelet that is older restarts it for ever


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Which sidecars move, in the order in which they start; and why others do not."""

    moves: tuple[pods.Container, ...]
    why_not: Mapping[str, str]


def plan(pod: Object, marks: marking.Marking, oldest: Release | None) -> Plan:
    """Plan for a pod being created; *oldest* is the oldest kubelet that it may meet."""
    if oldest is None or oldest < SINCE:
        release = ".".join(map(str, SINCE))
        why = f"native sidecars need kubelets of Kubernetes {release} or later on all nodes"
        return Plan((), {entry.name: why for entry in marks.sidecars})
    specs = objects.entries(objects.section(pod, "spec"), "containers")
    why_not = {entry.name: _why_not(specs[entry.index]) for entry in marks.sidecars}
    moves = [entry for entry in marks.sidecars if not why_not[entry.name]]
    # Kubelet ends them in the reverse of the order in which it starts them, and the lowest order
    # is to end first. The sort is stable: those of one order start as they are written.
    moves.sort(key=lambda entry: -marks.wishes[entry.name].order)
    return Plan(tuple(moves), {name: why for name, why in why_not.items() if why})


def move(draft: drafts.Draft, moves: Sequence[pods.Container]) -> None:
    """Move them behind the init containers that are there."""
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
