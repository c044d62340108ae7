"""Reader for the record of a GPU kit run: one JSON file.

``{"format": "pyvgpu-gpu-record", "version": 1, "kit": ..., "begun": ..., "simulated": ...,
"device": ..., "conditions": [...], "stages": {NAME: {"state", "reason", "seconds", "facts",
"figures", "guarantees", "missing"}}}``

State is ``done``, ``failed`` (it ended with an error), ``crashed`` (killed by a signal),
``timeout`` (killed at its time limit), ``not possible`` (the device is not set up for it) or ``not
reached``. Conditions are texts about what the figures depend on, such as other processes on the
device. Older records have neither conditions nor the device's name.

The kit imports this module on machines where nothing is installed: it needs only the standard
library.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, input_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMAT = "pyvgpu-gpu-record"
VERSION = 1
IMPOSSIBLE = "not possible"
STATES = ("done", "failed", "crashed", "timeout", IMPOSSIBLE, "not reached")
SIMULATED = "pyvgpu simulated"  # prefix of the names of simulated devices
UNKNOWN = "unknown device"  # of a record that has no name of it
FILE = "record.json"  # in the folder that the kit writes


class RecordError(errors.DataError):
    """A file is not a readable record of the GPU kit."""


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One measurement."""

    name: str
    value: float
    unit: str
    least: float
    most: float

    @property
    def scatter(self) -> float:
        """The most by which its rounds differ; 0 if it has none."""
        return self.most - self.least


@dataclasses.dataclass(frozen=True, slots=True)
class CheckedGuarantee:
    """A condition that must hold, and whether it did."""

    stage: str
    name: str
    held: bool | None  # None: inconclusive
    detail: str


@dataclasses.dataclass(frozen=True, slots=True)
class StageRecord:
    """The results of one stage."""

    name: str
    state: str
    reason: str
    facts: Mapping[str, object]
    figures: Mapping[str, Figure]
    guarantees: tuple[CheckedGuarantee, ...]
    missing: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class KitRecord:
    """A run of the kit on one machine."""

    path: Path
    kit: str
    begun: str
    simulated: str  # the simulated machine; empty for a GPU
    stages: Mapping[str, StageRecord]
    conditions: tuple[str, ...] = ()
    device: str = UNKNOWN  # the driver's name for it

    def figure(self, stage: str, name: str) -> Figure | None:
        """Return the measurement *name* of *stage*, None if there is none."""
        found = self.stages.get(stage)
        return None if found is None else found.figures.get(name)

    def fact(self, stage: str, name: str) -> object | None:
        """Return the fact *name* of *stage*, None if there is none."""
        found = self.stages.get(stage)
        return None if found is None else found.facts.get(name)

    @property
    def driver(self) -> str:
        """The driver's release."""
        return str(self.fact("facts", "driver release") or "of unknown release")

    @property
    def date(self) -> str:
        """The day on which the run began."""
        return self.begun[:10]

    @property
    def guarantees(self) -> tuple[CheckedGuarantee, ...]:
        """The conditions of all stages."""
        return tuple(guarantee for stage in self.stages.values() for guarantee in stage.guarantees)

    @property
    def unfinished(self) -> tuple[StageRecord, ...]:
        """The stages that are not done."""
        return tuple(stage for stage in self.stages.values() if stage.state != "done")


def read(path: Path) -> dict[str, Any]:
    """Return the JSON document at *path*, - is standard input; DataError if it is not valid."""
    text = input_files.read_input(path, f"must be a {FILE} of the GPU kit")
    path = Path(input_files.title(path))
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as exc:
        cause = f"truncated, or not JSON ({exc})" if text.strip() else "is empty"
        raise RecordError(
            f"{path}: {cause}; must be a {FILE} of the GPU kit: copy the file again"
        ) from exc
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        given = (
            f"has the format {found.get('format')!r}"
            if isinstance(found, dict)
            else "is no object"
        )
        raise RecordError(
            f"{path}: {given}; must be a {FILE} with the format {FORMAT!r}, such as `./run --out "
            "DIR` of the GPU kit writes (make gpu-kit)"
        )
    if found.get("version") != VERSION:
        raise RecordError(
            f"{path}: a record of version {found.get('version')!r}: must be {VERSION}; "
            "read it with the pyvgpu that created it"
        )
    if not isinstance(found.get("stages"), dict) or not all(
        isinstance(entry, dict) and entry.get("state") in STATES
        for entry in found["stages"].values()
    ):
        raise RecordError(f"{path}: its stages are damaged; copy the file again")
    return found


def load(path: Path) -> KitRecord:
    """Return the record at *path*: a file, a folder that the kit wrote, or - for standard input.

    UsageError if there is none, DataError if it cannot be read.
    """
    try:
        file = path / FILE if path.is_dir() else path
        found = path == input_files.STANDARD_INPUT or file.exists()
    except OSError as exc:
        raise RecordError(
            f"RECORD {str(path)!r}: {errors.reason_of(exc)}; must be a {FILE} of the GPU kit, or "
            "its folder"
        ) from exc
    if not found:
        raise errors.UsageError(
            f"RECORD {str(path)!r}: there is no {'file of that name' if file is path else FILE}; "
            "must be written by `./run --out DIR` of the GPU kit (make gpu-kit), such as DIR or "
            f"DIR/{FILE}"
        )
    document = read(file)
    file = Path(input_files.title(file))
    try:
        stages = {name: _stage(name, entry) for name, entry in document["stages"].items()}
        device = document.get("device")
        if "facts" in stages:
            device = stages["facts"].facts.get("device", device)
        device = str(device or UNKNOWN)
        simulated = document["simulated"] or ""
        if device.startswith(SIMULATED):  # the kit found a simulated driver by itself
            simulated = simulated or device
        conditions = tuple(str(condition) for condition in document.get("conditions", ()))
        return KitRecord(
            file, str(document["kit"]), str(document["begun"]), simulated, stages, conditions,
            device,
        )  # fmt: skip
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as exc:
        raise RecordError(f"{file}: its stages are damaged; copy the file again") from exc


def _stage(name: str, entry: Mapping[str, Any]) -> StageRecord:
    return StageRecord(
        name,
        entry["state"],
        str(entry["reason"]),
        {fact["name"]: fact["value"] for fact in entry["facts"]},
        _figures(entry["figures"]),
        tuple(_guarantee(name, guarantee) for guarantee in entry["guarantees"]),
        {str(gap["name"]): str(gap["reason"]) for gap in entry["missing"]},
    )


def _guarantee(stage: str, entry: Mapping[str, Any]) -> CheckedGuarantee:
    held = None if entry["held"] is None else entry["held"] is True
    return CheckedGuarantee(stage, str(entry["name"]), held, str(entry["detail"]))


def _figures(entries: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """Return figures by their names; of those with the same name, the second ends in `` (2)``."""
    found: dict[str, Figure] = {}
    counts: collections.Counter[str] = collections.Counter()
    for entry in entries:
        figure = _figure(entry)
        counts[figure.name] += 1
        if counts[figure.name] > 1:
            figure = dataclasses.replace(figure, name=f"{figure.name} ({counts[figure.name]})")
        found[figure.name] = figure
    return found


def _figure(entry: Mapping[str, Any]) -> Figure:
    value = float(entry["value"])
    least, most = (float(end) for end in entry["spread"] or (value, value))
    if not all(math.isfinite(number) for number in (value, least, most)):
        raise ValueError(entry["name"])
    return Figure(str(entry["name"]), value, str(entry["unit"]), least, most)
