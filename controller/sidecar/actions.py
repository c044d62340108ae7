"""What a decision asks the shell to do, in this order; the shell may die anywhere.

A patch holds for the pod as it was read: it tests uid and resourceVersion, so that of two
controllers one is refused, and whoever decided on an old pod decides again. An event has a name
that follows from what it says, so that it is made once however often it is asked for.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

from pyvgpu.controller import objects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyvgpu.controller.objects import Operation
    from pyvgpu.controller.sidecar import pods


@dataclasses.dataclass(frozen=True, slots=True)
class Patch:
    """A JSON patch of a pod, or of the Job that it belongs to."""

    namespace: str
    name: str
    operations: tuple[Operation, ...]
    resource: str = "pods"  # or "jobs"


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """Something that the pod's user should read."""

    name: str  # a second one of this name is refused, which is well
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
    """Look again then, if nothing was heard of the pod."""

    seconds: float


Action = Patch | Event | Count | Wake


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """What to do now; empty means to wait for news of the pod."""

    why: str  # a sentence, for `pyvgpu explain` and the log
    actions: tuple[Action, ...] = ()

    @property
    def patch(self) -> Patch | None:
        """Return the write, of which there is at most one."""
        return next((action for action in self.actions if isinstance(action, Patch)), None)


def patch(pod: pods.Pod, operations: Sequence[Operation]) -> Patch:
    """Return *operations* as a patch of exactly this pod as it was read."""
    return Patch(
        pod.namespace,
        pod.name,
        (
            objects.expect(pod.uid, "metadata", "uid"),
            objects.expect(pod.version, "metadata", "resourceVersion"),
            *operations,
        ),
    )


def set_image(container: pods.Container, image: str) -> list[Operation]:
    """Give *container* another image; the place in the list is tested by the name."""
    path = ("spec", "containers", container.index)
    return [objects.expect(container.name, *path, "name"), objects.put(image, *path, "image")]


def event(pod: pods.Pod, reason: str, message: str, *, warning: bool = False) -> Event:
    """Return an event on *pod*."""
    digest = hashlib.sha256(f"{pod.uid} {reason} {message}".encode()).hexdigest()[:16]
    return Event(f"{pod.name[:200]}.{digest}", warning, reason, message)
