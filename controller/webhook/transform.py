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
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller.sidecar import how, mark_names, marking, sidecar_pods
from pyvgpu.controller.sidecar.controller_settings import SidecarSettings
from pyvgpu.controller.webhook import argv, drafts, launch, native
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.controller.sidecar.nodes import Release
    from pyvgpu.kube.objects import Object, Operation

KEPT_FREE_BYTES = 16 * 1024  # reserved for annotations written later

MANAGED = {names.SIDECAR_LABEL: names.SIDECAR_MANAGED}
OURS_ALONE = (names.STOP_ANNOTATION, names.SWAPPED_ANNOTATION)  # which users may not write


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


class _Transformation:
    """The transformation of one pod."""

    def __init__(
        self,
        draft: drafts.Draft,
        read: sidecar_pods.Pod,
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
        native.move(self._draft, moves)
        return Transformed(tuple(self._draft.operations), tuple(self._warnings))

    def _plan_native(self) -> Sequence[sidecar_pods.Container]:
        wanted = self._admission.native_namespaces
        if not any(fnmatch.fnmatchcase(self._read.namespace, pattern) for pattern in wanted):
            return ()
        if self._surely_virtual or self._maybe_virtual:
            self._warnings.append(
                "no native sidecars, because the pod may be placed on a virtual node"
            )
            return ()
        plan = native.plan(self._draft.document, self._marks, self._admission.oldest_kubelet)
        self._warnings += [
            f"container {name} does not become a native sidecar: {why}"
            for name, why in plan.why_not.items()
        ]
        return plan.moves

    def _is_launched(self, entry: sidecar_pods.Container) -> bool:
        expands = not self._surely_virtual
        return (
            self._admission.virtual_expansion is Expansion.LAUNCHER
            and (self._surely_virtual or self._maybe_virtual)
            and bool(entry.command)
            and entry.command[0] != names.LAUNCH_PROGRAM
            and launch.is_exact(self._specs[entry.index], expands=expands)
            and launch.is_free(self._draft.document)
        )

    def _move(self, entry: sidecar_pods.Container) -> None:
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

    def _launch(self, entries: Sequence[sidecar_pods.Container]) -> None:
        fitting = []
        for entry in entries:
            key, value = launch.annotation(self._specs[entry.index])
            if objects.annotation_bytes({key: value}) > self._room:
                self._warn_of(entry, "the pod's annotations have no room for its command")
                continue
            self._room -= objects.annotation_bytes({key: value})
            self._draft.set_entries({key: value}, "metadata", "annotations")
            fitting.append(entry.index)
        if fitting:
            image = self._admission.settings.fast_exit.image
            launch.start(self._draft, fitting, image)

    def _tell_provider(self, entry: sidecar_pods.Container) -> None:
        if how.has_provider_switch(self._read, entry):
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

    def _put_variables(self, entry: sidecar_pods.Container, variables: Sequence[Object]) -> None:
        """Insert *variables* before the container's own, whose values may refer to them."""
        for place, variable in enumerate(variables):
            self._draft.insert(variable, place, "spec", "containers", entry.index, "env")

    def _warn_of(self, entry: sidecar_pods.Container, why: str) -> None:
        if how.is_swappable(entry, self._admission.settings):
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
