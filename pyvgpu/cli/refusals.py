"""Explain why a pod does not start on its node: the agent's refusal and the node's devices.

This does not need our scheduler: kubelet quotes the agent in the container status, and the agent
publishes the state of its devices.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from pyvgpu.allocator import placement_explanation
from pyvgpu.cli import scheduler_snapshot
from pyvgpu.controller.scheduler import cache, pod_request, wait_reasons
from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    from pyvgpu.kube.objects import Object

OURS = "pyvgpu: "  # the prefix of each refusal of the agent
AGAIN = "tries again every 10 to 15 seconds"  # kubelet's pause after a pod that does not start


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """The agent's error message for a container that kubelet cannot start."""

    container: str
    text: str


def find(pod: Object) -> Refusal | None:
    """Return the first refusal in the status of *pod*; None if the agent refused no container."""
    status = objects.section(pod, "status")
    for kind in ("initContainerStatuses", "containerStatuses"):
        for entry in objects.entries(status, kind):
            message = objects.section(entry, "state", "waiting").get("message")
            _, ours, text = str(message or "").partition(OURS)
            if ours:
                return Refusal(str(entry.get("name")), text)
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class RefusalExplanation:
    """Why a pod does not start on its node."""

    pod: pod_request.PodRequest
    phase: str
    refusal: Refusal
    why: (
        wait_reasons.Why | None
    )  # None: the cause is not lack of room, or we may not read the node
    unknown: tuple[str, ...]

    @property
    def waits_for(self) -> str:
        """What the pod needs to start."""
        if placement_explanation.FOR_NOW not in self.refusal.text:
            return self.refusal.text
        if self.pod.held is not None:
            room = f"room on the devices that its scheduler has chosen on {self.pod.node}"
        elif self.why is not None and self.why.fitting:
            return f"kubelet, which {AGAIN}: there is room now"
        elif self.why is not None and self.why.only_closed:
            room = f"a device of {self.pod.node} that takes new containers"
        else:
            room = f"room on a device of {self.pod.node}"
        return f"{room}; kubelet {AGAIN}"

    def text(self) -> str:
        """Return it as text."""
        refused = f"container {self.refusal.container}: refused by {self.pod.node}"
        near = self.why.near if self.why is not None else None
        rows = self.why.rows() if self.why is not None else []
        return "\n".join(
            (
                f"pod {self.pod.key}: {self.phase} on {self.pod.node}",
                f"  {refused}: {self.refusal.text}",
                *((f"  nearest: {near}",) if near is not None else ()),
                *(f"  not known: {unknown}" for unknown in self.unknown),
                f"waits for: {self.waits_for}",
                *((wait_reasons.table(rows),) if rows else ()),
            )
        )

    def document(self) -> str:
        """Return it as JSON."""
        found = self.why.document() if self.why is not None else {"pod": self.pod.key}
        return json.dumps(
            {
                **found,
                "node": self.pod.node,
                "phase": self.phase,
                "container": self.refusal.container,
                "refused": self.refusal.text,
                "waitsFor": self.waits_for,
                "notKnown": self.unknown,
            },
            indent=2,
        )


def explain(
    api: apiserver.ApiServer, thing: Object, pod: pod_request.PodRequest, refusal: Refusal
) -> RefusalExplanation:
    """Return why *pod*, parsed from the object *thing*, does not start."""
    known, unknown = cache.Cache(cache.SchedulerSettings()), []
    phase = str(objects.section(thing, "status").get("phase"))
    node = pod.node
    if placement_explanation.FOR_NOW not in refusal.text:
        return RefusalExplanation(pod, phase, refusal, None, ())
    try:
        scheduler_snapshot.tell_nodes(known, [api.call("GET", f"/api/v1/nodes/{node}")])
    except apiserver.ServerError as exc:
        said = "you may not read it" if exc.status == 403 else str(exc)
        return RefusalExplanation(pod, phase, refusal, None, (f"node {node}: {said}",))
    try:
        for page, _ in api.pages("/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"}):
            own = (
                tenant
                for tenant in page
                if objects.section(tenant, "spec").get("nodeName") == node
            )
            scheduler_snapshot.tell_pods(known, own)
    except apiserver.ServerError as exc:  # then holders are shown by uid only
        said = "you may not list them" if exc.status == 403 else str(exc)
        unknown.append(f"pods of {node}: {said}")
    why = wait_reasons.find(known, pod, [node], every_device=True)
    return RefusalExplanation(pod, phase, refusal, why, tuple(unknown))
