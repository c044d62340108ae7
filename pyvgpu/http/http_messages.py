"""Request and response types of the HTTP server.

Separate from http_server.py, so that request handlers can be imported without aiohttp.
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
    target: str  # path and query
    fields: Mapping[str, str]  # header fields by lower-case name


@dataclasses.dataclass(frozen=True, slots=True)
class HttpResponse:
    """The response to a request."""

    content: bytes
    kind: str = TEXT  # of the content, for the field Content-Type
    code: int = 200
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)  # more header fields
    last: bool = False  # close the connection afterwards


def refusal(code: int, why: str) -> HttpResponse:
    """Return an error response that closes the connection: the request was not fully read."""
    return HttpResponse(why.encode() + b"\n", code=code, last=True)
