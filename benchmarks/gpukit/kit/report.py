"""Reports of a stage: one JSON object a line, written at once, so that a kill loses none.

==========  ==========================================================
kind        fields
==========  ==========================================================
fact        name, value: something of the machine that has no unit
figure      name, value, unit, spread: [least, most] or null
guarantee     name, held: whether it was kept or null if inconclusive, detail: what was seen
missing     name, reason: a program or right that is not here
==========  ==========================================================
"""

import json
import os
import pathlib
import statistics
import time

FILE_VARIABLE = "PYVGPU_KIT_LINES"  # where a stage writes
DEADLINE_VARIABLE = "PYVGPU_KIT_DEADLINE"  # CLOCK_MONOTONIC, seconds, when it is killed
MOST_CHARACTERS = 200_000  # of a stage; all of a record have to be below 16 MiB
KINDS = {
    "fact": {"name", "value"},
    "figure": {"name", "value", "unit", "spread"},
    "guarantee": {"name", "held", "detail"},
    "missing": {"name", "reason"},
}


class Report:
    """Appends lines to the file of a stage."""

    def __init__(self, path):
        self._path = pathlib.Path(path)

    def _write(self, kind, **fields):
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, **fields}) + "\n")

    def fact(self, name, value):
        self._write("fact", name=name, value=value)

    def figure(self, name, value, unit, spread=None):
        self._write("figure", name=name, value=value, unit=unit, spread=spread)

    def median(self, name, values, unit):
        """Report the median of *values* with the least and the most."""
        values = sorted(values)
        if values:
            self.figure(name, statistics.median(values), unit, [values[0], values[-1]])

    def guarantee(self, name, held, detail):
        """Report whether a condition held; None: the measurement cannot tell."""
        held = None if held is None else bool(held)
        self._write("guarantee", name=name, held=held, detail=str(detail))

    def missing(self, name, reason):
        self._write("missing", name=name, reason=str(reason))


def from_environment():
    """Return the report of this stage's process."""
    return Report(os.environ[FILE_VARIABLE])


def seconds_left():
    """Return how long this stage has, in seconds; without a limit, an hour."""
    deadline = os.environ.get(DEADLINE_VARIABLE)
    return float(deadline) - time.monotonic() if deadline else 3600.0


def read_lines(path):
    """Return the objects that a stage wrote; a line that was cut short is left out.

    Of a stage that wrote more than MOST_CHARACTERS, the rest is named as missing.
    """
    found, characters = [], 0
    try:
        with pathlib.Path(path).open(encoding="utf-8", errors="replace") as file:
            for line in file:
                characters += len(line)
                if characters > MOST_CHARACTERS:
                    reason = f"the stage wrote more than {MOST_CHARACTERS} characters"
                    found.append(("missing", {"name": "further lines", "reason": reason}))
                    break
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                kind = entry.pop("kind", None) if isinstance(entry, dict) else None
                if kind in KINDS and set(entry) == KINDS[kind]:
                    found.append((kind, entry))
    except FileNotFoundError:
        pass
    return found
