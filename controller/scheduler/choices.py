"""Read the device choice on a pod, and compute what it holds of each device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.allocator import annotations as notes
from pyvgpu.allocator import datatypes, pod_placement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyvgpu.kube.objects import Object

    Shares = Mapping[str, Sequence[datatypes.NodeShare]]  # by container


def read(
    noted: Object,
    keys: Sequence[bytes] | None,
    pod: tuple[str, str, str],
    kinds: Mapping[str, datatypes.ContainerKind],
) -> tuple[datatypes.Holding, ...] | None:
    """Return what a pod holds by the choice in its annotations *noted*; None if there is none.

    *pod* is the pod's namespace/name, its uid and its node; *kinds* are its containers in the
    order of its spec. A choice counts if one of the *keys* sealed it for this pod on this node;
    if *keys* is None every choice counts, which is for display only.
    """
    (key, uid, node), text = pod, noted.get(names.DEVICES_ANNOTATION)
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
    kinds: Mapping[str, datatypes.ContainerKind], shares: Shares, holder: str
) -> tuple[datatypes.Holding, ...]:
    """Return the most that containers with *shares* hold of each device at the same time.

    A container of unknown kind is assumed to run all the time.
    """
    need = datatypes.ContainerNeed(datatypes.WHOLE, 0)  # not used here
    order = {name: at for at, name in enumerate(kinds)}
    containers = [
        datatypes.Container(name, need, kinds.get(name, datatypes.ContainerKind.SIDECAR))
        for name in sorted(shares, key=lambda name: order.get(name, -1))
    ]
    return pod_placement.holdings(containers, shares, holder)
