"""A function in a forked child, as another user if wanted."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - a child of another user cannot load it
import os
import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY = 65534


def become(uid: int) -> None:
    """Be an ordinary user from here on."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def call(function: Callable[[], Any], *, uid: int | None = None) -> Any:
    """Return what *function* returns, or the exception it raised, in a child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            if uid is not None:
                become(uid)
            try:
                answer = function()
            except Exception as exc:
                answer = exc
            os.write(writer, pickle.dumps(answer))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with status {status}"
    return pickle.loads(text)
