"""Say in plain words what a pod's sidecars wait for, and how they will end."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pyvgpu import names
from pyvgpu.controller.sidecar import how, marking, pods, reconcile, records, when

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.controller.sidecar.settings import Settings


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """What is said of one container."""

    name: str
    role: str  # main or sidecar
    state: str
    fate: str = ""  # of a sidecar: how it ends, or is being ended
    path: str = ""  # the one word for it

    @property
    def line(self) -> str:
        """Return it as a line."""
        said = (
            f"{self.role}{' container' if self.role == 'main' else ''} {self.name}: {self.state}"
        )
        return f"{said}; {self.fate}" if self.fate else said


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """What is said of a pod."""

    containers: tuple[Told, ...]
    hints: tuple[str, ...]  # what somebody should change
    waits_for: str

    @property
    def lines(self) -> list[str]:
        """Return all of it for a person; the last line is what is waited for."""
        return [*(told.line for told in self.containers), *self.hints, self.waits_for]

    def document(self) -> dict[str, Any]:
        """Return all of it for a program."""
        return {
            "containers": [
                {key: value for key, value in dataclasses.asdict(told).items() if value}
                for told in self.containers
            ],
            "hints": list(self.hints),
            "waitsFor": self.waits_for,
        }


def explain(
    pod: pods.Pod, around: how.Surroundings, moment: reconcile.Moment, settings: Settings
) -> Explanation:
    """Return what is said of each container, and what is waited for now."""
    marks = marking.mark(pod, settings.policies)
    decision = reconcile.reconcile(pod, around, moment, settings)
    told = [Told(main.name, "main", _state(main)) for main in marks.mains if marks.sidecars]
    told += [_sidecar(pod, entry, marks, around, settings) for entry in marks.sidecars]
    hints = [*marks.warnings, *_unlabelled(pod, marks)]
    return Explanation(tuple(told), tuple(hints), _unmarked(pod, marks) or decision.why)


def _sidecar(
    pod: pods.Pod,
    entry: pods.Container,
    marks: marking.Marking,
    around: how.Surroundings,
    settings: Settings,
) -> Told:
    state = _state(entry)
    if marks.why_not or when.refused(pod):
        return Told(entry.name, "sidecar", state)
    record = records.read(pod, when.look(pod, marks.mains).ended_text)
    if record and entry.name in record.entries:
        path = record.entries[entry.name].path.value
        return Told(entry.name, "sidecar", state, f"it is being ended by {path}", path)
    row = how.choose(how.situate(pod, entry, marks, around, settings))
    fate = f"when the work is done: {row.path.value}, because {row.because}"
    return Told(entry.name, "sidecar", state, fate, row.path.value)


def _unlabelled(pod: pods.Pod, marks: marking.Marking) -> Sequence[str]:
    label = pod.labels.get(names.SIDECAR_LABEL)
    if marks.why_not or when.refused(pod) or label == names.SIDECAR_MANAGED:
        return ()
    if label is None:
        return (
            f"the pod has no label {names.SIDECAR_LABEL}={names.SIDECAR_MANAGED}: the controller "
            "gives it one when it next looks through all pods",
        )
    return (
        f"the label {names.SIDECAR_LABEL}={label} keeps the controller away; to be looked after "
        f"it must be {names.SIDECAR_MANAGED}",
    )


def _unmarked(pod: pods.Pod, marks: marking.Marking) -> str:
    """Return what hangs in a pod of which no container is marked."""
    if marks.sidecars or when.refused(pod) or pod.restart_policy == "Always":
        return ""
    living = [entry.name for entry in pod.containers if not entry.ended_for_good]
    ended = [entry.name for entry in pod.containers if entry.ended_for_good]
    if not ended or not living:
        return ""
    return (
        f"{', '.join(living)}: still there, while {', '.join(ended)} is done, and no container is "
        f"marked as a sidecar. One that should end with the others says {names.SIDECAR_VARIABLE}="
        "true in its environment, in the Job's template: this pod cannot be changed any more"
    )


def _state(container: pods.Container) -> str:
    if container.exit_code is not None:
        return f"ended with {container.exit_code}"
    return container.waits_for or container.state.value
