"""Formatting of a record's figures."""

from __future__ import annotations

_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


def shown(value: float | str | None, unit: str) -> str:
    """Format *value* with its *unit*: bytes and nanoseconds in larger units, None as `-`."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if unit == "bytes":
        return _scaled(value, _SIZES, "B")
    if unit == "ns":
        return _scaled(value, _TIMES, "ns")
    return f"{value:,.6g} {unit}".rstrip()


def _scaled(value: float, steps: tuple[tuple[float, str], ...], smallest: str) -> str:
    for size, name in steps:
        if abs(value) >= size:
            return f"{value / size:,.4g} {name}"
    return f"{value:,.4g} {smallest}"
