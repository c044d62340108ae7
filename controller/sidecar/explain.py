"""Say in plain words what a pod's sidecars wait for, and how they will end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu.controller.sidecar import how, marking, pods, reconcile, records, when

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.controller.sidecar.settings import Settings


def explain(
    pod: pods.Pod, around: how.Surroundings, moment: reconcile.Moment, settings: Settings
) -> Sequence[str]:
    """Return a line for each container, and one for what is waited for now."""
    marks = marking.mark(pod, settings.policies)
    mains = when.look(pod, marks.mains)
    lines = []
    if marks.sidecars and marks.mains:
        lines += [f"main container {main.name}: {_state(main)}" for main in marks.mains]
    if not marks.why_not and pod.phase not in when.TERMINAL:
        record = records.read(pod, mains.ended_text)
        for entry in marks.sidecars:
            begun = record.entries.get(entry.name) if record else None
            if begun:
                fate = f"it is being ended by {begun.path.value}"
            else:
                row = how.choose(how.situate(pod, entry, marks, around, settings))
                fate = f"when the work is done: {row.path.value}, because {row.because}"
            lines.append(f"sidecar {entry.name}: {_state(entry)}; {fate}")
    decision = reconcile.reconcile(pod, around, moment, settings)
    return [*lines, *marks.warnings, decision.why]


def _state(container: pods.Container) -> str:
    if container.exit_code is not None:
        return f"ended with {container.exit_code}"
    return container.waits_for or container.state.value
