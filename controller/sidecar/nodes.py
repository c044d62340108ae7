"""Node facts for the decision: virtual or not, node part alive, images present."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING

from pyvgpu.kube import objects

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable, Mapping

    from pyvgpu.controller.sidecar.controller_settings import SidecarSettings
    from pyvgpu.kube.objects import Object

Release = tuple[int, int]

FAST_EXIT_ANNOTATION = "pyvgpu.io/fast-exit-image"  # on the lease: the image, if the node has it
IMAGES_ANNOTATION = "pyvgpu.io/images"  # on the lease: {requested image: is it on the node}

# How long a dead node part's report of an image counts: kubelet removes unused images.
_KEPT_SECONDS = 86_400


@dataclasses.dataclass(frozen=True, slots=True)
class NodeState:
    """The state of a node."""

    name: str
    virtual: bool  # without a container runtime that we can reach
    live: bool  # our node part renews its lease
    kubelet: Release | None
    has_fast_exit: bool  # it has the image, so a swap needs no registry
    pulls_fast_exit: bool  # it can pull the image from a registry
    # Whether images are present, if known: a node's status lists only its largest images, our
    # node part reports those that swaps request.
    images: Mapping[str, bool] = dataclasses.field(default_factory=dict)


class Beats:
    """When leases were last renewed, by our own clock: a node's clock may be hours off."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, float | None]] = {}  # renewTime, when it changed

    def observe(self, lease: str, renewed: str | None, at_seconds: float) -> None:
        """Record a lease's renewTime, which is by its holder's clock; None: it was deleted."""
        before, seen = self._known.get(lease, (renewed, None))
        if renewed is None:
            self._known.pop(lease, None)
        else:
            self._known[lease] = renewed, at_seconds if renewed != before else seen

    def quiet(self, seconds: float, at_seconds: float) -> list[str]:
        """Return the leases that were not seen to be renewed within so many *seconds*."""
        return [
            lease
            for lease, (_, seen) in list(self._known.items())
            if seen is None or seen + seconds < at_seconds
        ]

    def age(self, lease: str, at_seconds: float) -> float | None:
        """Return how long ago *lease* was seen to be renewed; None if never."""
        seen = self._known.get(lease, ("", None))[1]
        return None if seen is None else at_seconds - seen


def read(
    node: Object,
    lease: Object | None,
    now: datetime.datetime,
    settings: SidecarSettings,
    age_seconds: float | None = None,
) -> NodeState:
    """Read a node and its node part's lease (None: it has none).

    *age_seconds* is how long ago the renewal was seen; without it, renewTime is compared to *now*.
    """
    metadata, spec, status = (objects.section(node, key) for key in ("metadata", "spec", "status"))
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
    reported = objects.section(lease or {}, "metadata", "annotations")
    return NodeState(
        name=str(metadata.get("name") or ""),
        virtual=virtual,
        live=live and not virtual,
        kubelet=read_release(str(objects.section(status, "nodeInfo").get("kubeletVersion") or "")),
        has_fast_exit=not virtual
        and (
            wanted in images
            or (
                reported.get(FAST_EXIT_ANNOTATION) == wanted
                and age is not None
                and age <= _KEPT_SECONDS
            )
        ),
        pulls_fast_exit=virtual and settings.virtual.pulls,
        images=dict.fromkeys(images, True)
        | (read_images(reported.get(IMAGES_ANNOTATION)) if live else {}),
    )


def read_images(text: str | None) -> dict[str, bool]:
    """Parse a node part's report of images; empty if it is malformed."""
    try:
        said = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(said, dict):
        return {}
    return {image: here for image, here in said.items() if isinstance(here, bool)}


def absent(name: str) -> NodeState:
    """Return a node whose object was deleted, with nothing known about it."""
    return NodeState(
        name,
        virtual=False,
        live=False,
        kubelet=None,
        has_fast_exit=False,
        pulls_fast_exit=False,
    )


def oldest(found: Iterable[NodeState]) -> Release | None:
    """Return the oldest kubelet release among real nodes; None if any is unknown."""
    releases = [node.kubelet for node in found if not node.virtual]
    known = [release for release in releases if release is not None]
    return min(known) if known and len(known) == len(releases) else None


def is_virtual(labels: Object, taints: tuple[str, ...], settings: SidecarSettings) -> bool:
    """Return whether a node with these labels and taint keys is virtual."""
    known = settings.virtual
    return any(labels.get(key) == value for key, value in known.labels) or any(
        taint.startswith(prefix) for taint in taints for prefix in known.taint_prefixes
    )


def read_release(text: str) -> Release | None:
    """Return (1, 36) for ``v1.36.3+vendor``."""
    match = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def age_of(lease: Object | None, now: datetime.datetime) -> float | None:
    """Return the seconds between a lease's renewTime and *now*; None if it was never renewed.

    A renewTime in the future counts by its distance, too: it shows how far the clocks differ.
    """
    renewed = objects.time_of(objects.section(lease or {}, "spec").get("renewTime"))
    return None if renewed is None else abs((now - renewed).total_seconds())
