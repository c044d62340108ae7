"""What was chosen for a pod, and what of each device it takes from others by that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.allocator import annotations as notes
from pyvgpu.allocator import facts, place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyvgpu.controller.objects import Object

    Shares = Mapping[str, Sequence[facts.Share]]  # by container


def read(
    noted: Object,
    keys: Sequence[bytes] | None,
    who: tuple[str, str, str],
    kinds: Mapping[str, facts.Kind],
) -> tuple[facts.Holding, ...] | None:
    """Return what a pod holds by the choice that is *noted* on it; None if there is none.

    *who* are the pod's namespace/name, its uid and its node; *kinds* are its containers in the
    order of its spec. A choice counts if one of the *keys* has sealed it for this pod there;
    without *keys* every one does, for whoever only shows it.
    """
    (key, uid, node), text = who, noted.get(names.DEVICES_ANNOTATION)
    if not isinstance(text, str):
        return None
    try:
        choice = (
            notes.show(text, uid, node)
            if keys is None
            else notes.open_sealed(text, keys, uid, node)
        )
    except errors.DataError:
        return None
    return peak(kinds, choice.containers, key)


def peak(
    kinds: Mapping[str, facts.Kind], shares: Shares, holder: str
) -> tuple[facts.Holding, ...]:
    """Return what containers that have *shares* hold of each device at most at once.

    One of which it is not known when it runs is taken to run all the time.
    """
    need = facts.Need(facts.WHOLE, 0)  # is of no matter here
    order = {name: at for at, name in enumerate(kinds)}
    containers = [
        facts.Container(name, need, kinds.get(name, facts.Kind.SIDECAR))
        for name in sorted(shares, key=lambda name: order.get(name, -1))
    ]
    return place.holdings(containers, shares, holder)
