"""Projections of watched objects: only the fields that decisions use.

Of a pod that has ended, only its figures are kept.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

from pyvgpu.controller.sidecar import (
    exit_reports,
    main_completion,
    marking,
    nodes,
    records,
    sidecar_pods,
    termination_methods,
)
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyvgpu.controller.sidecar.controller_settings import SidecarSettings
    from pyvgpu.kube.objects import Object


@dataclasses.dataclass(frozen=True, slots=True)
class Live:
    """A pod that has not ended."""

    pod: sidecar_pods.WatchedPod
    job: str  # the name of its batch Job; empty if it has none


@dataclasses.dataclass(frozen=True, slots=True)
class Over:
    """A pod that has ended."""

    uid: str
    gpus: float
    figures: TerminationMetrics | None


@dataclasses.dataclass(frozen=True, slots=True)
class TerminationMetrics:
    """Observations for the termination metrics; count each pod's uid once."""

    paths: tuple[str, ...]  # the last path of each sidecar, sorted by name
    seconds: float  # from the end of the last main container to that of the last sidecar
    writes: int


def measure_termination(
    pod: sidecar_pods.WatchedPod, policies: Sequence[marking.MarkingPolicy] = ()
) -> TerminationMetrics | None:
    """Return the figures of a finished pod whose sidecars we ended; None for any other."""
    if pod.phase not in main_completion.TERMINAL:
        return None
    marks = marking.mark(pod, policies)
    mains, sidecars = (
        main_completion.last_end(marks.mains),
        main_completion.last_end(marks.sidecars),
    )
    if marks.why_not or mains is None or sidecars is None:
        return None
    record = records.read(pod, mains.isoformat())
    seconds = max((sidecars - mains).total_seconds(), 0.0)
    if record is None or seconds > records.LONGEST_SECONDS:  # a node's clock jumped by years
        return None
    return TerminationMetrics(
        tuple(entry.path.value for _, entry in sorted(record.entries.items())),
        seconds,
        record.step,
    )


def pod(thing: Object, settings: SidecarSettings) -> Live | Over:
    """Project a pod."""
    read = sidecar_pods.read(thing)
    if read.phase in main_completion.TERMINAL:
        return Over(read.uid, read.gpus, measure_termination(read, settings.policies))
    return Live(read, job_of(thing))


def job_of(thing: Object) -> str:
    """Return the name of a pod's batch Job; empty if it has none."""
    for owner in objects.entries(objects.section(thing, "metadata"), "ownerReferences"):
        is_batch = str(owner.get("apiVersion")).startswith("batch/")
        if owner.get("controller") and owner.get("kind") == "Job" and is_batch:
            return str(owner.get("name"))
    return ""


def job(thing: Object, live: Sequence[sidecar_pods.WatchedPod]) -> termination_methods.OwningJob:
    """Project a Job whose unfinished pods are *live*."""
    metadata = objects.section(thing, "metadata")
    limit = objects.section(thing, "spec").get("backoffLimit")
    return termination_methods.OwningJob(
        6 if limit is None else int(limit),
        sum(pod.restarts for pod in live),
        len(live),
        metadata["name"],
        metadata["uid"],
        metadata["resourceVersion"],
    )


def node(thing: Object, settings: SidecarSettings) -> Object:
    """Project a node."""
    metadata, status = objects.section(thing, "metadata"), objects.section(thing, "status")
    labels = objects.section(metadata, "labels")
    images = [
        sys.intern(str(image))
        for entry in objects.entries(status, "images")
        for image in entry.get("names") or ()
    ]
    release = objects.section(status, "nodeInfo").get("kubeletVersion")
    return {
        "metadata": {
            "name": metadata.get("name"),
            "labels": {key: labels[key] for key, _ in settings.virtual.labels if key in labels},
        },
        "spec": {"taints": objects.section(thing, "spec").get("taints")},
        "status": {
            "nodeInfo": {"kubeletVersion": release},
            "images": [{"names": images}],
        },
    }


@dataclasses.dataclass(frozen=True, slots=True)
class NodeLease:
    """A node part's lease."""

    thing: Object
    ended: Mapping[str, exit_reports.ExitReport]  # by namespace/name of the pod

    @property
    def renewed(self) -> str:
        """Its renewTime, by its holder's clock."""
        return str(objects.section(self.thing, "spec").get("renewTime") or "")


def lease(thing: Object) -> NodeLease:
    """Project a lease."""
    annotations = objects.section(thing, "metadata", "annotations")
    kept = (nodes.FAST_EXIT_ANNOTATION, nodes.IMAGES_ANNOTATION)
    wanted = {key: annotations.get(key) for key in kept}
    renewed = objects.section(thing, "spec").get("renewTime")
    return NodeLease(
        {"metadata": {"annotations": wanted}, "spec": {"renewTime": renewed}},
        exit_reports.read(annotations.get(exit_reports.ANNOTATION)),
    )
