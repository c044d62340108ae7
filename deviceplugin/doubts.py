"""Deadline for matching a pod's grants to the pod, after which the pod is refused for good.

The pod is then evicted through the API server; kubelet alone would retry its start forever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Container


class Doubts:
    """Since when each pod has been refused for temporary reasons."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._since: dict[str, float] = {}

    def is_late(self, uid: str) -> bool:
        """Record that a pod is refused; whether it has been for too long."""
        now = self._clock()
        return now - self._since.setdefault(uid, now) > self._seconds

    def forget(self, uid: str) -> None:
        """Reset the deadline of a pod whose grants are matched."""
        self._since.pop(uid, None)

    def keep(self, uids: Container[str]) -> None:
        """Forget all pods but *uids*, which still exist."""
        self._since = {uid: since for uid, since in self._since.items() if uid in uids}
