"""How long to wait after the API server did not take what we sent."""

from __future__ import annotations

OUTDATED = frozenset({404, 409, 422})  # what was meant has gone or changed: read it again
FIRST_SECONDS = 0.5
LONGEST_SECONDS = 60.0


def delay(
    attempt: int, chance: float, status: int | None = None, retry_after: float | None = None
) -> float:
    """Return the seconds to wait before *attempt* (1, 2...), given *chance* from 0 to 1.

    Full jitter over a time that doubles, so that many pods do not come back together; never
    sooner than the server asked for. A conflict is no failure: the news of the pod that caused it
    is on its way, so the wait is short, but it grows too.
    """
    longest = min(FIRST_SECONDS * 2.0 ** min(attempt, 16), LONGEST_SECONDS)
    if status in OUTDATED:
        longest = min(longest / 4, 5.0)
    return max(retry_after or 0.0, longest * (0.1 + 0.9 * chance))
