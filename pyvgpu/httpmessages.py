"""What an HTTP server is asked and what it answers: no more than words, without the server.

Apart from httpserver.py, so that what answers can be imported where aiohttp is not installed.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

TEXT = "text/plain; charset=utf-8"


@dataclasses.dataclass(frozen=True, slots=True)
class Head:
    """The head of a request."""

    method: str
    target: str  # the path, and the query behind it
    fields: Mapping[str, str]  # by names in small letters


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What is answered to a request."""

    content: bytes
    kind: str = TEXT  # of the content, for the field Content-Type
    code: int = 200
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)  # more of the head
    last: bool = False  # the connection is closed behind it


def refusal(code: int, why: str) -> Answer:
    """Return an answer behind which the connection is closed: the request was not read whole."""
    return Answer(why.encode() + b"\n", code=code, last=True)
