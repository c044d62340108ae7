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
class Column:
    """One column."""

    head: str
    key: str  # in rows and in JSON
    show: Callable[..., str] = str
    wide: bool = False  # shown only with -o wide


NAMESPACE = Column("NAMESPACE", "namespace")
_POD = (
    NAMESPACE,
    Column("POD", "pod"),
    Column("CONTAINER", "container"),
    Column("NODE", "node"),
    Column("DEVICE", "device"),
)
_MORE = (
    Column("POLICY", "policy", wide=True),
    Column("PRIORITY", "priority", wide=True),
    Column("UUID", "uuid", wide=True),
)
HELD = (
    *_POD,
    Column("VCORE", "vcore"),
    Column("VMEMORY", "vmemoryBytes", size),
    Column("STATE", "state"),
    Column("ISOLATION", "isolation"),
    Column("MODEL", "model", wide=True),
    *_MORE,
)
USED = (
    *_POD,
    Column("VCORE", "vcore"),
    Column("USED", "usedVcore", percent),
    Column("VMEMORY", "vmemoryBytes", size),
    Column("HELD", "heldBytes", size),
    Column("STATE", "state"),
    Column("ISOLATION", "isolation"),
    Column("HOST", "hostBytes", size, wide=True),
    Column("DRIVER LIMIT", "driverLimitBytes", size, wide=True),
    Column("REFUSED", "refused", wide=True),
    *_MORE,
)
DEVICES = (
    Column("NODE", "node"),
    Column("DEVICE", "device"),
    Column("MODEL", "model"),
    Column("PODS", "pods"),
    Column("VCORE", "vcore"),
    Column("USED", "usedVcore", percent),
    Column("VMEMORY", "vmemoryBytes", size),
    Column("OF", "memoryBytes", size),
    Column("HELD", "heldBytes", size),
    Column("STATE", "state"),
    Column("ISOLATION", "isolation"),
    Column("UUID", "uuid", wide=True),
)
EVENTS = (
    NAMESPACE,
    Column("LAST SEEN", "ageSeconds", age),
    Column("REASON", "reason"),
    Column("POD", "pod"),
    Column("COUNT", "count"),
    Column("MESSAGE", "message"),
)
AUDITS = (
    Column("NODE", "node"),
    Column("ACTIVE", "looks"),
    Column("NO-SHIM", "noShim"),
    Column("FOREIGN", "foreign"),
    Column("ABOVE", "above"),
    Column("TIME", "time"),
    Column("TAMPERED", "tampered"),
    Column("OUTSIDE", "outside"),
)


def table(columns: Sequence[Column], rows: Sequence[Row], *, wide: bool = False) -> str:
    """Return *rows* below the heads of *columns*, aligned."""
    shown = [column for column in columns if wide or not column.wide]
    lines = [
        [column.head for column in shown],
        *([_cell(column, row) for column in shown] for row in rows),
    ]
    widths = [max(len(line[at]) for line in lines) for at in range(len(shown))]
    return "\n".join(_GAP.join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _cell(column: Column, row: Row) -> str:
    value = row[column.key]
    text = NOTHING if value is None or value == "" else column.show(value)
    # A terminal would interpret control characters.
    return "".join(letter if letter.isprintable() else "?" for letter in text)
