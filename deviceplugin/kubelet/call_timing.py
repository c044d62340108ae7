"""Measure the duration and result of kubelet's calls."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import time
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class CallResult(enum.StrEnum):
    """The result of a call."""

    DONE = "done"
    REFUSED = "refused"
    WAITS = "waits"  # refused for now: the pod waits for room, and nothing is wrong


# Called after each call with its name, its seconds and its result.
Count: TypeAlias = "Callable[[str, float, CallResult], None]"


@dataclasses.dataclass(slots=True)
class TimedCall:
    """A call in progress; *done* is false if it failed, by an exception or otherwise."""

    done: bool = True


@contextlib.contextmanager
def counted(count: Count, name: str) -> Iterator[TimedCall]:
    """Report the call *name*, which the block answers, to *count* when the block has ended."""
    begun, call = time.perf_counter(), TimedCall()
    try:
        yield call
    except BaseException:
        call.done = False
        raise
    finally:
        result = CallResult.DONE if call.done else CallResult.REFUSED
        count(name, time.perf_counter() - begun, result)
