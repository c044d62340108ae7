"""What was made a moment ago, for which kubelet asks once more: for each resource of a container.

Before a container is made kubelet asks for one of its resources, waits for the answer, and asks
for the other. So what was made for the first is not looked through again for the second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu.deviceplugin.ids import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Container

SECONDS = 5.0  # after which it is another start

_ALL = frozenset({Kind.VCORE, Kind.VMEMORY})


class Fresh:
    """The grants that were made since, and the kinds that were not asked for yet."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: dict[str, tuple[frozenset[Kind], float]] = {}

    def note(self, grant_id: str, asked: Kind | None = None) -> None:
        """Take note that all is made, for who has *asked* for a kind, or for nobody yet."""
        self._left[grant_id] = _ALL - {asked}, self._clock()

    def take(self, grant_id: str, kind: Kind) -> bool:
        """Tell whether it is made for who asks for *kind* now; the next is another start."""
        left, since = self._left.pop(grant_id, (frozenset[Kind](), 0.0))
        if kind not in left or self._clock() - since > SECONDS:
            return False
        self._left[grant_id] = left - {kind}, since
        return True

    def keep(self, ids: Container[str]) -> None:
        """Forget all but these grants."""
        self._left = {it: left for it, left in self._left.items() if it in ids}
