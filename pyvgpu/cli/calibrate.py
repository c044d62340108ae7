"""`pyvgpu calibrate RECORD`: compare the simulator's assumptions with a measured GPU."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, input_files
from pyvgpu.calibration import assumptions, calibration_record, guarantees, machine_values
from pyvgpu.models import MIB
from pyvgpu.simulation import machines

if TYPE_CHECKING:
    import argparse

    from pyvgpu.calibration.calibration_record import KitRecord
    from pyvgpu.calibration.machine_values import Value
    from pyvgpu.models import Model

_DESCRIPTION = """\
Read a record that the GPU kit made on a machine with a GPU (`make gpu-kit` packs the kit). Show
the assumptions of the simulator and the shim beside the measured values, with what each difference
means for users, and whether the guarantees of README.md held there. With --write, describe a
simulated machine like that GPU in a file, which every --simulate takes in place of a model.

The exit code is 70 if a guarantee did not hold, 65 if RECORD is not a record of a GPU, else 0.
"""
_EXAMPLES = """\
examples:
  pyvgpu calibrate results                        (the folder that the kit wrote)
  pyvgpu calibrate results/record.json --json
  ssh gpu-1 cat results/record.json | pyvgpu calibrate -
  pyvgpu calibrate results --write h200.machine
  pyvgpu run --simulate h200.machine --vcore 30 -- python train.py
"""
_COLOURS = {
    "held": "green", "did not hold": "red", "inconclusive": "yellow", "not tried": "yellow",
}  # fmt: skip
LAW_STAGES = "slices events queue memory pools contexts fork nvml"


@dataclasses.dataclass(frozen=True, slots=True)
class RecordResults:
    """The results of reading one record."""

    record: KitRecord
    model: Model
    values: dict[str, Value]
    lines: tuple[assumptions.Line, ...]
    evaluated: tuple[guarantees.EvaluatedGuarantee, ...]
    written: Path | None

    @property
    def broken(self) -> list[str]:
        """Names of the guarantees that did not hold."""
        return [evaluated.name for evaluated in self.evaluated if evaluated.broken]


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu calibrate`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add(
        "record",
        metavar="RECORD",
        help=f"a record.json, or the folder of `./run --out`; {input_files.HELP}",
    )
    add(
        "--write",
        metavar="FILE",
        type=Path,
        help=f"describe a simulated machine like this GPU in FILE, such as h200{machines.SUFFIX}",
    )
    add("--model", metavar="MODEL", help="the model of the GPU (derived from its name)")
    add(
        "--simulated",
        action="store_true",
        help="also accept a record of a simulated device, such as a rehearsal makes",
    )
    add("--json", action="store_true", help="print the same as JSON")


def run(options: argparse.Namespace) -> int:
    """Print the results, and write the machine file if asked to."""
    found = find(Path(options.record), options)
    print(json.dumps(document(found), indent=2)) if options.json else _show(found)
    return errors.PyVgpuError.exit_code if found.broken else 0


def find(path: Path, options: argparse.Namespace) -> RecordResults:
    """Read the record at *path*, compare it, and write the machine file if asked to."""
    if options.write is not None:
        _check_target(options.write)
    read = calibration_record.load(path)
    if read.simulated and not options.simulated:
        raise calibration_record.RecordError(
            f"{read.path}: a record of a simulated device, which says nothing about a GPU; "
            f"--simulated accepts it anyway"
        )
    values, model = machine_values.values(read), machine_values.model(read, options.model)
    if options.write is not None:
        _write(options.write, read, model, values)
    return RecordResults(
        read,
        model,
        values,
        assumptions.compare(assumptions.RowInputs(read, values, model)),
        guarantees.evaluate(read),
        options.write,
    )


def _check_target(path: Path) -> None:
    if path.suffix != machines.SUFFIX:
        raise errors.UsageError(
            f"--write {str(path)!r}: must end in {machines.SUFFIX}, such as h200{machines.SUFFIX}"
        )


def _write(path: Path, read: KitRecord, model: Model, values: dict[str, Value]) -> None:
    if not values.keys() & set(machines.LAW_KEYS):
        raise calibration_record.RecordError(
            f"{read.path}: has no measurements of the device's behaviour, so there is nothing "
            f"to write; run the kit with --only {LAW_STAGES}"
        )
    total = values.get("memory_bytes")
    entries = {key: str(value) for key, value in values.items()}
    if total is not None:
        entries["reserved_bytes"] = str(max(0, model.board_mib * MIB - total.value))
    remarks = (
        f"{read.device}, driver {read.driver}, {read.date}, by the GPU kit {read.kit}.",
        *(f"{key}: {value.how}" for key, value in values.items()),
    )
    machines.write(path, model.key, entries, remarks)


def document(found: RecordResults) -> dict[str, object]:
    """Return the JSON output."""
    read = found.record
    return {
        "record": {
            "device": read.device, "driver": read.driver, "begun": read.begun, "kit": read.kit,
            "simulated": read.simulated or None, "conditions": list(read.conditions),
        },
        "machine": {"model": found.model.key}
        | {key: dataclasses.asdict(value) for key, value in found.values.items()},
        "figures": [dataclasses.asdict(line) for line in found.lines],
        "guarantees": [
            {**dataclasses.asdict(evaluated), "verdict": evaluated.verdict}
            for evaluated in found.evaluated
        ],
        "unfinished": {stage.name: stage.reason or stage.state for stage in read.unfinished},
        "written": None if found.written is None else str(found.written),
    }  # fmt: skip


def _show(found: RecordResults) -> None:
    from rich import box, console, table, text

    def sheet(*headings: str) -> table.Table:
        made = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in headings:
            made.add_column(heading, overflow="fold")
        return made

    read = found.record
    out = console.Console(highlight=False)
    out.print(f"{read.device}, driver {read.driver}, {read.date}, by the GPU kit {read.kit}")
    for condition in read.conditions:
        out.print(text.Text(f"note: {condition}", style="yellow"))
    figures = sheet("figure", "assumed", "measured", "what it means")
    for line in found.lines:
        figures.add_row(
            line.title,
            assumptions.shown(line.assumed, line.unit),
            assumptions.shown(line.measured, line.unit),
            text.Text(line.consequence, style="yellow" if line.differs else ""),
        )
    out.print(figures)
    kept = sheet("guarantee", "verdict", "tried", "in")
    for evaluated in (
        candidate for candidate in found.evaluated if candidate.source or candidate.outcomes
    ):
        verdict = text.Text(evaluated.verdict, style=_COLOURS[evaluated.verdict])
        kept.add_row(evaluated.name, verdict, str(len(evaluated.outcomes)), evaluated.source)
    out.print(kept)
    for evaluated in found.evaluated:
        for outcome in (tried for tried in evaluated.outcomes if not tried.held):
            begin = "did not hold" if outcome.held is False else "inconclusive"
            out.print(text.Text(f"{begin}: {outcome.what}: {outcome.seen}"))
    for stage in read.unfinished:
        said = f"{stage.state}: {stage.reason}" if stage.reason else stage.state
        if stage.state != calibration_record.IMPOSSIBLE:
            said += f"; run the kit with --only {stage.name}"
        out.print(text.Text(f"stage {stage.name}: {said}"))
    for sentence in _conclusion(found):
        out.print(text.Text(sentence))


def _conclusion(found: RecordResults) -> list[str]:
    differing = sum(line.differs for line in found.lines)
    known = sum(line.measured is not None for line in found.lines)
    held = (
        f"broken guarantees: {', '.join(found.broken)}" if found.broken else "no broken guarantee"
    )
    said = [f"{differing} of {known} figures are not as assumed; {held}."]
    if found.record.simulated:
        said.insert(0, "The device is simulated: none of this says anything about a GPU.")
    if found.written is not None:
        left = [key for key in machines.LAW_KEYS if key not in found.values]
        assumed = f", with {', '.join(left)} as assumed" if left else ""
        said.append(f"Written{assumed}: use it by --simulate {found.written}")
    return said
