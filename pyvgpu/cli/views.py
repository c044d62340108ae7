"""Text and JSON formatting of runs and devices, shared by `ps` and `top`."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import log, quota

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from pyvgpu.run.runs import DeviceView, RunShare

NO_RUNS = "there are no active runs on this machine; `pyvgpu run --help` has examples"
WIDTH = 110  # columns if standard output is not a terminal
UNLIMITED = 1 << 14  # for output without bars
UNKNOWN = "?"
OVER = "!"
OVER_NOTE = f"{OVER} holds more than its quota: new allocations fail until it has freed enough"
SUSPENDED = "~"
SUSPENDED_NOTE = (
    f"{SUSPENDED} suspended: its device memory is in host memory; `pyvgpu resume` continues it"
)
TAMPERED = "#"
TAMPERED_NOTE = (
    f"{TAMPERED} its ledger was changed by something other than the shim; its memory as measured "
    "by NVML is counted"
)
_GIB = 1 << 30
_LEVELS = "▁▂▃▄▅▆▇█"


def console(width: int = WIDTH) -> Console:
    """Return a console for standard output; *width* is the number of columns of a file."""
    from rich.console import Console

    if sys.stdout.isatty():
        made = Console(highlight=False)
        if made.is_dumb_terminal:  # rich takes it for 80 columns wide
            made.size = shutil.get_terminal_size()
        return made
    return Console(highlight=False, width=width, force_terminal=False)


def short(device: DeviceView) -> str:
    """Return a prefix of a device's UUID that still distinguishes devices."""
    return device.uuid[:12]


def size(held: int | None) -> str:
    """Format bytes with a fixed unit, so that the numbers of a column compare."""
    return UNKNOWN if held is None else f"{held / _GIB:.2f} GiB"


def command(part: RunShare) -> str:
    """Return a run's command line, or the program of another user's run."""
    return part.command_line or Path(part.command).name


def held(part: RunShare) -> str:
    """Format the memory that a run holds, with its marks."""
    marks = (
        (SUSPENDED if part.suspension.suspended else "")
        + (OVER if part.over else "")
        + (TAMPERED if part.tampered else "")
    )
    return f"{size(part.held)} {marks}" if marks else size(part.held)


def note(devices: Sequence[DeviceView]) -> str:
    """Return the lines that explain the marks, empty if no run has one."""
    parts = [part for device in devices for part in device.parts]
    lines = [SUSPENDED_NOTE] if any(part.suspension.suspended for part in parts) else []
    lines += [OVER_NOTE] if any(part.over for part in parts) else []
    lines += [TAMPERED_NOTE] if any(part.tampered for part in parts) else []
    return "\n".join(lines)


def vcore(part: RunShare) -> str:
    """Format a run's vcore: device time, with its priority if it is not normal, or SMs by MPS."""
    if part.limits.isolation is quota.Isolation.MPS:
        return f"{_vcore(part)} mps"
    if part.priority is quota.Priority.NORMAL:
        return _vcore(part)
    return f"{_vcore(part)} {part.priority.name.lower()}"


def _vcore(part: RunShare) -> str:
    if not part.requested_vcore:
        return "-"
    if part.limits.policy is quota.TimePolicy.ELASTIC:
        return f"{part.limits.vcore}-{part.limits.vcore_limit}"
    return str(part.limits.vcore)


def percent(share: float | None) -> str:
    """Format a share of a device's time."""
    return "-" if share is None else f"{100 * share:.1f} %"


def age(seconds: float) -> str:
    """Format a duration in its two largest units."""
    left = max(0, int(seconds))
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    for (name, length), smaller in zip(units, (*units[1:], None), strict=True):
        if left >= length or smaller is None:
            whole, rest = divmod(left, length)
            return f"{whole}{name}" + (f"{rest // smaller[1]}{smaller[0]}" if smaller else "")
    raise AssertionError


def bar(part: float, width: int) -> str:
    """Draw a bar for a fraction of 1."""
    filled = max(0, min(width, round(width * part)))
    return "█" * filled + "░" * (width - filled)


def spark(history: Sequence[float], width: int) -> str:
    """Draw a sparkline of the last shares of a device's time; the newest is on the right."""
    columns = [
        " " if share <= 0 else _LEVELS[min(len(_LEVELS) - 1, int(share * len(_LEVELS)))]
        for share in history[-width:]
    ]
    return "".join(columns).rjust(width)


def _oversubscription(part: RunShare) -> dict[str, object] | None:
    record = part.record
    if record is None:
        return None
    return {
        "idle_seconds": record.rules.idle_seconds,
        "slice_seconds": record.rules.slice_seconds,
        "moves_per_minute": record.rules.moves_per_minute,
        "host_memory_bytes": record.host_memory,
        "suspensions": record.suspensions,
        "resumptions": record.resumptions,
        "refusal": log.printable(record.refusal) or None,
    }


def documents(devices: Sequence[DeviceView]) -> list[dict[str, object]]:
    """Return every run as JSON; sizes in bytes, times in seconds, shares from 0 to 1."""
    return [
        {
            "name": part.name,
            "run_id": part.run_id,
            "uid": part.uid,
            "pid": part.pid,
            "command": part.command,
            "command_line": part.command_line or None,
            "state": part.state,
            "created": part.created,
            "device": device.uuid,
            "requested_vcore": part.requested_vcore,
            "vcore": part.limits.vcore,
            "vcore_limit": part.limits.vcore_limit,
            "policy": part.limits.policy.name.lower(),
            "isolation": part.isolation.value,
            "priority": part.priority.name.lower(),
            "vmemory_bytes": part.limits.vmemory,
            "held_bytes": part.held,
            "host_bytes": part.host,
            "oversubscription": _oversubscription(part),
            "over_quota_bytes": part.over,
            "reserved_bytes": part.reserved,
            "refused": part.refused,
            "tampered": part.tampered or None,
            "driver_limit_bytes": part.driver_limit,
            "driver_limit_missing": part.driver_why or None,
            "processes": [dataclasses.asdict(process) for process in part.processes],
        }
        for device in devices
        for part in device.parts
    ]
