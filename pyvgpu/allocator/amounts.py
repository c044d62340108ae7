"""Parse quantities of our extended resources: plain numbers, never sizes.

A quantity with a binary suffix is a size, so the user meant another number of units; the same
holds for an amount of memory that no device has. The API server writes 1000 back as ``1k``, so a
decimal suffix does not show what the user meant.
"""

from __future__ import annotations

import decimal
import re

from pyvgpu import errors, names, quantity

UNIT_BYTES: int = 256 * quantity.UNITS["Mi"]  # default size of one unit of vmemory
TOO_LARGE_BYTES: int = quantity.UNITS["Ti"]  # no GPU has so much memory

_EXAMPLE_BYTES: int = 4 * quantity.UNITS["Gi"]
_MEBIBYTE: int = quantity.UNITS["Mi"]
_LONGEST = 15  # digits; larger than any device's amount
_NUMBER = re.compile(r"([0-9]{1,15})(k|M|G|T)")
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGTPE]i)")


def whole(text: object, name: str, example: int = 50) -> int:
    """Parse the quantity of resource *name*, as the API server writes it.

    UsageError for anything but a whole number from 0; it gives *example*.
    """
    written = str(text)
    if written.isdecimal() and len(written) <= _LONGEST:
        return int(written)
    match = _NUMBER.fullmatch(written)
    if match is None:
        raise errors.UsageError(
            f"{name} {written[:40]!r}: must be a whole number, such as {example}"
        )
    return int(match.group(1)) * int(quantity.UNITS[match.group(2)])


def units(text: object, name: str, unit: int | None) -> int:
    """Parse *text* as a number of memory units of *unit* bytes (None: unknown).

    UsageError for anything but a whole number from 0; for a size it suggests the number of units.
    """
    written = str(text)
    match = _SIZE.fullmatch(written)
    example = _in_units(_EXAMPLE_BYTES, unit or UNIT_BYTES) or 1
    if match is None:
        return whole(text, name, example)
    size = int(decimal.Decimal(match.group(1)) * int(quantity.UNITS[match.group(2)]))
    counted = quantity.format_exact(unit or UNIT_BYTES) + ("" if unit else " (the default)")
    meant = _in_units(size, unit or UNIT_BYTES)
    raise errors.UsageError(
        f"{name} {written!r}: counts units of {counted} and takes a number without a suffix"
        + (
            f"; {written} is {meant}{_in_mebibytes(size, name)}"
            if meant
            else f", such as {example}"
        )
    )


def check_units(count: int, unit: int, devices: int, name: str) -> None:
    """Raise UsageError if *count* units on *devices* are more than a device can have."""
    each = count * unit // devices
    if each < TOO_LARGE_BYTES:
        return
    size = count * _MEBIBYTE
    read = f"{count} MiB"
    if unit == _MEBIBYTE or size // devices >= TOO_LARGE_BYTES:
        size, read = count, f"{count} bytes"
    meant = _in_units(size, unit)
    if meant:
        words = "unit" if meant == 1 else "units"
        what = f"{read} are {meant} {words}{_in_mebibytes(size, name)}"
    else:
        what = f"ask for less, such as {_in_units(_EXAMPLE_BYTES, unit) or 1}"
    total = f"{count} units of {quantity.format_exact(unit)} are {quantity.format_size(each)}"
    where = f" on each of {devices} devices" if devices > 1 else ""
    raise errors.UsageError(f"{name} '{count}': {total}{where}; no GPU has that much; {what}")


def _in_units(size: int, unit: int) -> int:
    """Return the units that hold *size*; 0 for less than one unit, which cannot be meant."""
    return 0 if size < unit else -(-size // unit)


def _in_mebibytes(size: int, name: str) -> str:
    """Return the same request in MiB, for users of vmemory; empty for other resources."""
    if name != names.VMEMORY_RESOURCE:
        return ""
    return f" (or {names.VMEMORY_MIB_RESOURCE}: {-(-size // _MEBIBYTE)})"
