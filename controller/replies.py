"""What a route of a server answers; see https.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """JSON, or one line of text where the code is not 200."""

    content: bytes
    result: str  # for figures
    code: int = 200


Route = Callable[[bytes], Reply]  # a body to its reply
