"""Tables in kubectl's format: columns and the rendering of their cells; pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Row = Mapping[str, object]  # by the keys of columns; None: unknown

NOTHING = "-"
_GAP = "   "


def size(held: float) -> str:
    """Format bytes, rounded down to MiB."""
    whole = int(held)
    return quantity.format_size(whole if whole < 1 << 20 else whole >> 20 << 20)


def percent(vcore: float) -> str:
    """Format vcore, rounded to whole hundredths of a device."""
    return f"{vcore:.0f}"


def age(seconds: float) -> str:
    """Format an age as kubectl does: below 10 minutes with seconds, then one unit."""
    left = max(0, int(seconds))
    if left < 120:
        return f"{left}s"
    if left < 600:
        return f"{left // 60}m{left % 60}s" if left % 60 else f"{left // 60}m"
    if left < 3 * 3600:
        return f"{left // 60}m"
    if left < 48 * 3600:
        return f"{left // 3600}h"
    return f"{left // 86400}d"


@dataclasses.dataclass(frozen=True, slots=True)
class TableColumn:
    """One column."""

    head: str
    key: str  # in rows and in JSON
    show: Callable[..., str] = str
    wide: bool = False  # shown only with -o wide


NAMESPACE = TableColumn("NAMESPACE", "namespace")
_POD = (
    NAMESPACE,
    TableColumn("POD", "pod"),
    TableColumn("CONTAINER", "container"),
    TableColumn("NODE", "node"),
    TableColumn("DEVICE", "device"),
)
_MORE = (
    TableColumn("POLICY", "policy", wide=True),
    TableColumn("PRIORITY", "priority", wide=True),
    TableColumn("UUID", "uuid", wide=True),
)
HELD = (
    *_POD,
    TableColumn("VCORE", "vcore"),
    TableColumn("VMEMORY", "vmemoryBytes", size),
    TableColumn("STATE", "state"),
    TableColumn("ISOLATION", "isolation"),
    TableColumn("MODEL", "model", wide=True),
    *_MORE,
)
USED = (
    *_POD,
    TableColumn("VCORE", "vcore"),
    TableColumn("USED", "usedVcore", percent),
    TableColumn("VMEMORY", "vmemoryBytes", size),
    TableColumn("HELD", "heldBytes", size),
    TableColumn("STATE", "state"),
    TableColumn("ISOLATION", "isolation"),
    TableColumn("HOST", "hostBytes", size, wide=True),
    TableColumn("DRIVER LIMIT", "driverLimitBytes", size, wide=True),
    TableColumn("REFUSED", "refused", wide=True),
    *_MORE,
)
DEVICES = (
    TableColumn("NODE", "node"),
    TableColumn("DEVICE", "device"),
    TableColumn("MODEL", "model"),
    TableColumn("PODS", "pods"),
    TableColumn("VCORE", "vcore"),
    TableColumn("USED", "usedVcore", percent),
    TableColumn("VMEMORY", "vmemoryBytes", size),
    TableColumn("OF", "memoryBytes", size),
    TableColumn("HELD", "heldBytes", size),
    TableColumn("STATE", "state"),
    TableColumn("ISOLATION", "isolation"),
    TableColumn("UUID", "uuid", wide=True),
)
EVENTS = (
    NAMESPACE,
    TableColumn("LAST SEEN", "ageSeconds", age),
    TableColumn("REASON", "reason"),
    TableColumn("POD", "pod"),
    TableColumn("COUNT", "count"),
    TableColumn("MESSAGE", "message"),
)
AUDITS = (
    TableColumn("NODE", "node"),
    TableColumn("ACTIVE", "active"),
    TableColumn("NO-SHIM", "noShim"),
    TableColumn("FOREIGN", "foreign"),
    TableColumn("ABOVE", "above"),
    TableColumn("TIME", "time"),
    TableColumn("TAMPERED", "tampered"),
    TableColumn("OUTSIDE", "outside"),
)


def table(columns: Sequence[TableColumn], rows: Sequence[Row], *, wide: bool = False) -> str:
    """Return *rows* below the heads of *columns*, aligned."""
    shown = [column for column in columns if wide or not column.wide]
    lines = [
        [column.head for column in shown],
        *([_cell(column, row) for column in shown] for row in rows),
    ]
    widths = [max(len(line[at]) for line in lines) for at in range(len(shown))]
    return "\n".join(_GAP.join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _cell(column: TableColumn, row: Row) -> str:
    value = row[column.key]
    text = NOTHING if value is None or value == "" else column.show(value)
    # A terminal would interpret control characters.
    return "".join(letter if letter.isprintable() else "?" for letter in text)
