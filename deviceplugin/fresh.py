"""Cache of grants just prepared, for kubelet's second PreStartContainer call of a container.

Before kubelet creates a container, it makes one call for each of its resources, one after the
other. So the files that were prepared at the first call are not checked again at the second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu.deviceplugin.ids import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Container

SECONDS = 5.0  # a later call belongs to another start

_ALL = frozenset({Kind.VCORE, Kind.VMEMORY})


class Fresh:
    """The grants just prepared, and the kinds of which kubelet's call is still to come."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: dict[str, tuple[frozenset[Kind], float]] = {}

    def note(self, grant_id: str, asked: Kind | None = None) -> None:
        """Record a prepared grant; *asked*: the kind of the current call, None without one."""
        self._left[grant_id] = _ALL - {asked}, self._clock()

    def take(self, grant_id: str, kind: Kind) -> bool:
        """Tell whether a call for *kind* finds the grant prepared; valid once for each kind."""
        left, since = self._left.pop(grant_id, (frozenset[Kind](), 0.0))
        if kind not in left or self._clock() - since > SECONDS:
            return False
        self._left[grant_id] = left - {kind}, since
        return True

    def keep(self, ids: Container[str]) -> None:
        """Forget all but these grants."""
        self._left = {it: left for it, left in self._left.items() if it in ids}
