"""Exponential backoff with jitter for failed API requests."""

from __future__ import annotations

OUTDATED = frozenset({404, 409, 422})  # the object is gone or has changed: re-read it
TEMPORARY = frozenset({401, 408, 409, 429})  # token rotated, timeout, conflict, rate limit
FIRST_SECONDS = 0.5
LONGEST_SECONDS = 60.0


def is_final(status: int) -> bool:
    """Return whether the API server would refuse every retry with the same body as well."""
    return 400 <= status < 500 and status not in TEMPORARY


def longest(attempt: int) -> float:
    """Return the most seconds to wait before *attempt*, unless the server asks for more."""
    return min(FIRST_SECONDS * 2.0 ** min(attempt, 16), LONGEST_SECONDS)


def delay(
    attempt: int, chance: float, status: int | None = None, retry_after: float | None = None
) -> float:
    """Return the seconds to wait before *attempt* (1, 2...), given *chance* from 0 to 1.

    Full jitter over a time that doubles, so that many pods do not retry together; never sooner
    than Retry-After. A conflict is not a failure: the watch event of the change that caused it is
    on its way, so the delay is short, but it grows, too.
    """
    most = longest(attempt)
    if status in OUTDATED:
        most = min(most / 4, 5.0)
    return max(retry_after or 0.0, most * (0.1 + 0.9 * chance))
