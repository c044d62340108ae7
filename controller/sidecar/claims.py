"""What a node part says of pods whose main containers have ended, before kubelet says so.

Kubelet looks for containers that have ended once a second, and acts on a pod that it has just
looked at no sooner than at its next look. The container runtime knows at once. So the node part
writes into the annotation of its own lease which main containers have ended, and the controller
takes its word for pods of that node, by uid and container id, until kubelet says the same.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from typing import TYPE_CHECKING, Any

from pyvgpu import names
from pyvgpu.controller.sidecar import marking, node, pods, when

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ANNOTATION = f"{names.DOMAIN}/ended"  # on the lease of a node part


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """How one main container ended."""

    id: str  # as kubelet writes it
    code: int
    at: datetime.datetime  # in whole seconds, as kubelet says it


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """That all main containers of a pod are done."""

    uid: str
    mains: Mapping[str, End]


def see(
    pod: pods.Pod, runtime: Sequence[node.Running], policies: Sequence[marking.Policy] = ()
) -> Claim | None:
    """Return what the container *runtime* says of a pod, None while its work is not done."""
    marks = marking.mark(pod, policies)
    found = {entry.name: entry for entry in runtime}
    if marks.why_not or when.refused(pod) or node.is_kubelets_to_say(pod):
        return None
    if node.not_done(marks, found):
        return None
    ends = {main.name: _end(found[main.name]) for main in marks.mains}
    return Claim(pod.uid, {name: end for name, end in ends.items() if end})


def is_news(pod: pods.Pod, policies: Sequence[marking.Policy] = ()) -> bool:
    """Tell whether the controller does not know yet that the work of *pod* is done."""
    marks = marking.mark(pod, policies)
    return names.STOP_ANNOTATION not in pod.annotations and not when.look(pod, marks.mains).done


def believe(pod: pods.Pod, claim: Claim | None) -> pods.Pod:
    """Return *pod* as it will be when kubelet, too, says what *claim* does.

    A claim holds for the pod and the containers that kubelet speaks of, all of them or none.
    """
    if claim is None or claim.uid != pod.uid:
        return pod
    containers = []
    for container in pod.containers:
        end = claim.mains.get(container.name)
        if end is None or container.state is pods.State.ENDED:
            containers.append(container)
        elif container.state is pods.State.RUNNING and container.id == end.id:
            ended = {"state": pods.State.ENDED, "exit_code": end.code, "ended_at": end.at}
            containers.append(dataclasses.replace(container, **ended))  # type: ignore[arg-type]
        else:
            return pod
    return dataclasses.replace(pod, containers=tuple(containers))


def write(claims: Mapping[str, Claim]) -> str:
    """Return the text of the annotation; claims are by namespace/name."""
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


def read(text: str | None) -> dict[str, Claim]:
    """Return the claims in the text of an annotation, none if it is not ours."""
    try:
        document: Any = json.loads(text or "{}")
        return {
            str(key): Claim(
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


def _end(found: node.Running) -> End | None:
    if found.exit_code is None:
        return None
    at = datetime.datetime.fromtimestamp(int(found.ended_at), datetime.UTC)
    return End(found.id, found.exit_code, at)
