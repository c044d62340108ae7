"""Transform a new pod with marked sidecars; it is never refused for them.

In this order: annotations that only a controller may write are removed; the argv of sidecars that
are not converted moves into annotations; the switch of a virtual node's provider is set; the pod
gets the label by which the controllers find it; and in namespaces that opt in, sidecars become
native ones. A step that is impossible is skipped, and its reason is returned as a warning.
"""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
import hashlib
import json
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller.sidecar import mark_names, marking, sidecar_pods, termination_methods
from pyvgpu.controller.sidecar.controller_settings import SidecarSettings
from pyvgpu.controller.webhook import argv, drafts, review
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyvgpu.controller.sidecar.nodes import Release
    from pyvgpu.kube.objects import Object, Operation

KEPT_FREE_BYTES = 16 * 1024  # reserved for annotations written later

MANAGED = {names.SIDECAR_LABEL: names.SIDECAR_MANAGED}
OURS_ALONE = (names.STOP_ANNOTATION, names.SWAPPED_ANNOTATION)  # which users may not write
NATIVE_SINCE = (1, 29)  # enabled by default; an older kubelet restarts it for ever
LAUNCH_VOLUME = "pyvgpu-launch"
ARGV_VOLUME = "pyvgpu-argv"
LAUNCH_FOLDER = "/pyvgpu/launch"
ARGV_FOLDER = "/pyvgpu/argv"


class Expansion(enum.Enum):
    """How virtual nodes expand ``$(NAME)`` in commands."""

    KUBELET = "kubelet"  # the provider expands like kubelet
    LAUNCHER = "launcher"  # no expansion, but volumes: our launcher starts the sidecar
    NONE = "none"  # unknown: leave commands unchanged


class Provider(enum.Enum):
    """The provider whose sidecar switch virtual nodes have."""

    NONE = "none"
    ECI = "eci"  # Alibaba's elastic container instances: variables of the container
    BCI = "bci"  # Baidu's: an annotation of the pod


@dataclasses.dataclass(frozen=True, slots=True)
class Admission:
    """The webhook's settings for pods with sidecars."""

    settings: SidecarSettings = dataclasses.field(default_factory=SidecarSettings)
    native_namespaces: tuple[str, ...] = ()  # patterns; sidecars are converted to native there
    oldest_kubelet: Release | None = None
    virtual_expansion: Expansion = Expansion.NONE
    virtual_provider: Provider = Provider.NONE


@dataclasses.dataclass(frozen=True, slots=True)
class Transformed:
    """The patch (empty: leave the pod unchanged), and warnings for the client."""

    operations: tuple[Operation, ...]
    warnings: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class NativeSidecars:
    """The sidecars to convert to native ones, in start order; and why others stay.

    Native sidecars are init containers with restartPolicy Always. Kubelet ends those itself after
    the main containers, and ignores their exit codes. But main containers start only after a
    native sidecar has started, including its startupProbe and postStart hook; a sidecar that waits
    for a main container would deadlock. So a sidecar that may depend on a main container stays.
    """

    moves: tuple[sidecar_pods.ObservedContainer, ...]
    why_not: Mapping[str, str]


def transform(pod: Object, namespace: str, admission: Admission) -> Transformed:
    """Transform a pod that is being created in *namespace*; it may have no name yet."""
    read = dataclasses.replace(sidecar_pods.read(pod), namespace=namespace)
    marks = marking.mark(read, admission.settings.policies)
    draft = drafts.Draft(pod)
    for key in OURS_ALONE:
        if key in read.annotations:
            draft.remove("metadata", "annotations", key)
    if read.labels.get(names.SIDECAR_LABEL, names.SIDECAR_MANAGED) != names.SIDECAR_MANAGED:
        return Transformed(tuple(draft.operations), ())  # its user opted out
    if marks.why_not:
        if marks.sidecars and not marking.another(read):
            draft.set_entries(MANAGED, "metadata", "labels")  # for swaps that a user requests
        notes = (f"sidecars are not ended: {marks.why_not}",) if marks.sidecars else ()
        return Transformed(tuple(draft.operations), (*marks.warnings, *notes))
    return _Transformation(draft, read, marks, admission).run()


def mutation(
    admission: Admission, oldest_kubelet: Callable[[], Release | None]
) -> review.Mutation:
    """Return the mutation of new pods; it calls *oldest_kubelet* for each request."""

    def mutate(request: review.AdmissionRequest) -> review.Review:
        if (request.resource, request.operation) != ("pods", "CREATE"):
            return review.Review()
        now = dataclasses.replace(admission, oldest_kubelet=oldest_kubelet())
        done = transform(request.thing, request.namespace, now)
        return review.Review(done.operations, done.warnings)

    return mutate


class _Transformation:
    """The transformation of one pod."""

    def __init__(
        self,
        draft: drafts.Draft,
        read: sidecar_pods.WatchedPod,
        marks: marking.Marking,
        admission: Admission,
    ) -> None:
        self._draft = draft
        self._specs = draft.document["spec"]["containers"]
        self._read = read
        self._marks = marks
        self._admission = admission
        self._warnings = list(marks.warnings)
        self._room = objects.MOST_ANNOTATION_BYTES - KEPT_FREE_BYTES - read.annotation_bytes
        self._maybe_virtual = _tolerates_virtual(draft.document, admission.settings)
        self._surely_virtual = _selects_virtual(draft.document, admission.settings)

    def run(self) -> Transformed:
        """Return the changes and warnings."""
        moves = self._plan_native()
        rest = [entry for entry in self._marks.sidecars if entry not in moves]
        launched = [entry for entry in rest if self._is_launched(entry)]
        for entry in rest:
            if entry not in launched:
                self._move(entry)
            if self._surely_virtual:
                self._tell_provider(entry)
        self._launch(launched)
        if rest:
            self._draft.set_entries(MANAGED, "metadata", "labels")
        _move_native(self._draft, moves)
        return Transformed(tuple(self._draft.operations), tuple(self._warnings))

    def _plan_native(self) -> Sequence[sidecar_pods.ObservedContainer]:
        wanted = self._admission.native_namespaces
        if not any(fnmatch.fnmatchcase(self._read.namespace, pattern) for pattern in wanted):
            return ()
        if self._surely_virtual or self._maybe_virtual:
            self._warnings.append(
                "no native sidecars, because the pod may be placed on a virtual node"
            )
            return ()
        plan = _choose_native(self._draft.document, self._marks, self._admission.oldest_kubelet)
        self._warnings += [
            f"container {name} does not become a native sidecar: {why}"
            for name, why in plan.why_not.items()
        ]
        return plan.moves

    def _is_launched(self, entry: sidecar_pods.ObservedContainer) -> bool:
        expands = not self._surely_virtual
        return (
            self._admission.virtual_expansion is Expansion.LAUNCHER
            and (self._surely_virtual or self._maybe_virtual)
            and bool(entry.command)
            and entry.command[0] != names.LAUNCH_PROGRAM
            and _is_exact(self._specs[entry.index], expands=expands)
            and _is_free(self._draft.document)
        )

    def _move(self, entry: sidecar_pods.ObservedContainer) -> None:
        """Move its argv into annotations, if the node will expand the references."""
        virtual = self._surely_virtual or self._maybe_virtual
        if not entry.command or entry.command[0] == names.LAUNCH_PROGRAM:
            return
        if virtual and self._admission.virtual_expansion is not Expansion.KUBELET:
            self._warn_of(
                entry, "it may be placed on a virtual node that does not expand commands"
            )
            return
        moved = argv.move(self._specs[entry.index], self._room)
        if moved.why_not:
            self._warn_of(entry, moved.why_not)
            return
        self._room -= objects.annotation_bytes(moved.annotations)
        self._draft.set_entries(moved.annotations, "metadata", "annotations")
        path = ("spec", "containers", entry.index)
        self._draft.put(list(moved.command), *path, "command")
        if moved.args:
            self._draft.put(list(moved.args), *path, "args")
        self._put_variables(entry, moved.variables)

    def _launch(self, entries: Sequence[sidecar_pods.ObservedContainer]) -> None:
        fitting = []
        for entry in entries:
            key, value = _start_annotation(self._specs[entry.index])
            if objects.annotation_bytes({key: value}) > self._room:
                self._warn_of(entry, "the pod's annotations have no room for its command")
                continue
            self._room -= objects.annotation_bytes({key: value})
            self._draft.set_entries({key: value}, "metadata", "annotations")
            fitting.append(entry.index)
        if fitting:
            image = self._admission.settings.fast_exit.image
            _start_by_launcher(self._draft, fitting, image)

    def _tell_provider(self, entry: sidecar_pods.ObservedContainer) -> None:
        if termination_methods.has_provider_switch(self._read, entry):
            return
        if self._admission.virtual_provider is Provider.ECI:
            variables = {"ECI_CONTAINER_TYPE": "sidecar", mark_names.ECI_IGNORE: "true"}
            self._put_variables(
                entry,
                [
                    {"name": name, "value": value}
                    for name, value in variables.items()
                    if name not in entry.environment
                ],
            )
        elif self._admission.virtual_provider is Provider.BCI:
            annotations = objects.section(self._draft.document, "metadata", "annotations")
            listed = annotations.get(mark_names.BCI_IGNORE)
            change = {mark_names.BCI_IGNORE: f"{listed},{entry.name}" if listed else entry.name}
            if objects.annotation_bytes(change) > self._room:
                self._warn_of(entry, "the pod's annotations have no room for its provider's")
                return
            self._room -= len(f",{entry.name}") if listed else objects.annotation_bytes(change)
            self._draft.set_entries(change, "metadata", "annotations")

    def _put_variables(
        self, entry: sidecar_pods.ObservedContainer, variables: Sequence[Object]
    ) -> None:
        """Insert *variables* before the container's own, whose values may refer to them."""
        for place, variable in enumerate(variables):
            self._draft.insert(variable, place, "spec", "containers", entry.index, "env")

    def _warn_of(self, entry: sidecar_pods.ObservedContainer, why: str) -> None:
        if termination_methods.is_swappable(entry, self._admission.settings):
            return  # started by a path that the fast-exit image has, too
        self._warnings.append(
            f"container {entry.name}: its image cannot be swapped when the work is done, because "
            f"{why}; if it ends with code 0, set {mark_names.EXITS_ZERO}=true"
        )


def _selects_virtual(pod: Object, settings: SidecarSettings) -> bool:
    """Return whether the pod's nodeSelector allows only virtual nodes."""
    selector = objects.section(pod, "spec", "nodeSelector")
    return any(selector.get(key) == value for key, value in settings.virtual.labels)


def _tolerates_virtual(pod: Object, settings: SidecarSettings) -> bool:
    """Return whether the pod tolerates the taint of virtual nodes, so it may run on one."""
    keys = [
        str(entry.get("key") or "")
        for entry in objects.entries(objects.section(pod, "spec"), "tolerations")
    ]
    return any(
        not key or key.startswith(prefix)
        for key in keys
        for prefix in settings.virtual.taint_prefixes
    )


def _choose_native(pod: Object, marks: marking.Marking, oldest: Release | None) -> NativeSidecars:
    """Plan for a pod being created; *oldest* is the oldest kubelet release of the cluster."""
    if oldest is None or oldest < NATIVE_SINCE:
        release = ".".join(map(str, NATIVE_SINCE))
        why = f"native sidecars need kubelets of Kubernetes {release} or later on all nodes"
        return NativeSidecars((), {entry.name: why for entry in marks.sidecars})
    specs = objects.entries(objects.section(pod, "spec"), "containers")
    why_not = {entry.name: _why_not_native(specs[entry.index]) for entry in marks.sidecars}
    moves = [entry for entry in marks.sidecars if not why_not[entry.name]]
    # Kubelet ends them in reverse start order, and the lowest order must end first. The sort is
    # stable: sidecars of equal order start in the order of the spec.
    moves.sort(key=lambda entry: -marks.options[entry.name].order)
    return NativeSidecars(tuple(moves), {name: why for name, why in why_not.items() if why})


def _move_native(draft: drafts.Draft, moves: Sequence[sidecar_pods.ObservedContainer]) -> None:
    """Append the sidecars to the init containers."""
    specs = list(objects.entries(objects.section(draft.document, "spec"), "containers"))
    for entry in moves:
        draft.append({**specs[entry.index], "restartPolicy": "Always"}, "spec", "initContainers")
    for index in sorted((entry.index for entry in moves), reverse=True):
        draft.remove("spec", "containers", index)


def _why_not_native(container: Object) -> str:
    if container.get("startupProbe"):
        return "its startupProbe may need a main container, and those would wait for it"
    if objects.section(container, "lifecycle").get("postStart"):
        return "its postStart hook may need a main container, and those would wait for it"
    if container.get("restartPolicy") or container.get("restartPolicyRules"):
        return "it has a restartPolicy of its own"
    return ""


def _is_exact(container: Object, *, expands: bool) -> bool:
    """Return whether the launcher, which expands nothing, preserves the argv.

    *expands*: the node may expand references in commands.
    """
    elements = (*objects.words(container, "command"), *objects.words(container, "args"))
    return not any("\0" in text or (expands and "$" in text) for text in elements)


def _is_free(pod: Object) -> bool:
    """Return whether the volume and container names that we add are free."""
    spec = objects.section(pod, "spec")
    taken = {
        entry.get("name")
        for part in ("volumes", "containers", "initContainers")
        for entry in objects.entries(spec, part)
    }
    return not taken & {LAUNCH_VOLUME, ARGV_VOLUME}


def _start_annotation(container: Object) -> tuple[str, str]:
    """Return the key and value of the annotation that holds the argv of *container*."""
    words = [*objects.words(container, "command"), *objects.words(container, "args")]
    return f"{names.START_COMMAND_ANNOTATION}.{_launch_key(container)}", json.dumps(words)


def _start_by_launcher(draft: drafts.Draft, places: Sequence[int], image: str) -> None:
    """Start the containers at *places* by the launcher; the caller sets their annotations.

    For nodes that do not expand ``$(NAME)`` in commands. An init container of the fast-exit image
    copies the launcher into a volume. The sidecar runs it from there, and the launcher execs the
    program whose argv is in an annotation, mounted as a file by the downward API. In the fast-exit
    image the launcher exits with 0, so a swap changes only the image.
    """
    items = []
    for place in places:
        path = ("spec", "containers", place)
        container = draft.document["spec"]["containers"][place]
        field = f"metadata.annotations['{_start_annotation(container)[0]}']"
        items.append({"path": _launch_key(container), "fieldRef": {"fieldPath": field}})
        draft.put(
            [names.LAUNCH_PROGRAM, f"{ARGV_FOLDER}/{_launch_key(container)}"], *path, "command"
        )
        draft.remove(*path, "args")
        for volume, folder in ((LAUNCH_VOLUME, LAUNCH_FOLDER), (ARGV_VOLUME, ARGV_FOLDER)):
            mount = {"name": volume, "mountPath": folder, "readOnly": True}
            draft.append(mount, *path, "volumeMounts")
    draft.append({"name": LAUNCH_VOLUME, "emptyDir": {}}, "spec", "volumes")
    draft.append({"name": ARGV_VOLUME, "downwardAPI": {"items": items}}, "spec", "volumes")
    draft.insert(_installer(image), 0, "spec", "initContainers")


def _installer(image: str) -> Object:
    """Return the installing init container; it is valid in restricted namespaces with quotas."""
    return {
        "name": LAUNCH_VOLUME,
        "image": image,
        "command": ["/pyvgpu-launch", "-i", names.LAUNCH_PROGRAM],
        "volumeMounts": [{"name": LAUNCH_VOLUME, "mountPath": LAUNCH_FOLDER}],
        "resources": {kind: {"cpu": "10m", "memory": "16Mi"} for kind in ("requests", "limits")},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65534,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _launch_key(container: Object) -> str:
    return hashlib.sha256(str(container.get("name")).encode()).hexdigest()[:32]
