"""The record of a run: one JSON file, replaced whole after each stage.

``{"format": "pyvgpu-gpu-record", "version": 1, "kit": ..., "begun": ..., "simulated": ...,
"stages": {NAME: {"state", "reason", "seconds", "facts", "figures", "promises", "missing"}}}``

State is ``done``, ``failed`` (it ended with an error), ``crashed`` (a signal ended it),
``timeout`` (its time limit did) or ``not reached``.
"""

import json
import os
import pathlib

FORMAT = "pyvgpu-gpu-record"
VERSION = 1
STATES = ("done", "failed", "crashed", "timeout", "not reached")
_PLURALS = {
    "fact": "facts", "figure": "figures", "promise": "promises", "missing": "missing",
}  # fmt: skip


class RecordError(Exception):
    """A file is no record that this kit can read."""


def new(kit, begun, simulated):
    """Return a record without stages; *simulated* names the simulated machine, or is None."""
    return {
        "format": FORMAT, "version": VERSION, "kit": kit, "begun": begun,
        "simulated": simulated, "stages": {},
    }  # fmt: skip


def stage(state, reason, seconds, lines):
    """Return what a record has of one stage; *lines* as report.read_lines gives them."""
    assert state in STATES, state
    entry = {"state": state, "reason": reason, "seconds": round(seconds, 3)}
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


def read(path):
    """Return the record in the file at *path*; RecordError says what is wrong with it."""
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise RecordError(f"{path}: cannot be read: {exc}") from exc
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise RecordError(f"{path}: cut short, or not JSON ({exc}); copy the file again") from exc
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise RecordError(f'{path}: not a record: "format" must be "{FORMAT}"')
    if found.get("version") != VERSION:
        raise RecordError(
            f"{path}: a record of version {found.get('version')!r}: must be {VERSION}; "
            "read it with the pyvgpu that made it"
        )
    if not isinstance(found.get("stages"), dict) or not all(
        isinstance(entry, dict) and entry.get("state") in STATES
        for entry in found["stages"].values()
    ):
        raise RecordError(f"{path}: its stages are damaged; copy the file again")
    return found
