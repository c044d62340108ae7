"""Calls a function in a forked child, optionally as another user."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - a child of another user cannot load it
import os
import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

OTHER_UID = 65534


def become(uid: int) -> None:
    """Drop this process's privileges to those of user *uid*."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def call(function: Callable[[], Any], *, uid: int | None = None) -> Any:
    """Return the result of *function* in a child, or the exception that it raised."""
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
