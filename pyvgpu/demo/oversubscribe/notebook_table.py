"""The table and the sentences of the scenario, for live_display."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from pyvgpu.demo import live_display
from pyvgpu.demo.observations import EventKind, Role, gib
from pyvgpu.demo.oversubscribe import notebook_scene

if TYPE_CHECKING:
    from pyvgpu.demo.observations import TenantEvent
    from pyvgpu.demo.oversubscribe.notebook_scene import NotebookObservations, NotebookSample

_SENTENCES = {
    EventKind.START: "has room: runs with {quota}",
    EventKind.HELD: "fills {size} of its memory, and rests",
    EventKind.SUSPENDED: "is suspended: {size} of device memory moved to host memory",
    EventKind.RESUMED: "is resumed",
    EventKind.FAILED: "{text}",
    EventKind.TURNED_AWAY: "{text}",
}
_SHOWN = 2  # cells of a run; from then on it goes on working


def table(plan: notebook_scene.NotebookPlan, sample: NotebookSample) -> Table:
    """Return the state and the memory of each run, and the sums."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("run")
    shown.add_column("state", min_width=9)
    for heading in ("vmemory", "reserved", "on device", "in host memory"):
        shown.add_column(heading, justify="right", min_width=9)
    shown.add_column("moves", justify="right")
    for role in notebook_scene.RUNS:
        view = sample.of(role)
        if view is None:
            continue
        shown.add_row(
            Text(role, style=live_display.COLOURS[role]),
            view.state,
            *(gib(size) for size in (plan.quota, view.reserved, view.held, view.host)),
            str(len(view.moves)),
        )
    shown.add_section()
    views = sample.views
    shown.add_row(
        "device",
        gib(plan.memory),
        *(gib(size) for size in (len(views) * plan.quota, sample.reserved, sample.used)),
        gib(sum(view.host for view in views)),
        str(sum(len(view.moves) for view in views)),
    )
    return shown


def sentence(event: TenantEvent, seen: NotebookObservations) -> str | None:
    """Return the sentence about *event*, None if it is not worth a line."""
    if event.kind is EventKind.ASKED and event.role is Role.LATE:
        return f"asks for {gib(seen.plan.quota)} while the first and the third work"
    if event.kind in (EventKind.ASKED, EventKind.CELL) and event.number == 0:
        number = len([x for x in seen.of(event.role, event.kind) if x.seconds <= event.seconds])
        if number > _SHOWN:
            return None
        if event.kind is EventKind.ASKED:
            return "is asked to work"
        return f"has worked: {gib(event.size)} verified, every byte right"
    if event.kind is EventKind.CELL:
        return f"{event.number} bytes were wrong"
    if event.kind is EventKind.ENDED and event.number:
        said = next((x for role, x in reversed(seen.remarks) if role is event.role), "")
        return f"its run ended with exit code {event.number}" + (f": {said}" if said else "")
    said = _SENTENCES.get(event.kind, "")
    return said.format(quota=gib(seen.plan.quota), size=gib(event.size), text=event.text) or None
