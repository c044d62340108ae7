"""How long kubelet's calls take, and what comes of them."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import time
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Result(enum.StrEnum):
    """What comes of a call."""

    DONE = "done"
    REFUSED = "refused"
    WAITS = "waits"  # refused for now: the pod waits for room, and nothing is wrong


# Told of each call its name, its seconds, and its result.
Count: TypeAlias = "Callable[[str, float, Result], None]"


@dataclasses.dataclass(slots=True)
class Call:
    """A call that is being answered; an exception is one that is not done, too."""

    done: bool = True


@contextlib.contextmanager
def counted(count: Count, name: str) -> Iterator[Call]:
    """Tell *count* of the call that the block answers, when that has ended."""
    begun, call = time.perf_counter(), Call()
    try:
        yield call
    except BaseException:
        call.done = False
        raise
    finally:
        result = Result.DONE if call.done else Result.REFUSED
        count(name, time.perf_counter() - begun, result)
