"""Swap a marked container's image in a running pod on request, and restore the old one.

A user requests it by the annotation ``pyvgpu.io/swap``: ``{"log": {"image": "shipper:2"}}``, with
``"program": "/bin/shipper"`` if argv[0] must change, too. Kubelet restarts the container with the
new image; the pod stays. Removing the request restores the old image, which is kept in
``pyvgpu.io/swapped``, written in the same patch as the image.

Kubelet ends the old container before it pulls the new image. So a running container is swapped
only when the image is known to be on its node. That holds for restoring, too, because kubelet may
have removed the old image. ``"pull": true`` allows kubelet to pull either.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

from pyvgpu import names
from pyvgpu.controller.sidecar import actions, main_completion
from pyvgpu.controller.sidecar.sidecar_pods import ContainerState
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu.controller.sidecar import marking, nodes, sidecar_pods
    from pyvgpu.kube.objects import Operation

_NAME = re.compile("[!-~]+")  # the API server rejects blanks, registries other characters
_POLL_SECONDS = 1.0  # until the node part has checked an image
_AGAIN_SECONDS = 10.0  # before checking a missing image again


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """The image and program of a container."""

    image: str
    program: str | None = None  # argv[0]; None: unchanged
    pull: bool = False  # kubelet may pull it after the old container has ended


def asked_for(pod: sidecar_pods.WatchedPod) -> frozenset[str]:
    """Return the images of the pod's valid swap requests, and those to be restored."""
    found: set[str] = set()
    for read in (_requested, _originals):
        with contextlib.suppress(ValueError):
            found |= {image.image for image in read(pod).values()}
    return frozenset(found)


def reconcile(
    pod: sidecar_pods.WatchedPod, marks: marking.Marking, node: nodes.NodeState
) -> actions.Decision | None:
    """Decide what to swap in *pod* on *node*; None if nothing was requested."""
    if not (
        names.SWAP_ANNOTATION in pod.annotations or names.SWAPPED_ANNOTATION in pod.annotations
    ):
        return None
    if pod.deleted or pod.static or pod.phase in main_completion.TERMINAL:
        return None
    try:
        wanted = _requested(pod)
    except ValueError as exc:
        return _refuse(pod, str(exc))
    try:
        kept = _originals(pod)
    except ValueError:
        kept = {}  # malformed: nothing can be restored
    marked = {entry.name: entry for entry in marks.sidecars}
    for name, image in wanted.items():
        if name not in marked:
            return _refuse(pod, f"{name!r} is not a container that is marked as a sidecar")
        if image.program is not None and not marked[name].program_annotation:
            return _refuse(
                pod, f"the program of {name!r} was not transformed, so it cannot be replaced"
            )
    targets = {name: image for name, image in {**kept, **wanted}.items() if name in marked}
    for name, image in targets.items():
        if found := _keep_from(pod, marked[name], image, node):
            return found
    return _swap(pod, marked, wanted, kept)


def _keep_from(
    pod: sidecar_pods.WatchedPod,
    container: sidecar_pods.ObservedContainer,
    target: Image,
    node: nodes.NodeState,
) -> actions.Decision | None:
    """Return the decision that defers a swap while *target* may be missing on the node."""
    if (
        container.image == target.image
        or target.pull
        or container.state is not ContainerState.RUNNING
    ):
        return None
    if node.virtual and node.pulls_fast_exit:
        return None
    here = node.images.get(target.image)
    if container.pull_policy == "Always":
        why = f"the imagePullPolicy of {container.name!r} is Always"
    elif here:
        return None
    elif here is None and node.live:
        why = f"the node part has not reported yet whether {target.image} is on {node.name}"
        return actions.Decision(why, (actions.Wake(_POLL_SECONDS),))
    else:
        why = f"{target.image} is not known to be on {node.name or 'its node'}"
    refused = _refuse(
        pod,
        f"{why}, and the sidecar would be ended before that image is pulled; "
        '"pull": true allows it',
    )
    return dataclasses.replace(refused, actions=(*refused.actions, actions.Wake(_AGAIN_SECONDS)))


def _swap(
    pod: sidecar_pods.WatchedPod,
    marked: Mapping[str, sidecar_pods.ObservedContainer],
    wanted: Mapping[str, Image],
    kept: Mapping[str, Image],
) -> actions.Decision | None:
    keep = dict(kept)
    said: list[str] = []
    operations: list[Operation] = []
    changes: dict[str, str | None] = {}
    for name, container in marked.items():
        target = wanted.get(name) or kept.get(name)
        if target is None:
            continue
        now = Image(container.image, _program(pod, container))
        if name in wanted:
            first = keep.setdefault(name, now)
            keep[name] = dataclasses.replace(first, pull=first.pull or target.pull)
        else:
            del keep[name]
        if target.image != now.image:
            operations += actions.set_image(container, target.image)
            said.append(f"{name} gets {target.image} for {now.image}")
        if target.program is not None and container.program_annotation:
            changes[container.program_annotation] = target.program
    changes[names.SWAPPED_ANNOTATION] = _write(keep) if keep else None
    operations += objects.annotate(pod.annotations, changes)
    if not operations:
        return None
    before = {key: pod.annotations[key] for key in changes if key in pod.annotations}
    after = {key: text for key, text in changes.items() if text is not None}
    if not pod.has_room(objects.annotation_bytes(after) - objects.annotation_bytes(before)):
        return _refuse(pod, "the pod's annotations have no room for the image to restore")
    why = "; ".join(said) or "recorded the image to restore"
    return actions.Decision(
        why,
        (
            actions.patch(pod, operations),
            actions.Count("swaps_total", {}, f"{pod.uid} {pod.version}"),
            actions.event(pod, "SidecarSwapped", why),
        ),
    )


def _program(
    pod: sidecar_pods.WatchedPod, container: sidecar_pods.ObservedContainer
) -> str | None:
    annotation = container.program_annotation
    return pod.annotations.get(annotation) if annotation else None


def _refuse(pod: sidecar_pods.WatchedPod, why: str) -> actions.Decision:
    message = f"{names.SWAP_ANNOTATION}: {why}; " + (
        'a valid request is {"log": {"image": "shipper:2"}}'
    )
    return actions.Decision(message, (actions.event(pod, "SwapRefused", message, warning=True),))


def _requested(pod: sidecar_pods.WatchedPod) -> dict[str, Image]:
    """Return a user's request; a field with a wrong name is an error."""
    return _read(pod.annotations.get(names.SWAP_ANNOTATION), lambda entry: Image(**entry))


def _originals(pod: sidecar_pods.WatchedPod) -> dict[str, Image]:
    """Return the images to be restored, as this or another version has written them."""
    return _read(pod.annotations.get(names.SWAPPED_ANNOTATION), _known)


def _known(entry: Any) -> Image:
    return Image(**{name: entry[name] for name in Image.__slots__ if name in entry})


def _read(text: str | None, parse: Callable[[Any], Image]) -> dict[str, Image]:
    try:
        document: Any = json.loads(text) if text else {}
        if not isinstance(document, dict):
            raise ValueError("must be a JSON object")
        found = {}
        for name, entry in document.items():
            image = parse(entry)
            if not isinstance(image.image, str) or not _NAME.fullmatch(image.image):
                raise ValueError(f"the image of {name!r} must be a name")
            if image.program is not None and not _is_path(image.program):
                raise ValueError(f"the program of {name!r} must be a path")
            if not isinstance(image.pull, bool):
                raise ValueError(f"the pull of {name!r} must be true or false")
            found[name] = image
    except RecursionError as exc:
        raise ValueError("is nested too deeply") from exc
    except TypeError as exc:
        raise ValueError(
            "must have an image for each container, and may have a program and a pull"
        ) from exc
    return found


def _is_path(program: Any) -> bool:
    """Return whether an environment variable can hold it; JSON allows lone surrogates."""
    return isinstance(program, str) and not re.search("[\0\ud800-\udfff]", program)


def _write(kept: Mapping[str, Image]) -> str:
    return json.dumps({name: _entry(image) for name, image in sorted(kept.items())})


def _entry(image: Image) -> dict[str, Any]:
    program = {} if image.program is None else {"program": image.program}
    return {"image": image.image} | program | ({"pull": True} if image.pull else {})
