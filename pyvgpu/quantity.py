"""Parse and format sizes and percentages.

A size is Kubernetes' quantity in whole numbers (``4Gi``, ``512Mi``, ``1G``, ``4e9``, plain
bytes) or the common spelling (``4GiB``, ``512MB``). Fractions are rejected, even if they give
whole bytes: a typing error in a limit must not become another limit.
"""

from __future__ import annotations

import re

from pyvgpu import errors

_BINARY = {f"{letter}i": 1 << (10 * power) for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL = {letter: 10 ** (3 * power) for power, letter in enumerate("kMGTPE", 1)}
UNITS = {
    "": 1,
    "B": 1,
    **_BINARY,
    **{f"{unit}B": factor for unit, factor in _BINARY.items()},
    **_DECIMAL,
    **{f"{unit}B": factor for unit, factor in _DECIMAL.items()},
}
MAXIMUM_BYTES = (1 << 52) - 1  # that fit into a word of the ledger
WHOLE_DEVICE = 100  # vcore

_SIZE = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+)(?P<fraction>\.[0-9]*)?\s?(?P<unit>[A-Za-z]*)"
)
_EXPONENT = re.compile(r"([0-9]+)[eE]\+?([0-9]+)")
_EXAMPLE = "such as 4GiB, 512Mi or 2000000000"


def parse_size(text: str, option: str) -> int:
    """Parse *text* as a size in bytes; *option* is its name in the error."""
    exponent = _EXPONENT.fullmatch(text)
    if exponent:
        number, unit = exponent.group(1), f"e{exponent.group(2)}"
        factor: int = 10 ** min(int(exponent.group(2)[:4]), 30)
    else:
        match = _SIZE.fullmatch(text)
        if not match:
            raise errors.UsageError(f"{option} {text!r}: must be a size in bytes, {_EXAMPLE}")
        number, unit = match.group("number"), match.group("unit")
        if match.group("sign") == "-":
            raise errors.UsageError(f"{option} {text!r}: must be above zero, {_EXAMPLE}")
        if unit not in UNITS:
            raise errors.UsageError(
                f"{option} {text!r}: {unit!r} is not a unit{_hint(number, unit)}; "
                f"must be a size in bytes, {_EXAMPLE}"
            )
        factor = UNITS[unit]
        if match.group("fraction"):
            raise errors.UsageError(
                f"{option} {text!r}: must be a whole number, {_EXAMPLE}; "
                "a fraction is written in the next smaller unit (1.5GiB is 1536MiB)"
            )
    if len(number) > 20 or int(number) * factor > MAXIMUM_BYTES:
        raise errors.UsageError(
            f"{option} {_shorten(text)!r}: is more than any device has "
            f"(at most {MAXIMUM_BYTES} bytes), {_EXAMPLE}"
        )
    if not int(number):
        raise errors.UsageError(f"{option} {text!r}: must be above zero, {_EXAMPLE}")
    return int(number) * factor


def parse_vcore(text: str, option: str) -> int:
    """Parse *text* as a percentage of a device's time."""
    valid = re.fullmatch(r"[0-9]{1,4}", text) is not None and 1 <= int(text) <= WHOLE_DEVICE
    if not valid:
        raise errors.UsageError(
            f"{option} {_shorten(text)!r}: must be a whole percentage of one device, "
            f"from 1 to {WHOLE_DEVICE}, such as 50{_vcore_meant(text)}"
        )
    return int(text)


def _vcore_meant(text: str) -> str:
    """Return a "did you mean" question for a percent sign or a fraction of one device."""
    match = re.fullmatch(r"([1-9][0-9]?|100) ?%|0?\.([0-9]{1,2})", text)
    if match is None:
        return ""
    vcore = int(match[1] or match[2].ljust(2, "0"))
    return f" (did you mean {vcore}?)" if vcore else ""


def format_size(size: int) -> str:
    """Format *size* for display: exact if that is short, else rounded to a tenth."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = UNITS[unit]
        if size >= factor:
            whole, rest = divmod(size, factor)
            return f"{whole}{unit}" if not rest else f"{size / factor:.1f}{unit}"
    return f"{size} bytes"


def format_exact(size: int) -> str:
    """Format *size* so that parse_size gives the same bytes, in the largest unit that fits."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]}{unit}"
    return str(size)


def round_down(size: int) -> int:
    """Return *size* rounded down to whole MiB, for short output; *size* itself below 1 MiB."""
    mib = UNITS["MiB"]
    return size // mib * mib or size


def _hint(number: str, unit: str) -> str:
    if unit == "m":
        return f" here (in Kubernetes it means thousandths; did you mean {number}Mi?)"
    near = [known for known in UNITS if known and known.lower() == unit.lower()]
    return f" (did you mean {number}{near[0]}?)" if near else ""


def meant(size: int) -> str:
    """Return a "did you mean" question for a number without a unit, empty from 1 MiB on.

    Up to 1023 users probably mean GiB, as in `docker run --memory`, and MiB beyond.
    """
    if size >= _BINARY["Mi"]:
        return ""
    return f" (did you mean {size}{'GiB' if size < _BINARY['Ki'] else 'MiB'}?)"


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
