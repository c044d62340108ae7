"""The record of a run, replaced whole after each stage.

Its form is that of pyvgpu.calibration.calibration_record.

It names no host and no user: see private.py.
"""

import json
import os
import pathlib

from kit import private
from pyvgpu.calibration.calibration_record import (
    FILE,
    FORMAT,
    IMPOSSIBLE,
    STATES,
    VERSION,
    RecordError,
    load,
    read,
)

__all__ = ["FILE", "IMPOSSIBLE", "RecordError", "load", "new", "read", "stage", "write"]
_PLURALS = {
    "fact": "facts", "figure": "figures", "guarantee": "guarantees", "missing": "missing",
}  # fmt: skip


def new(kit, begun, simulated):
    """Return a record without stages; *simulated* names the simulated machine, or is None."""
    if simulated is not None:
        simulated = pathlib.PurePath(simulated).name
    return {
        "format": FORMAT, "version": VERSION, "kit": kit, "begun": begun,
        "simulated": simulated, "stages": {},
    }  # fmt: skip


def stage(state, reason, seconds, lines):
    """Return what a record has of one stage; *lines* as report.read_lines gives them."""
    assert state in STATES, state
    entry = {"state": state, "reason": reason, "seconds": round(seconds, 3)}
    lines = private.without_names(lines)
    for kind, plural in _PLURALS.items():
        entry[plural] = [fields for found, fields in lines if found == kind]
    return entry


def write(record, path):
    """Replace the file at *path* in one step; OSError if that cannot be done."""
    path = pathlib.Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
