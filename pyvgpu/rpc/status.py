"""How calls end: gRPC's codes, as far as we say or understand them."""

from __future__ import annotations

import enum
import urllib.parse

_MOST_LETTERS = 2000  # of a message: headers are to be short


class Code(enum.IntEnum):
    """Why a call has failed."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallError(Exception):
    """A call has failed."""

    def __init__(self, code: Code, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details


def parse(code: bytes, message: bytes) -> CallError | None:
    """Return what the trailers of a call say; None if it went well."""
    try:
        found = Code(int(code))
    except ValueError:
        found = Code.UNKNOWN
    if found is Code.OK:
        return None
    return CallError(found, urllib.parse.unquote(message.decode("ascii", "replace")))


def quoted(details: str) -> bytes:
    """Return *details* as a header may carry them."""
    safe = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
    return urllib.parse.quote(details[:_MOST_LETTERS], safe=safe, errors="replace").encode()
