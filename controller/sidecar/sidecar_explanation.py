"""Explain how a pod's sidecars will end and what blocks them (`pyvgpu explain`)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pyvgpu import names
from pyvgpu.controller.sidecar import (
    main_completion,
    marking,
    reconcile,
    records,
    sidecar_pods,
    termination_methods,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.controller.sidecar.controller_settings import SidecarSettings


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerExplanation:
    """The explanation of one container."""

    name: str
    role: str  # main or sidecar
    state: str
    fate: str = ""  # of a sidecar: how it will end, or is being ended
    path: str = ""  # the name of that path

    @property
    def line(self) -> str:
        """The explanation as one line."""
        said = (
            f"{self.role}{' container' if self.role == 'main' else ''} {self.name}: {self.state}"
        )
        return f"{said}; {self.fate}" if self.fate else said


@dataclasses.dataclass(frozen=True, slots=True)
class SidecarExplanation:
    """The explanation of a pod."""

    containers: tuple[ContainerExplanation, ...]
    hints: tuple[str, ...]  # what a user should change
    waits_for: str

    @property
    def lines(self) -> list[str]:
        """The explanation as text; the last line is what the pod waits for."""
        return [*(container.line for container in self.containers), *self.hints, self.waits_for]

    def document(self) -> dict[str, Any]:
        """Return the explanation as JSON."""
        return {
            "containers": [
                {key: value for key, value in dataclasses.asdict(container).items() if value}
                for container in self.containers
            ],
            "hints": list(self.hints),
            "waitsFor": self.waits_for,
        }


def explain(
    pod: sidecar_pods.WatchedPod,
    around: termination_methods.Surroundings,
    moment: reconcile.DecisionMoment,
    settings: SidecarSettings,
) -> SidecarExplanation:
    """Explain each container, and what the pod waits for now."""
    marks = marking.mark(pod, settings.policies)
    decision = reconcile.reconcile(pod, around, moment, settings)
    containers = [
        ContainerExplanation(main.name, "main", _state(main))
        for main in marks.mains
        if marks.sidecars
    ]
    containers += [_sidecar(pod, entry, marks, around, settings) for entry in marks.sidecars]
    hints = [*marks.warnings, *_unlabelled(pod, marks)]
    return SidecarExplanation(
        tuple(containers), tuple(hints), _unmarked(pod, marks) or decision.why
    )


def _sidecar(
    pod: sidecar_pods.WatchedPod,
    entry: sidecar_pods.ObservedContainer,
    marks: marking.Marking,
    around: termination_methods.Surroundings,
    settings: SidecarSettings,
) -> ContainerExplanation:
    state = _state(entry)
    if marks.why_not or main_completion.refused(pod):
        return ContainerExplanation(entry.name, "sidecar", state)
    record = records.read(pod, main_completion.read(pod, marks.mains).ended_text)
    if record and entry.name in record.entries:
        path = record.entries[entry.name].path.value
        return ContainerExplanation(
            entry.name, "sidecar", state, f"it is being ended by {path}", path
        )
    row = termination_methods.choose(
        termination_methods.situate(pod, entry, marks, around, settings)
    )
    fate = f"when the work is done: {row.path.value}, because {row.because}"
    return ContainerExplanation(entry.name, "sidecar", state, fate, row.path.value)


def _unlabelled(pod: sidecar_pods.WatchedPod, marks: marking.Marking) -> Sequence[str]:
    label = pod.labels.get(names.SIDECAR_LABEL)
    if marks.why_not or main_completion.refused(pod) or label == names.SIDECAR_MANAGED:
        return ()
    if label is None:
        return (
            f"the pod has no label {names.SIDECAR_LABEL}={names.SIDECAR_MANAGED}: the controller "
            "adds it at its next sweep",
        )
    return (
        f"the label {names.SIDECAR_LABEL}={label} opts the pod out; for the controller to handle "
        f"it, it must be {names.SIDECAR_MANAGED}",
    )


def _unmarked(pod: sidecar_pods.WatchedPod, marks: marking.Marking) -> str:
    """Return what blocks a pod without any marked sidecar."""
    if marks.sidecars or main_completion.refused(pod) or pod.restart_policy == "Always":
        return ""
    living = [entry.name for entry in pod.containers if not entry.ended_for_good]
    ended = [entry.name for entry in pod.containers if entry.ended_for_good]
    if not ended or not living:
        return ""
    return (
        f"{', '.join(living)}: still there, while {', '.join(ended)} is done, and no container is "
        f"marked as a sidecar. To end one with the others, set {names.SIDECAR_VARIABLE}=true "
        "in its environment, in the Job's template: this pod cannot be changed any more"
    )


def _state(container: sidecar_pods.ObservedContainer) -> str:
    if container.exit_code is not None:
        return f"ended with {container.exit_code}"
    return container.waits_for or container.state.value
