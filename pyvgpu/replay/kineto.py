"""Reader for PyTorch profiler traces (Kineto): JSON trace events, times in microseconds."""

from __future__ import annotations

import json
import zlib
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.replay.recording import DeviceActivity, HostCall, Recording, first_of, kind_of

if TYPE_CHECKING:
    from pathlib import Path

_CALLS = frozenset(("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "runtime"))
_WORK = frozenset(("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"))
_STEP = "ProfilerStep"
_way = first_of((("htod", "h2d"), ("dtoh", "d2h"), ("dtod", "d2d"), ("hosttodevice", "h2d"),
                 ("devicetohost", "d2h"), ("devicetodevice", "d2d")))  # fmt: skip
_EXAMPLE = "such as torch.profiler's export_chrome_trace writes"


def read(path: Path, text: str) -> Recording:
    """Parse the *text* of a trace."""
    # Decimals: a float cannot hold an absolute time in microseconds to the nanosecond.
    try:
        document = json.loads(text, strict=False, parse_float=Decimal)
    except (ValueError, RecursionError) as exc:
        raise errors.DataError(f"{path}: is not complete JSON ({exc}), {_EXAMPLE}") from exc
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise errors.DataError(f"{path}: has no list of traceEvents, {_EXAMPLE}")
    calls: list[HostCall] = []
    activities: list[DeviceActivity] = []
    steps: list[tuple[int, int]] = []
    syncs: list[dict[str, Any]] = []
    for number, event in enumerate(events):
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        category = str(event.get("cat")).lower()
        try:
            if category in _WORK:
                activities.append(_activity(event))
            elif category in _CALLS:
                kind = kind_of(str(event["name"]))
                if kind is not None:
                    calls.append(_call(event, kind))
            elif category == "cuda_sync":
                syncs.append(_arguments(event))
            elif str(event.get("name")).startswith(_STEP) and category != "gpu_user_annotation":
                start = _ns(event["ts"])
                steps.append((start, start + _ns(event["dur"])))
        except (KeyError, TypeError, ValueError, ArithmeticError) as exc:
            raise errors.DataError(
                f"{path}: event {number} ({category}): {_what(event, exc)}; it must have ts, dur "
                'and args, such as "ts": 12.5, "dur": 3.25, "args": {"correlation": 7}'
            ) from exc
    _name_streams(calls, syncs)
    properties = document.get("deviceProperties") if isinstance(document, dict) else None
    gpus = {
        each["id"]: str(each.get("name", ""))
        for each in (properties if isinstance(properties, list) else ())
        if isinstance(each, dict) and isinstance(each.get("id"), int)
    }
    return Recording(calls, activities, sorted(set(steps)), gpus)


def _what(event: dict[str, Any], exc: Exception) -> str:
    """Describe the error of an event."""
    if isinstance(exc, KeyError):
        return f"it has no {exc.args[0]}"
    return f"ts is {event.get('ts')!r}, dur {event.get('dur')!r}, args {event.get('args')!r:.80}"


def _arguments(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event's args; TypeError if they, or their correlation, have another type."""
    arguments = event["args"]
    if not isinstance(arguments, dict):
        raise TypeError("args")
    if not isinstance(arguments.get("correlation"), int | str | None):
        raise TypeError("correlation")
    return arguments


def _ns(microseconds: int | Decimal | str) -> int:
    return round(Decimal(microseconds) * 1000)


def _activity(event: dict[str, Any]) -> DeviceActivity:
    arguments = _arguments(event)
    kind = str(event["cat"]).lower().removeprefix("gpu_")
    name = str(event["name"])
    return DeviceActivity(
        arguments.get("correlation"),
        _ns(event["ts"]),
        _ns(event["dur"]),
        _way(name.replace(" ", "").replace("->", "to")) if kind == "memcpy" else kind,
        int(arguments.get("device", 0)),
        int(arguments.get("stream", 0)),
        name,
        _sizes(arguments.get("grid")),
        _sizes(arguments.get("block")),
        int(arguments.get("shared memory") or 0),
    )


def _sizes(given: list[int | str] | None) -> tuple[int, ...] | None:
    return tuple(map(int, given)) if given else None


def _call(event: dict[str, Any], kind: str) -> HostCall:
    return HostCall(
        _number(event["pid"]),
        _number(event["tid"]),
        _ns(event["ts"]),
        _ns(event.get("dur", 0)),
        kind,
        _arguments(event).get("correlation"),
    )


def _number(given: int | str) -> int:
    """Return the number of a process or thread; a name is hashed to a number."""
    return given if isinstance(given, int) else zlib.crc32(str(given).encode())


def _name_streams(calls: list[HostCall], syncs: list[dict[str, Any]]) -> None:
    """Add the streams of waits, which are recorded separately from their calls."""
    by_key = {call.key: call for call in calls}
    for arguments in syncs:
        call = by_key.get(arguments.get("correlation"))
        stream = arguments.get("stream")
        if call is not None and isinstance(stream, int) and 0 <= stream < 2**32 - 1:
            call.stream = stream
