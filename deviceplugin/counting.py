"""How long kubelet's calls take, and whether what they ask for is done."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Told of each call its name, its seconds, and whether it was done.
Count: TypeAlias = "Callable[[str, float, bool], None]"


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
        count(name, time.perf_counter() - begun, call.done)
