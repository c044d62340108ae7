"""Which grants are over: that a pod is not listed by kubelet is not enough.

A kubelet that has just started lists no pod until it has heard of the API server, which may be
away for hours while all containers go on. So a pod that kubelet does not list is over only if

- that kubelet, since it started, has listed it: in one life it forgets nobody who lives; or
- the API server says that there is no such pod any more, or that it has ended; or
- kubelet's checkpoint has no such grant: it drops one only when it knows of all pods.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from pyvgpu.deviceplugin.grants import Grant, Owner
    from pyvgpu.deviceplugin.podresources import Listing

FORGET_SECONDS = 60.0  # after which a grant that kubelet has never written down is none


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """What kubelet says at one moment."""

    listing: Listing
    written: frozenset[str]  # the grants in its checkpoint


class Endings:
    """Knows what each life of kubelet has listed, and since when it does not know a grant."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._noting = threading.Lock()
        self._life: object = None
        self._seen: frozenset[tuple[str, str]] = frozenset()  # pods, by namespace and name
        self._unknown: dict[str, float] = {}  # since when kubelet does not know a grant
        self.ask: Callable[[Owner], bool] = lambda _: False  # whether that pod is surely over

    def note(self, listing: Listing) -> None:
        """Remember whom a kubelet has listed."""
        with self._noting:
            before = self._seen if listing.life == self._life else frozenset()
            self._life, self._seen = listing.life, before | listing.names

    def over(self, known: Collection[Grant], said: Said) -> list[Grant]:
        """Return which of the *known* are over; none that was bound since kubelet *said* it."""
        now = self._clock()
        self._unknown = {
            it.id: self._unknown.get(it.id, now) for it in known if it.id not in said.written
        }
        self.note(said.listing)
        return [it for it in known if self._is_over(it, said, now)]

    def _is_over(self, grant: Grant, said: Said, now: float) -> bool:
        owner = grant.owner
        if owner is None:
            return now - self._unknown.get(grant.id, now) > FORGET_SECONDS
        if grant.over or grant.id in self._unknown:
            return True
        if not owner.pod or _name(owner) in said.listing.names:
            return False
        return _name(owner) in self._seen or self.ask(owner)

    def keep(self, known: Iterable[Grant]) -> None:
        """Remember none but the pods of grants: *known* are all that there are now.

        Whom a start has met in the list is noted when nobody can come here before it is bound.
        """
        with self._noting:
            self._seen &= {_name(it.owner) for it in known if it.owner is not None}


def _name(owner: Owner) -> tuple[str, str]:
    return owner.namespace, owner.pod
