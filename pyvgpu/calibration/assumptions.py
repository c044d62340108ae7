"""Assumptions of the simulator and the shim about GPUs, compared with a record.

Each is one row of ROWS: a new figure of the kit is a new row.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu.calibration import machine_values
from pyvgpu.simulation.law import Law

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu.calibration.calibration_record import KitRecord
    from pyvgpu.calibration.machine_values import Value
    from pyvgpu.models import Model

KIB, MIB = 1 << 10, 1 << 20
SAME = "as assumed"
_SIZE_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_TIME_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


@dataclasses.dataclass(frozen=True, slots=True)
class RowInputs:
    """The inputs of a row."""

    record: KitRecord
    values: Mapping[str, Value]
    model: Model


@dataclasses.dataclass(frozen=True, slots=True)
class Assumption:
    """One assumption: where it is measured, and what a different value means for users."""

    title: str
    stage: str
    measured: Callable[[RowInputs], float | str | None]
    assumed: Callable[[RowInputs], float | str]
    unit: str
    more: str  # consequence of a higher value, or of any different text
    less: str = ""  # consequence of a lower value
    near: float = 0.02  # relative tolerance
    floor: float = 0  # absolute tolerance


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """The result of one row for a record."""

    title: str
    stage: str
    unit: str
    assumed: float | str
    measured: float | str | None
    differs: bool
    consequence: str


def compare(seen: RowInputs) -> tuple[Line, ...]:
    """Return a line for each row."""
    return tuple(_line(row, seen) for row in ROWS)


def _line(row: Assumption, seen: RowInputs) -> Line:
    found, assumed = row.measured(seen), row.assumed(seen)
    if found is None:
        unknown = f"unknown: {_why_not(seen.record, row.stage)}"
        return Line(row.title, row.stage, row.unit, assumed, None, False, unknown)
    if isinstance(found, str) or isinstance(assumed, str):
        differs = found != assumed
        consequence = row.more
    else:
        differs = abs(found - assumed) > max(row.near * abs(assumed), row.floor)
        consequence = row.more if found > assumed else row.less
    return Line(
        row.title, row.stage, row.unit, assumed, found, differs and bool(consequence),
        consequence if differs and consequence else SAME,
    )  # fmt: skip


def _why_not(record: KitRecord, stage: str) -> str:
    found = record.stages.get(stage)
    if found is None:
        return f"stage {stage} is not in the record; run the kit with --only {stage}"
    if found.state == "done":
        return f"stage {stage} has no such figure"
    said = f"{found.state}: {found.reason}" if found.reason else found.state
    return f"stage {stage} was {said}; run the kit with --only {stage}"


def shown(value: float | str | None, unit: str) -> str:
    """Format *value* with its *unit*: bytes and nanoseconds in larger units, None as `-`."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if unit == "bytes":
        return _scaled(value, _SIZE_UNITS, "B")
    if unit == "ns":
        return _scaled(value, _TIME_UNITS, "ns")
    return f"{value:,.6g} {unit}".rstrip()


def _scaled(value: float, steps: tuple[tuple[float, str], ...], smallest: str) -> str:
    for size, name in steps:
        if abs(value) >= size:
            return f"{value / size:,.4g} {name}"
    return f"{value:,.4g} {smallest}"


def _law(
    title: str, stage: str, key: str, more: str, less: str, unit: str = "ns", floor: float = 0
) -> Assumption:
    """Return the row of a key of the law."""
    return Assumption(
        title, stage, lambda seen: _value(seen, key), lambda _: getattr(Law(), key), unit,
        more, less, near=0.05, floor=floor,
    )  # fmt: skip


def _value(seen: RowInputs, key: str) -> float | None:
    found = seen.values.get(key)
    return None if found is None else found.value


def _figure(stage: str, name: str, scale: float = 1) -> Callable[[RowInputs], float | None]:
    def read(seen: RowInputs) -> float | None:
        found = seen.record.figure(stage, name)
        return None if found is None else found.value * scale

    return read


def _fact(stage: str, name: str) -> Callable[[RowInputs], str | None]:
    def read(seen: RowInputs) -> str | None:
        found = seen.record.fact(stage, name)
        return None if found is None else str(found)

    return read


def _charged(size: int) -> int:
    """Return the charge for an allocation: csrc/shim/cuda/memory/charge.h."""
    unit = 2 * MIB if size >= MIB else 512
    return (size + unit - 1) // unit * unit


def _allocation(size: int) -> Assumption:
    return Assumption(
        f"memory that an allocation of {_size(size)} takes", "memory",
        _figure("memory", f"allocation of {size}"), lambda _: _charged(size), "bytes",
        "programs with many of them take more of the device than they are charged, so that all "
        "quotas together can be more than the device has",
        "programs with many of them are charged more than they take, so that their quota is full "
        "too early",
    )  # fmt: skip


def _pool(size: int, reserved: int) -> Assumption:
    return Assumption(
        f"memory that a pool reserves for {_size(size)}", "pools",
        _figure("pools", f"reserved after {size}"), lambda _: reserved, "bytes",
        "stream-ordered allocation takes more of the device than it is charged at first",
        "stream-ordered allocation is charged more than it takes, and refused a little too early",
    )  # fmt: skip


def _kept(after: str, title: str) -> Assumption:
    return Assumption(
        title, "pools", _figure("pools", f"reserved after {100 * MIB}{after}"), lambda _: 0,
        "bytes",
        "a program that frees memory in a stream keeps more of its quota taken than it expects",
    )  # fmt: skip


def _beside_full_queue(what: str, assumed: str) -> Assumption:
    name = f"while a launch is blocked: {what}"
    return Assumption(
        name, "queue", _fact("queue", name), lambda _: assumed, "",
        "a program whose stream is full is held up elsewhere than on the simulator, and the shim "
        "may wait there, too",
    )  # fmt: skip


def _forked(seen: RowInputs) -> str | None:
    found = _fact("fork", "memory of a killed process with a forked child")(seen)
    return "free at once" if found is not None and found.startswith("free") else found


def _measuring(seen: RowInputs) -> float | None:
    """Host time of the shim's measurement of a launch, without the kit's loop overhead."""
    times = [
        _figure("events", f"host time: {name}")(seen) for name in ("record", "query", "elapsed")
    ]
    loop = _figure("events", "host time: nothing (the loop)")(seen)
    known = [time for time in times if time is not None]
    return None if loop is None or len(known) < 3 else sum(known) - 3 * loop


def _size(count: int) -> str:
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        whole = round(count / unit)
        if whole and abs(count - whole * unit) <= 1:
            off = {-1: " less 1 B", 0: "", 1: " and 1 B"}[count - whole * unit]
            return f"{whole} {name}{off}"
    return f"{count} B"


ROWS: tuple[Assumption, ...] = (
    _law(
        "turn of a process while others wait", "slices", "slice_ns",
        "programs beside others stop for longer at a time: their latency is higher, and shares "
        "are even only over longer times",
        "programs beside others change more often: more time is lost if a switch costs any",
    ),
    _law(
        "switch from one process to another", "slices", "switch_ns",
        "programs that share a device have less of it together than one has alone",
        "", floor=10_000,
    ),
    _law(
        "time of the device between two kernels of a stream", "alone", "launch_ns",
        "programs of short kernels need more of the device than their kernels take; it is charged",
        "", floor=100,
    ),
    _law(
        "time for which an event holds up its stream", "events", "event_ns",
        "each launch that the shim measures is slower by it; programs of short kernels see it",
        "", floor=100,
    ),
    _law(
        "work that a stream can hold", "queue", "queue_depth",
        "programs can be further ahead of the device before a launch blocks",
        "launches block earlier: programs that launch far ahead wait in the launch itself",
        unit="launches",
    ),
    *(
        _beside_full_queue(what, assumed)
        for what, assumed in (
            ("launch into another stream", "goes on"),
            ("record in another stream", "goes on"),
            ("synchronise another stream", "goes on"),
            ("create and destroy a stream", "goes on"),
            ("allocate memory", "blocks"),
        )
    ),
    Assumption(
        "kernel of 100 us between events, above its own timer", "events",
        _figure("events", "kernel of 100 us, back to back: events above its own timer", 1000),
        lambda _: Law().event_ns, "ns",
        "kernels appear longer than they are: programs of short kernels get less than "
        "their share by it", "", floor=200,
    ),
    Assumption(
        "host time of measuring a launch", "events", _measuring, lambda _: 1000, "ns",
        "one launch in some hundred is slower by it; the 99th percentile of launches shows it", "",
        near=2,
    ),
    Assumption(
        "memory that CUDA programs can have", "facts", lambda seen: _value(seen, "memory_bytes"),
        lambda seen: seen.model.memory_bytes, "bytes",
        "the simulated model is too small: a quota that is refused there fits on the device",
        "the simulated model is too large: a quota that fits there is refused on the device",
        near=0.002,
    ),
    Assumption(
        "processors", "facts", lambda seen: _value(seen, "sm_count"),
        lambda seen: seen.model.sm_count, "SMs", "the simulated model has fewer processors",
        "the simulated model has more processors",
    ),
    Assumption(
        "memory that a context takes", "memory", lambda seen: _value(seen, "context_bytes"),
        lambda seen: seen.model.context_mib * MIB, "bytes",
        "a program needs a larger vmemory than on the simulator for the same work",
        "a program has more of its vmemory for itself than on the simulator",
    ),
    *(
        _allocation(size)
        for size in (
            1, 512, 513, 4 * KIB, 64 * KIB, 256 * KIB, 512 * KIB, MIB - 1, MIB, MIB + 1, 2 * MIB,
            2 * MIB + 1, 3 * MIB, 31 * MIB, 64 * MIB,
        )
    ),
    Assumption(
        "memory that 512 bytes keep, which survive alone in their 2 MiB", "memory",
        _figure("memory", "512 bytes that survive in a block of 2 MiB"), lambda _: 512, "bytes",
        "a program that frees most of many small allocations holds more of the device than it is "
        "charged",
    ),
    Assumption(
        "unit of cuMemCreate", "memory",
        _figure("memory", "granularity of cuMemCreate, minimum"), lambda _: machine_values.BLOCK,
        "bytes", "programs that map memory themselves take it in larger pieces",
        "programs that map memory themselves take it in smaller pieces",
    ),
    *(
        _pool(size, reserved)
        for size, reserved in (
            (1, 32 * MIB), (31 * MIB, 32 * MIB), (33 * MIB, 64 * MIB), (100 * MIB, 128 * MIB),
        )
    ),
    _kept(" was freed and waited for", "memory that a pool keeps when all of it is free"),
    _kept(" and a trim", "memory that a pool keeps after a trim"),
    Assumption(
        "memory of a killed process with a forked child", "fork", _forked,
        lambda _: "stays while the child lives", "",
        "memory of a killed program is free, but charged to its quota as long as a child that it "
        "forked lives",
    ),
    Assumption(
        "process of a suspended run in NVML", "suspend",
        _fact("suspend", "1024 MiB, while suspended: the process in NVML"),
        lambda _: "not listed", "",
        "the agent and `pyvgpu ps` see memory of a suspended program that holds none",
    ),
    Assumption(
        "MIG profiles of the first GPU against the model's", "mig",
        _figure("mig", "GPU 0: differences from the simulator's profiles"), lambda _: 0,
        "differences",
        "MIG instances on the simulator have other sizes or places than on the device",
    ),
    _law(
        "age of the memory in use that NVML shows", "nvml", "nvml_memory_late_ns",
        "the agent sees later what programs hold, and reads it too low while they allocate", "",
        floor=2_000_000,
    ),
    _law(
        "age of the utilization that NVML shows", "nvml", "nvml_load_late_ns",
        "metrics of utilization, and the audit of shares, are behind by it", "",
        floor=5_000_000,
    ),
    Assumption(
        "driver's functions that no exported name leads to", "symbols",
        _figure("symbols", "pointers that dlsym does not name"), lambda _: 0, "functions",
        "calls by those pointers can go past the shim; each must be hooked",
    ),
)  # fmt: skip
