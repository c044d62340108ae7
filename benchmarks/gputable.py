"""Tables of the GPU kit's records for docs/on-real-gpus.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import host

from pyvgpu import errors
from pyvgpu.calibration import assumptions, calibration_record, guarantees, machine_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyvgpu.calibration.calibration_record import KitRecord

FOLDER = host.RESULTS / "gpu"
NEVER = "pyvgpu has never run on a GPU."


def records(folder: Path = FOLDER) -> list[KitRecord]:
    """Return all records in *folder*, the last first; DataError for one that is not of a GPU."""
    found = [calibration_record.load(path) for path in sorted(folder.glob("*.json"))]
    for device in found:
        if device.simulated:
            raise errors.DataError(
                f"{device.path}: a record of a simulated device: must be of a GPU; remove it"
            )
    return sorted(found, key=lambda it: it.begun, reverse=True)


def text(found: Sequence[KitRecord], picture: str) -> str:
    """Return what the page says of records; *picture* is the name of that of the shares."""
    if not found:
        return (
            f"{NEVER} Its tests run on a [simulated driver](simulator.md), and on NVIDIA's own\n"
            "libraries without a GPU. What they cannot show, a record of the GPU kit can; "
            "there is none yet.\n"
        )
    count = "one machine with a GPU" if len(found) == 1 else f"{len(found)} machines with a GPU"
    parts = [f"pyvgpu was measured on {count}; the last record is the first below.\n"]
    if drawn(found):
        parts.append(f"![shares of time: vcore and measured]({picture})\n")
    return "\n".join([*parts, *(_section(device) for device in found)])


def drawn(found: Sequence[KitRecord]) -> list[guarantees.TimeShare]:
    """Return the shares that the picture shows: those of the last record."""
    return list(guarantees.shares(found[0])) if found else []


def _section(of: KitRecord) -> str:
    return "\n".join(_parts(of))


def _parts(of: KitRecord) -> Iterator[str]:
    yield f"## {of.device}, {of.date}\n"
    yield (
        f"Driver {of.driver}, CUDA {_cuda(of)}, Linux {of.fact('facts', 'kernel')}, sandbox: "
        f"{of.fact('facts', 'sandbox')}; GPU kit {of.kit}. The record is `{of.path.name}` in "
        "`benchmarks/results/gpu/`.\n"
    )
    if of.conditions:
        yield "Conditions:\n"
        yield "".join(f"- {condition}\n" for condition in of.conditions)
    evaluated = guarantees.evaluate(of)
    yield _table(
        ("guarantee", "verdict", "tried", "words"),
        (
            (guarantee.name, guarantee.verdict, str(len(guarantee.outcomes)), _words(guarantee))
            for guarantee in evaluated
            if guarantee.source or guarantee.outcomes
        ),
    )
    outcomes = [outcome for guarantee in evaluated for outcome in guarantee.outcomes]
    for title, held in (("Claims that failed", False), ("Inconclusive measurements", None)):
        found = [outcome for outcome in outcomes if outcome.held is held]
        if found:
            yield f"{title}:\n"
            yield "".join(f"- {outcome.what}: {outcome.seen}\n" for outcome in found)
    yield from _figures(of)
    unfinished = [f"{stage.name} ({stage.reason or stage.state})" for stage in of.unfinished]
    if unfinished:
        yield f"Stages that did not finish: {', '.join(unfinished)}.\n"


def _figures(of: KitRecord) -> Iterator[str]:
    try:
        model = machine_values.model(of)
    except errors.UsageError:
        yield "The simulator has no model of this device, so its figures are not compared.\n"
        return
    lines = assumptions.compare(assumptions.RowInputs(of, machine_values.values(of), model))
    differing = [line for line in lines if line.differs]
    known = sum(line.measured is not None for line in lines)
    yield f"Of {known} assumed figures, {len(differing)} differ here.\n"
    if differing:
        yield _table(
            ("figure", "assumed", "measured", "what it means"),
            (
                (
                    value.title,
                    assumptions.shown(value.assumed, value.unit),
                    assumptions.shown(value.measured, value.unit),
                    value.consequence,
                )
                for value in differing
            ),
        )


def _cuda(of: KitRecord) -> str:
    version = of.fact("facts", "CUDA version")
    return f"{version // 1000}.{version % 1000 // 10}" if isinstance(version, int) else "unknown"


def _words(evaluated: guarantees.EvaluatedGuarantee) -> str:
    return f'"{evaluated.words}" ({evaluated.source})' if evaluated.words else ""


def _table(headings: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    for row in rows:
        cells = [cell.replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
