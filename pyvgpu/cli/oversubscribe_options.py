"""The options of `pyvgpu run --oversubscribe`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import errors, oversubscription, quantity
from pyvgpu.machine import holders
from pyvgpu.run import oversubscriber

if TYPE_CHECKING:
    import argparse

_DEFAULTS = oversubscription.MoveRules()
_WAIT_SECONDS = oversubscriber.WAIT_SECONDS
MOST_RATIO = oversubscription.MOST_RATIO


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add them to *parser*."""
    add = parser.add_argument
    add(
        "--oversubscribe",
        nargs="?",
        const="2",
        metavar="RATIO",
        help="reserve although other runs have the room, up to RATIO times the device (2): idle "
        "runs that were started with this option are suspended to make room, this one, too",
    )
    add(
        "--idle",
        metavar="SECONDS",
        help="with --oversubscribe: the run may be suspended after so long without work "
        f"({_DEFAULTS.idle_seconds:g})",
    )
    add(
        "--slice",
        metavar="SECONDS",
        help="with --oversubscribe: the run may be suspended after so long although it works, if "
        f"a suspended run wants to work ({_DEFAULTS.slice_seconds:g})",
    )
    add(
        "--wait",
        metavar="SECONDS",
        help="with --oversubscribe: how long to wait for room before the start is refused "
        f"({_WAIT_SECONDS:g})",
    )
    add(
        "--moves",
        metavar="N",
        help="with --oversubscribe: the most suspensions and resumptions of the device's runs per "
        f"minute; the lowest of its runs counts ({_DEFAULTS.moves_per_minute})",
    )
    add(
        "--host-memory",
        metavar="SIZE",
        help="with --oversubscribe: do not suspend the run if all suspended runs would then have "
        "more host memory than this (what is available)",
    )


def parse(options: argparse.Namespace) -> oversubscriber.OversubscribeRequest | None:
    """Return what they ask for, None without --oversubscribe; UsageError if it is invalid."""
    rest = ("idle", "slice", "wait", "moves", "host_memory")
    if options.oversubscribe is None:
        for name in rest:
            if getattr(options, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise errors.UsageError(f"{option}: needs --oversubscribe, such as {_EXAMPLE}")
        return None
    if options.sharing == "mps":
        raise errors.UsageError(
            "--oversubscribe and --sharing mps: must not both be given; the driver cannot suspend "
            "clients of MPS"
        )
    rules = oversubscription.MoveRules(
        _number(options.idle, "--idle", _DEFAULTS.idle_seconds, 1, 86400),
        _number(options.slice, "--slice", _DEFAULTS.slice_seconds, 1, 86400),
        int(_number(options.moves, "--moves", _DEFAULTS.moves_per_minute, 1, 1000)),
    )
    host_memory = options.host_memory
    return oversubscriber.OversubscribeRequest(
        holders.OversubscribedRequest(
            _parse_ratio(options.oversubscribe),
            rules,
            None if host_memory is None else quantity.parse_size(host_memory, "--host-memory"),
        ),
        _number(options.wait, "--wait", _WAIT_SECONDS, 0, 86400),
    )


_EXAMPLE = "--oversubscribe=2 --idle 600"


def _number(text: str | None, option: str, default: float, least: float, most: float) -> float:
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not least <= number <= most:
        raise errors.UsageError(
            f"{option} {text[:40]!r}: must be {least:g} to {most:g}, such as {default:g}"
        )
    return number


def _parse_ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = 0.0
    if not 1 < ratio <= MOST_RATIO:
        raise errors.UsageError(
            f"--oversubscribe {text[:40]!r}: must be a ratio above 1 and up to {MOST_RATIO}, such "
            "as 2; without one, write -- before the command"
        )
    return ratio
