"""How long it has been unknown whose a grant is, by pod: what lasts too long is refused for good.

The API server hears of that then, and kubelet's word alone would be asked for again for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Container


class Doubts:
    """Since when each pod has been refused for reasons that might pass."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._since: dict[str, float] = {}

    def is_late(self, uid: str) -> bool:
        """Note that a pod is refused; whether it has been for too long."""
        now = self._clock()
        return now - self._since.setdefault(uid, now) > self._seconds

    def forget(self, uid: str) -> None:
        """Take note that it is known whose a pod's grants are."""
        self._since.pop(uid, None)

    def keep(self, uids: Container[str]) -> None:
        """Forget all but the pods that there still are."""
        self._since = {uid: since for uid, since in self._since.items() if uid in uids}
