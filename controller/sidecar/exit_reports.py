"""Exit reports: the node part tells the controller of ended main containers before kubelet does.

Kubelet polls for ended containers once a second, and handles a pod that it has just polled no
sooner than at the next poll. The container runtime knows at once. So the node part writes the
ended main containers into an annotation of its own lease, and the controller trusts it for pods of
that node, by uid and container ID, until kubelet reports the same.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from typing import TYPE_CHECKING, Any

from pyvgpu import names
from pyvgpu.controller.sidecar import main_completion, marking, node_requests, sidecar_pods

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ANNOTATION = f"{names.DOMAIN}/ended"  # on the lease of a node part


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """How one main container ended."""

    id: str  # as kubelet writes it
    code: int
    at: datetime.datetime  # in whole seconds, as kubelet reports it


@dataclasses.dataclass(frozen=True, slots=True)
class ExitReport:
    """A report that all main containers of a pod are done."""

    uid: str
    mains: Mapping[str, End]


def see(
    pod: sidecar_pods.WatchedPod,
    runtime: Sequence[node_requests.Running],
    policies: Sequence[marking.MarkingPolicy] = (),
) -> ExitReport | None:
    """Return the exit report of a pod by its *runtime* containers; None while it is not done."""
    marks = marking.mark(pod, policies)
    found = {entry.name: entry for entry in runtime}
    if marks.why_not or main_completion.refused(pod) or node_requests.is_kubelets_to_say(pod):
        return None
    if node_requests.not_done(marks, found):
        return None
    ends = {main.name: _end(found[main.name]) for main in marks.mains}
    return ExitReport(pod.uid, {name: end for name, end in ends.items() if end})


def is_news(pod: sidecar_pods.WatchedPod, policies: Sequence[marking.MarkingPolicy] = ()) -> bool:
    """Return whether the controller cannot know yet that the main containers are done."""
    marks = marking.mark(pod, policies)
    return (
        names.STOP_ANNOTATION not in pod.annotations
        and not main_completion.read(pod, marks.mains).done
    )


def believe(pod: sidecar_pods.WatchedPod, claim: ExitReport | None) -> sidecar_pods.WatchedPod:
    """Return *pod* as it will be once kubelet reports what *claim* does.

    A claim must match the pod's uid and the container IDs in its status: all of them, or the claim
    is ignored.
    """
    if claim is None or claim.uid != pod.uid:
        return pod
    containers = []
    for container in pod.containers:
        end = claim.mains.get(container.name)
        if end is None or container.state is sidecar_pods.ContainerState.ENDED:
            containers.append(container)
        elif container.state is sidecar_pods.ContainerState.RUNNING and container.id == end.id:
            ended = {
                "state": sidecar_pods.ContainerState.ENDED,
                "exit_code": end.code,
                "ended_at": end.at,
            }
            containers.append(dataclasses.replace(container, **ended))  # type: ignore[arg-type]
        else:
            return pod
    return dataclasses.replace(pod, containers=tuple(containers))


def write(claims: Mapping[str, ExitReport]) -> str:
    """Format the annotation; *claims* are by namespace/name of the pod."""
    return json.dumps(
        {
            key: {
                "uid": claim.uid,
                "mains": {
                    name: {"id": end.id, "code": end.code, "at": end.at.isoformat()}
                    for name, end in sorted(claim.mains.items())
                },
            }
            for key, claim in sorted(claims.items())
        },
        separators=(",", ":"),
    )


def read(text: str | None) -> dict[str, ExitReport]:
    """Parse an annotation; empty if it is malformed."""
    try:
        document: Any = json.loads(text or "{}")
        return {
            str(key): ExitReport(
                str(entry["uid"]),
                {str(name): _parse(end) for name, end in entry["mains"].items()},
            )
            for key, entry in document.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return {}


def _parse(end: Any) -> End:
    at = datetime.datetime.fromisoformat(end["at"])
    if at.tzinfo is None:
        raise ValueError("a time without a zone")
    return End(str(end["id"]), int(end["code"]), at)


def _end(found: node_requests.Running) -> End | None:
    if found.exit_code is None:
        return None
    at = datetime.datetime.fromtimestamp(int(found.ended_at), datetime.UTC)
    return End(found.id, found.exit_code, at)
