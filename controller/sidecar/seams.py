"""What the pure half needs of the world, for the shells that carry out its decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyvgpu.controller.objects import Object
    from pyvgpu.controller.sidecar import actions, node


class Api(Protocol):
    """The API server, as the controller uses it."""

    def watch_pods(self) -> Iterator[Object]:
        """Yield pods with our label as they come and change, after a list of them all."""

    def patch(self, patch: actions.Patch) -> int:
        """Send a JSON patch, and return the status: 200, 404, 409 or 422, others raise."""

    def create_event(self, pod: Object, event: actions.Event) -> None:
        """Create an event; one of its name that is there already is well."""


class Runtime(Protocol):
    """The container runtime of a node, as the node part uses it."""

    def containers(self, uid: str) -> Sequence[node.Running]:
        """Return the newest container of each name in a pod."""

    def stop(self, stop: node.Stop) -> None:
        """Begin to stop a container; one that has ended or is gone is well.

        Asked again for the same id it does nothing: what was begun is written to a file first, so
        that a command or a preStop hook never runs twice.
        """

    def replacing(self, uid: str) -> frozenset[str]:
        """Return the ids that kubelet said it kills: ``Killing``, "definition changed".

        The event has the name of the container; it means the id that ran when it was made.
        """

    def has_image(self, image: str) -> bool:
        """Tell whether the node has an image."""


class Counters(Protocol):
    """Where figures go."""

    def add(self, count: actions.Count) -> None:
        """Add one, unless its key was counted."""
