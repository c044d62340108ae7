"""Projection of a pod: only the fields that decisions about its sidecars use.

A pod decoded from the API server takes 50 kB of memory, its projection a few; and a controller
lists ten thousand before it begins. So fields that no decision uses are dropped, and strings that
pods have in common are interned.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from typing import TYPE_CHECKING, Any

from pyvgpu import names
from pyvgpu.controller.sidecar import mark_names
from pyvgpu.kube import objects

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable, Mapping, Sequence

    from pyvgpu.kube.objects import Object

MOST_GRACE_SECONDS = 365 * 86400  # our cap; the API server accepts any number
DEFAULT_GRACE_SECONDS = 30  # the API server's default of terminationGracePeriodSeconds
RESTART_ALL = "RestartAllContainers"  # an action of restartPolicyRules
STATIC = (
    "kubernetes.io/config.mirror",
    "kubernetes.io/config.source",
)  # set by kubelet
_ANNOTATIONS = frozenset(
    {
        names.STOP_ANNOTATION,
        names.SWAP_ANNOTATION,
        names.SWAPPED_ANNOTATION,
        mark_names.BCI_IGNORE,
        *STATIC,
    }
)
_VARIABLES = tuple(
    {name.split("_")[0] for name, _ in mark_names.MARKS}
)  # prefixes of our variables

GPUS: Mapping[str, float] = {  # devices per unit of each resource
    "nvidia.com/gpu": 1,
    names.VCORE_RESOURCE: 0.01,
    "tencent.com/vcuda-core": 0.01,
}


class ContainerState(enum.Enum):
    """A container's state as kubelet last reported it."""

    UNKNOWN = "unknown"  # not reported
    WAITING = "waiting"  # for its image, or for a restart
    RUNNING = "running"
    ENDED = "ended"


@dataclasses.dataclass(frozen=True, slots=True)
class RestartRule:
    """One of a container's restartPolicyRules (Kubernetes 1.34 and later)."""

    action: str  # Restart or RestartAllContainers
    operator: str  # In or NotIn
    codes: frozenset[int]

    def matches(self, code: int) -> bool:
        """Return whether the rule applies to exit *code*."""
        if self.operator == "In":
            return code in self.codes
        return self.operator == "NotIn" and code not in self.codes


@dataclasses.dataclass(frozen=True, slots=True)
class ObservedContainer:
    """One of spec.containers with its status."""

    index: int  # in spec.containers
    name: str
    image: str
    command: tuple[str, ...]  # argv[0] alone, if there is one
    environment: Mapping[str, str | None]  # variables about sidecars; None: not a literal
    program_annotation: str | None  # the annotation that argv[0] is read from
    pull_policy: str
    restart_policy: str  # its own, else the pod's
    restart_rules: tuple[RestartRule, ...]
    state: ContainerState
    id: str  # kubelet's containerID; empty before the first start
    exit_code: int | None  # of the last run; None while running
    ended_at: datetime.datetime | None
    restarts: int
    waits_for: str  # kubelet's reason, such as ImagePullBackOff
    argument_bytes: int = 0  # size of our annotations that hold its arguments after argv[0]

    def will_restart(self, code: int) -> bool:
        """Return whether kubelet restarts it after exit *code*.

        As in kubelet, the first rule that matches decides, then the policy. For a rule whose
        action kubelet does not know, or has disabled, the policy decides; we assume that
        RestartAllContainers is enabled, because then we only wait longer.
        """
        rule = next((rule for rule in self.restart_rules if rule.matches(code)), None)
        if rule is not None and rule.action in ("Restart", RESTART_ALL):
            return True
        if self.restart_policy == "OnFailure":
            return code != 0
        return self.restart_policy != "Never"

    @property
    def ended_for_good(self) -> bool:
        """Whether it has ended and kubelet will not restart it."""
        return (
            self.state is ContainerState.ENDED
            and self.exit_code is not None
            and not self.will_restart(self.exit_code)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class WatchedPod:
    """A pod at one resourceVersion."""

    namespace: str
    name: str
    uid: str
    version: str  # metadata.resourceVersion
    node: str  # empty: not scheduled
    phase: str
    restart_policy: str
    grace_seconds: int
    deleted: bool
    static: bool  # defined by a file on the node; the API object is its mirror
    conditions: frozenset[str]  # the types of the true ones
    labels: Mapping[str, str]
    annotations: Mapping[str, str]  # all keys; values that no decision reads are empty
    containers: tuple[ObservedContainer, ...]
    gpus: float = 0.0  # sum over its containers
    annotation_bytes: int = 0  # of all annotations
    deletion_seconds: int = 0  # grace period of its deletion, which may be shorter than its own
    init_restarts: int = 0  # of its init containers, including native sidecars
    restarts_all: bool = False  # the end of one of its containers may restart all of them

    @property
    def restarts(self) -> int:
        """The restarts of all its containers, which its Job counts."""
        return self.init_restarts + sum(entry.restarts for entry in self.containers)

    def container(self, name: str) -> ObservedContainer | None:
        """Return the container called *name*."""
        return next((entry for entry in self.containers if entry.name == name), None)

    def arguments_of(self, container: ObservedContainer) -> list[str]:
        """Return the keys of our annotations that hold its arguments after argv[0]."""
        return _arguments(container.program_annotation, self.annotations)

    def has_room(self, more_bytes: int) -> bool:
        """Return whether the API server accepts *more_bytes* more annotation bytes."""
        return self.annotation_bytes + more_bytes <= objects.MOST_ANNOTATION_BYTES


def outside(namespaces: Iterable[str]) -> list[str]:
    """Return field selectors for pods that are in none of *namespaces*."""
    return [f"metadata.namespace!={namespace}" for namespace in namespaces]


def read(pod: Object) -> WatchedPod:
    """Project a pod object."""
    metadata, spec, status = (
        objects.section(pod, part) for part in ("metadata", "spec", "status")
    )
    annotations = objects.section(metadata, "annotations")
    specs = objects.entries(spec, "containers")
    statuses = {entry.get("name"): entry for entry in objects.entries(status, "containerStatuses")}
    policy = _text(spec, "restartPolicy") or "Always"
    containers = tuple(
        read_container(index, entry, statuses.get(entry.get("name"), {}), policy, annotations)
        for index, entry in enumerate(specs)
    )
    wanted = _ANNOTATIONS.union([entry.program_annotation for entry in containers])
    grace = spec.get("terminationGracePeriodSeconds")
    own_seconds = DEFAULT_GRACE_SECONDS if grace is None else _grace(grace)
    granted = metadata.get("deletionGracePeriodSeconds")
    return WatchedPod(
        namespace=_text(metadata, "namespace"),
        name=metadata.get("name") or "",
        uid=metadata.get("uid") or "",
        version=metadata.get("resourceVersion") or "",
        node=_text(spec, "nodeName"),
        phase=_text(status, "phase") or "Pending",
        restart_policy=policy,
        grace_seconds=own_seconds,
        deleted=bool(metadata.get("deletionTimestamp")),
        static=STATIC[0] in annotations or annotations.get(STATIC[1], "api") != "api",
        conditions=frozenset(
            entry["type"]
            for entry in objects.entries(status, "conditions")
            if entry.get("status") == "True"
        ),
        labels={
            sys.intern(key): text for key, text in objects.section(metadata, "labels").items()
        },
        annotations={
            sys.intern(key): text if key in wanted else "" for key, text in annotations.items()
        },
        containers=containers,
        gpus=_gpus(specs),
        annotation_bytes=objects.annotation_bytes(annotations),
        deletion_seconds=own_seconds if granted is None else _grace(granted),
        init_restarts=sum(
            int(entry.get("restartCount") or 0)
            for entry in objects.entries(status, "initContainerStatuses")
        ),
        restarts_all=any(
            rule.get("action") == RESTART_ALL
            for entry in (*specs, *objects.entries(spec, "initContainers"))
            for rule in objects.entries(entry, "restartPolicyRules")
        ),
    )


def read_container(
    index: int, spec: Object, status: Object, pod_policy: str, annotations: Object | None = None
) -> ObservedContainer:
    """Project one of spec.containers and its status; *annotations* are the pod's."""
    now, before = objects.section(status, "state"), objects.section(status, "lastState")
    state = _state(now)
    ended = (
        objects.section(now, "terminated")
        if state is ContainerState.ENDED
        else objects.section(before, "terminated")
        if state is ContainerState.WAITING
        else {}
    )
    own_policy = _text(spec, "restartPolicy")
    command = tuple(map(sys.intern, objects.words(spec, "command")[:1]))
    variables = objects.entries(spec, "env")
    ours = [one for one in variables if (one.get("name") or "").upper().startswith(_VARIABLES)]
    program = _program_annotation(command, variables)
    there = annotations or {}
    return ObservedContainer(
        index=index,
        name=_text(spec, "name"),
        image=_text(spec, "image"),
        command=command,
        environment={
            sys.intern(name): text and sys.intern(text)
            for name, text in environment_of(ours).items()
        },
        program_annotation=program,
        pull_policy=_text(spec, "imagePullPolicy") or "IfNotPresent",
        restart_policy=own_policy or pod_policy,
        # kubelet reads rules only of a container that has its own policy
        restart_rules=_rules(spec) if own_policy else (),
        state=state,
        id=status.get("containerID") or "",
        exit_code=ended.get("exitCode"),
        ended_at=objects.time_of(ended.get("finishedAt")),
        restarts=int(status.get("restartCount") or 0),
        waits_for=_text(objects.section(now, "waiting"), "reason"),
        argument_bytes=objects.annotation_bytes(
            {key: there[key] for key in _arguments(program, there)}
        ),
    )


def _text(parent: Object, name: str) -> str:
    """Return an interned text; empty if it is missing."""
    return sys.intern(parent.get(name) or "")


def _grace(seconds: Any) -> int:
    return min(max(int(seconds), 0), MOST_GRACE_SECONDS)


def _arguments(program: str | None, annotations: Object) -> list[str]:
    if not program or not program.startswith(f"{names.START_COMMAND_ANNOTATION}."):
        return []
    pieces = program.rpartition(".")[0] + "."
    return [key for key in annotations if key.startswith(pieces) and key != program]


def environment_of(variables: Sequence[Object]) -> dict[str, str | None]:
    """Return the literal values of *variables*; the last of equal names wins, as in kubelet."""
    return {
        entry.get("name") or "": None if "valueFrom" in entry else entry.get("value") or ""
        for entry in variables
    }


def annotation_of(variable: Object) -> str | None:
    """Return the annotation that a variable takes its value from, if any."""
    path = objects.section(variable, "valueFrom", "fieldRef").get("fieldPath") or ""
    if path.startswith("metadata.annotations['") and path.endswith("']"):
        return str(path[len("metadata.annotations['") : -2])
    return None


def _program_annotation(command: Sequence[str], variables: Sequence[Object]) -> str | None:
    """Return the annotation that argv[0] is read from, if it is exactly one reference."""
    if not command or not command[0].startswith("$(") or not command[0].endswith(")"):
        return None
    named = [entry for entry in variables if entry.get("name") == command[0][2:-1]]
    return annotation_of(named[-1]) if named else None


def _gpus(containers: Sequence[Object]) -> float:
    """Return how many devices the containers hold; amounts that are not plain numbers are 0."""
    held = [
        share * int(amount)
        for container in containers
        if (limits := objects.section(container, "resources", "limits"))
        for name, share in GPUS.items()
        if (amount := str(limits.get(name))).isdecimal()
    ]
    return round(sum(held), 2)


def _rules(spec: Object) -> tuple[RestartRule, ...]:
    rules = []
    for entry in objects.entries(spec, "restartPolicyRules"):
        exits = objects.section(entry, "exitCodes")
        if exits:
            codes = frozenset(int(code) for code in exits.get("values") or ())
            rules.append(
                RestartRule(entry.get("action") or "", exits.get("operator") or "", codes)
            )
    return tuple(rules)


def _state(now: Object) -> ContainerState:
    for name, state in (
        ("running", ContainerState.RUNNING),
        ("terminated", ContainerState.ENDED),
        ("waiting", ContainerState.WAITING),
    ):
        if now.get(name) is not None:
            return state
    return ContainerState.UNKNOWN
