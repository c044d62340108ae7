"""Duration and number of writes of a finished pod's termination, for metrics."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu.controller.sidecar import main_completion, marking, records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.controller.sidecar import sidecar_pods


@dataclasses.dataclass(frozen=True, slots=True)
class TerminationMetrics:
    """Observations for the termination metrics; count each pod's uid once."""

    paths: tuple[str, ...]  # the last path of each sidecar, sorted by name
    seconds: float  # from the end of the last main container to that of the last sidecar
    writes: int


def measure(
    pod: sidecar_pods.Pod, policies: Sequence[marking.MarkingPolicy] = ()
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
    if record is None:
        return None
    return TerminationMetrics(
        tuple(entry.path.value for _, entry in sorted(record.entries.items())),
        max((sidecars - mains).total_seconds(), 0.0),
        record.step,
    )
