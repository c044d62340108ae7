"""What of a node decides how a sidecar ends: is it a machine, does our part live there."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from typing import TYPE_CHECKING

from pyvgpu.controller import objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyvgpu.controller.objects import Object
    from pyvgpu.controller.sidecar.settings import Settings

Release = tuple[int, int]

FAST_EXIT_ANNOTATION = "pyvgpu.io/fast-exit-image"  # on the lease: the image that the node has
IMAGES_ANNOTATION = "pyvgpu.io/images"  # and: {image that a swap asks for: is it here}

# How long the word of a node part that is gone counts: kubelet removes images that nobody uses.
_KEPT_SECONDS = 86_400


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A node at one moment."""

    name: str
    virtual: bool  # no container runtime of ours behind it
    live: bool  # our node part has renewed its lease
    kubelet: Release | None
    has_fast_exit: bool  # the image is there, so that a swap needs no registry
    pulls_fast_exit: bool  # it can be had from a registry
    # What is known to be there or not to be: a node tells of its largest images alone, our node
    # part of those that are asked for.
    images: Mapping[str, bool] = dataclasses.field(default_factory=dict)


class Beats:
    """When leases were last seen to be renewed, by a clock of ours: a node's may be hours off."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, float | None]] = {}  # what was renewed, and when we saw

    def hear(self, lease: str, renewed: str | None, at_seconds: float) -> None:
        """Note that *lease* was *renewed* then by its holder's clock; None: it is gone."""
        before, seen = self._known.get(lease, (renewed, None))
        if renewed is None:
            self._known.pop(lease, None)
        else:
            self._known[lease] = renewed, at_seconds if renewed != before else seen

    def age(self, lease: str, at_seconds: float) -> float | None:
        """Return how long ago *lease* was renewed, None if that was never seen."""
        seen = self._known.get(lease, ("", None))[1]
        return None if seen is None else at_seconds - seen


def read(
    node: Object,
    lease: Object | None,
    now: datetime.datetime,
    settings: Settings,
    age_seconds: float | None = None,
) -> Node:
    """Read a node, and the lease that its node part renews (None: there is none).

    *age_seconds* is how long ago it was seen to be renewed; without it the clocks are compared.
    """
    metadata, spec, status = (objects.section(node, it) for it in ("metadata", "spec", "status"))
    virtual = is_virtual(
        objects.section(metadata, "labels"),
        tuple(str(taint.get("key")) for taint in objects.entries(spec, "taints")),
        settings,
    )
    age = age_of(lease, now) if age_seconds is None else age_seconds
    live = age is not None and age <= settings.lease_seconds
    wanted = settings.fast_exit.image
    images = {
        image for entry in objects.entries(status, "images") for image in entry.get("names") or ()
    }
    told = objects.section(lease or {}, "metadata", "annotations")
    return Node(
        name=str(metadata.get("name") or ""),
        virtual=virtual,
        live=live and not virtual,
        kubelet=read_release(str(objects.section(status, "nodeInfo").get("kubeletVersion") or "")),
        has_fast_exit=not virtual
        and (
            wanted in images
            or (
                told.get(FAST_EXIT_ANNOTATION) == wanted
                and age is not None
                and age <= _KEPT_SECONDS
            )
        ),
        pulls_fast_exit=virtual and settings.virtual.pulls,
        images=dict.fromkeys(images, True)
        | (read_images(told.get(IMAGES_ANNOTATION)) if live else {}),
    )


def read_images(text: str | None) -> dict[str, bool]:
    """Return what a node part says of images, nothing if it is not ours."""
    try:
        said = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(said, dict):
        return {}
    return {image: here for image, here in said.items() if isinstance(here, bool)}


def absent(name: str) -> Node:
    """Return a node of which nothing is known, for its object is gone."""
    return Node(
        name,
        virtual=False,
        live=False,
        kubelet=None,
        has_fast_exit=False,
        pulls_fast_exit=False,
    )


def oldest(found: Iterable[Node]) -> Release | None:
    """Return the oldest kubelet among nodes that are machines; None if one's is not known."""
    releases = [node.kubelet for node in found if not node.virtual]
    known = [release for release in releases if release is not None]
    return min(known) if known and len(known) == len(releases) else None


def is_virtual(labels: Object, taints: tuple[str, ...], settings: Settings) -> bool:
    """Tell whether a node with these labels and keys of taints is a virtual one."""
    known = settings.virtual
    return any(labels.get(key) == value for key, value in known.labels) or any(
        taint.startswith(prefix) for taint in taints for prefix in known.taint_prefixes
    )


def read_release(text: str) -> Release | None:
    """Return (1, 36) for ``v1.36.3+vendor``."""
    match = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def age_of(lease: Object | None, now: datetime.datetime) -> float | None:
    """Return the seconds since a lease was renewed, by both clocks; None if it never was.

    One that is renewed in the future says nothing of its age but how far the clocks are apart.
    """
    renewed = objects.section(lease or {}, "spec").get("renewTime")
    if not renewed:
        return None
    return abs((now - datetime.datetime.fromisoformat(str(renewed))).total_seconds())
