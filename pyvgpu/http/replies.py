"""Replies of HTTP routes; see tls_server.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """JSON, or one line of text where the code is not 200."""

    content: bytes
    result: str  # for metrics
    code: int = 200


Route = Callable[[bytes], Reply]  # from request body to reply
