"""Decide whether the main containers of a pod are done, so that its sidecars may be ended.

A main container is done when it has ended and kubelet will not start it again. With ``Never`` that
is any exit, with ``OnFailure`` an exit with code 0; a container may have a policy and rules of its
own (Kubernetes 1.34 and later). Pods that kubelet is ending as a whole (deleted, evicted,
preempted) are left to kubelet.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import datetime
    from collections.abc import Sequence

    from pyvgpu.controller.sidecar import sidecar_pods

TERMINAL = frozenset({"Succeeded", "Failed"})

KUBELETS = {  # conditions of pods that kubelet ends or restarts as a whole
    "DisruptionTarget": "the pod is being evicted or preempted, and kubelet ends it",
    "AllContainersRestarting": "kubelet is starting every container of the pod again",
}


@dataclasses.dataclass(frozen=True, slots=True)
class MainsState:
    """The state of a pod's main containers."""

    done: bool
    why: str  # a sentence
    succeeded: bool = False  # every main container exited with 0; meaningful only if done
    since: datetime.datetime | None = None  # when the last of them ended

    @property
    def ended_text(self) -> str:
        """*since* in records' notation; it identifies this end of the main containers."""
        return self.since.isoformat() if self.since else ""


def read(
    pod: sidecar_pods.WatchedPod, mains: Sequence[sidecar_pods.ObservedContainer]
) -> MainsState:
    """Return whether *mains*, the main containers of *pod*, are done."""
    if why := refused(pod):
        return MainsState(done=False, why=why)
    for main in mains:
        if not main.ended_for_good:
            return MainsState(done=False, why=_waits_for(main))
    if not mains:
        return MainsState(done=False, why="the pod has no main container")
    return MainsState(
        done=True,
        why="every main container is done",
        succeeded=all(main.exit_code == 0 for main in mains),
        since=last_end(mains),
    )


def refused(pod: sidecar_pods.WatchedPod) -> str:
    """Return why *pod* is left to kubelet; empty if it is not."""
    if pod.deleted:
        return "the pod is being deleted, and kubelet ends it"
    if pod.phase in TERMINAL:
        return f"the pod has ended: {pod.phase}"
    return next((why for condition, why in KUBELETS.items() if condition in pod.conditions), "")


def last_end(containers: Sequence[sidecar_pods.ObservedContainer]) -> datetime.datetime | None:
    """Return when the last of *containers* ended; None if kubelet reported no time."""
    ends = [container.ended_at for container in containers if container.ended_at]
    return max(ends) if ends else None


def _waits_for(main: sidecar_pods.ObservedContainer) -> str:
    if main.exit_code is not None:
        return f"main container {main.name} ended with {main.exit_code} and will be started again"
    if main.waits_for:
        return f"main container {main.name} has not started: {main.waits_for}"
    return f"main container {main.name} is {main.state.value}"
