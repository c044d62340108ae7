"""Actions of a decision, carried out in order by the shell, which may crash at any point.

A patch tests the pod's uid and resourceVersion, so of two controllers the API server refuses one,
and a decision on an outdated pod is made again. An event's name is a hash of its content, so
creating it is idempotent.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyvgpu.controller.sidecar import sidecar_pods
    from pyvgpu.kube.objects import Operation


@dataclasses.dataclass(frozen=True, slots=True)
class Patch:
    """A JSON patch of a pod, or of the Job that it belongs to."""

    namespace: str
    name: str
    operations: tuple[Operation, ...]
    resource: str = "pods"  # or "jobs"


@dataclasses.dataclass(frozen=True, slots=True)
class SidecarEvent:
    """A Kubernetes Event on the pod."""

    name: str  # the API server refuses a duplicate, which is fine
    warning: bool
    reason: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Count:
    """Add one to a counter, once for each *key*."""

    metric: str
    labels: Mapping[str, str]
    key: str


@dataclasses.dataclass(frozen=True, slots=True)
class Wake:
    """Reconcile the pod again after this time, unless it changes before."""

    seconds: float


Action = Patch | SidecarEvent | Count | Wake


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """The actions to take now; none: wait for a change of the pod."""

    why: str  # a sentence, for `pyvgpu explain` and the log
    actions: tuple[Action, ...] = ()

    @property
    def patch(self) -> Patch | None:
        """The patch, of which there is at most one."""
        return next((action for action in self.actions if isinstance(action, Patch)), None)


def patch(pod: sidecar_pods.WatchedPod, operations: Sequence[Operation]) -> Patch:
    """Return *operations* as a patch that applies only to this version of the pod."""
    return Patch(
        pod.namespace,
        pod.name,
        (
            objects.expect(pod.uid, "metadata", "uid"),
            objects.expect(pod.version, "metadata", "resourceVersion"),
            *operations,
        ),
    )


def set_image(container: sidecar_pods.ObservedContainer, image: str) -> list[Operation]:
    """Return the operations that set the image; they test the name at the container's index."""
    path = ("spec", "containers", container.index)
    return [objects.expect(container.name, *path, "name"), objects.put(image, *path, "image")]


def event(
    pod: sidecar_pods.WatchedPod, reason: str, message: str, *, warning: bool = False
) -> SidecarEvent:
    """Return an event on *pod*."""
    digest = hashlib.sha256(f"{pod.uid} {reason} {message}".encode()).hexdigest()[:16]
    return SidecarEvent(f"{pod.name[:200]}.{digest}", warning, reason, message)
