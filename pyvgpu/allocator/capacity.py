# cython: language_level=3, annotation_typing=False, wraparound=False
"""Filter and score thousands of nodes for a pod, on plain numbers.

Compiled by Cython with the types of capacity.pxd; it also works uncompiled, only slower.
free_capacity.py converts devices, selectors and pods to these numbers.
"""

from __future__ import annotations

import array
from typing import TYPE_CHECKING, Any

from pyvgpu import quantity
from pyvgpu.allocator.codes import (
    BEST,
    CLOSED,
    FEW,
    FEWER,
    FITS,
    FULL,
    NONSENSE,
    SMALL,
    TAKEN,
    UNKNOWN,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

WHOLE = quantity.WHOLE_DEVICE
CELLS = 9  # numbers of a device
# Scores of nodes on which pods are suspended to make room, and lowest one of others that could be.
_CROWDED, _ROOMY = 2, 3


def serves(
    memory: int,
    least: int,
    left_vcore: int,
    left_bytes: int,
    untouched: bool,
    vcore: int,
    vmemory: int,
) -> bool:
    """Return whether a share fits on a device of *memory* bytes with this much left.

    A share takes *vcore*, from 1 to 100, and *vmemory* bytes, and must have *least* bytes. A share
    of 100 takes the whole device, on which nothing may be allocated.
    """
    if vmemory > memory:
        return False
    if vcore == WHOLE:
        return untouched
    return least <= vmemory <= left_bytes and vcore <= left_vcore


class Ask:
    """A pod's request: vcore, bytes and number of devices of each container."""

    def __init__(
        self,
        needs: Iterable[tuple[int, int, int]],
        allow: Callable[[tuple[Any, ...]], bytes] | None,
        uuids: frozenset[str],
        not_uuids: frozenset[str],
        special: bool = False,
    ) -> None:
        """Request *needs* on devices that match.

        *allow* returns for each of a node's kinds whether it matches, 1 or 0; None: all do. A
        device must be one of *uuids*, if there are any, and none of *not_uuids*. *special* pods
        go only to devices that take no others, such as GPUs for MIG instances.
        """
        listed = list(needs)
        self._needs = array.array("q", [number for need in listed for number in need])
        # The needs of the largest container.
        self._vcore, self._vmemory = max([need[:2] for need in listed], default=(0, 0))
        self._count = len(self._needs) // 3
        self._allow = allow
        self._uuids, self._not_uuids = uuids, not_uuids
        self._names = bool(uuids or not_uuids)
        self._special = special
        self._allowed: dict[tuple[Any, ...], bytes] = {}

    def allowed(self, kinds: tuple[Any, ...]) -> bytes | None:
        """Return for each of the *kinds* whether it matches, 1 or 0; None: all do."""
        if self._allow is None:
            return None
        found = self._allowed.get(kinds)
        if found is None:
            found = self._allowed[kinds] = self._allow(kinds)
        return found

    def wants(self, uuid: str) -> bool:
        """Return whether the device *uuid* matches."""
        return uuid not in self._not_uuids and (not self._uuids or uuid in self._uuids)


class Capacity:
    """The free capacity of each device of one node."""

    def __init__(
        self,
        unit: int,
        devices: Iterable[tuple[int, int, int, int, int, int, int, int, int]],
        kinds: tuple[Any, ...],
        uuids: tuple[str, ...],
    ) -> None:
        """Create that of a node with units of *unit* bytes; 0: the node is unknown.

        For each of the *devices*, called *uuids*: its bytes, the minimum bytes of a share, the
        free vcore and bytes, the number of its tenants, the index of its kind in *kinds* (-1 if it
        takes no new shares, -2 minus the index if it takes those of special pods only), its used
        part (FULL for all), and the vcore and bytes by which its shares may exceed it.
        """
        self.unit = unit
        self._kinds = kinds
        self._uuids = uuids
        self._cells = array.array("q", [number for device in devices for number in device])
        self._count = len(self._cells) // CELLS

    def _may(self, ask: Ask, allowed: bytes | None, device: int) -> bool:
        """Return whether the device with this number is open to a pod."""
        kind = self._cells[CELLS * device + 5]
        if ask._special:
            kind = -2 - kind
        if kind < 0 or (allowed is not None and not allowed[kind]):
            return False
        return not ask._names or ask.wants(self._uuids[device])

    def _has_room(self, device: int, vcore: int, vmemory: int) -> bool:
        """Return whether the device with this number has that much left."""
        at = CELLS * device
        return serves(
            self._cells[at],
            self._cells[at + 1],
            self._cells[at + 2],
            self._cells[at + 3],
            self._cells[at + 4] == 0,
            vcore,
            vmemory,
        )

    def evaluate(self, ask: Ask) -> int:
        """Return FITS, or why the pod does not fit: the first of CLOSED to FEW that applies.

        Each container is evaluated as if it were the only one.
        """
        allowed = ask.allowed(self._kinds)
        found = FITS
        for container in range(ask._count):
            vcore = ask._needs[3 * container]
            vmemory = ask._needs[3 * container + 1]
            count = ask._needs[3 * container + 2]
            opened = large = serving = 0
            for device in range(self._count):
                if not self._may(ask, allowed, device):
                    continue
                opened += 1
                memory, least = self._cells[CELLS * device], self._cells[CELLS * device + 1]
                if serves(memory, least, WHOLE, memory, True, vcore, vmemory):
                    large += 1
                    if self._has_room(device, vcore, vmemory):
                        serving += 1
            if not opened:
                return CLOSED
            if large < count:
                return FEWER if large else SMALL
            if serving < count and found == FITS:
                found = FEW if serving else TAKEN
        return found

    def _has_spare(self, device: int, vcore: int, vmemory: int) -> bool:
        """Return whether its shares do not exceed the device with this number after that much."""
        at = CELLS * device
        return (
            self._cells[at + 2] - vcore >= self._cells[at + 7]
            and self._cells[at + 3] - vmemory >= self._cells[at + 8]
        )

    def score(self, ask: Ask, spread: bool) -> int:
        """Return a score from 0 to 10 by the use of the node, and of its fullest fitting device.

        A fitting device has room for the largest container. With *spread* the emptiest device
        counts, and emptier nodes score higher. If devices are oversubscribed, only those count
        whose shares would not exceed them; a node without such a device scores from 0 to 2, the
        emptier the higher, and others at least 3.
        """
        allowed = ask.allowed(self._kinds)
        best, total = -1, 0
        crowded, exceeds = False, False
        for device in range(self._count):
            used = self._cells[CELLS * device + 6]
            total += used
            if not self._may(ask, allowed, device) or not self._has_room(
                device, ask._vcore, ask._vmemory
            ):
                continue
            if self._cells[CELLS * device + 7] > 0 or self._cells[CELLS * device + 8] > 0:
                exceeds = True
            spare = self._has_spare(device, ask._vcore, ask._vmemory)
            if best < 0 or (crowded and spare):
                best, crowded = used, not spare
            elif crowded != spare and (used < best if spread or crowded else used > best):
                best = used
        best = max(best, 0)
        whole = total // max(self._count, 1)
        full = min((6 * best + 4 * whole) // 10, FULL)
        # Round up, so that the smallest use differs from no use.
        points = ((full + 500) // 1000 * BEST + FULL // 1000 - 1) // (FULL // 1000)
        if crowded:
            return (BEST - points) * _CROWDED // BEST
        points = BEST - points if spread else points
        return _ROOMY + points * (BEST - _ROOMY) // BEST if exceeds else points


def evaluate_all(
    nodes: Sequence[Capacity | None],
    numbers: Collection[int],
    asked: Callable[[int], Ask | None],
    codes: bytearray,
) -> None:
    """Evaluate each node of *nodes* with an index in *numbers*, and write the results to *codes*.

    *asked* returns the request in units of so many bytes, None if it is not valid.
    """
    unit = -1
    ask: Ask | None = None
    for number in numbers:
        node = nodes[number]
        if node is None or node.unit == 0:
            codes[number] = UNKNOWN
            continue
        if node.unit != unit:
            unit = node.unit
            ask = asked(unit)
        codes[number] = NONSENSE if ask is None else node.evaluate(ask)


def score_all(
    nodes: Sequence[Capacity | None],
    numbers: Collection[int],
    asked: Callable[[int], Ask | None],
    spread: bool,
    fitting: bytearray,
    scores: bytearray,
) -> None:
    """Score each node of *nodes* with an index in *numbers*, and write the results to *scores*.

    The score is 0 if the node's code in *fitting* is not FITS; see evaluate_all for *asked*.
    """
    unit = -1
    ask: Ask | None = None
    for number in numbers:
        node = nodes[number]
        if node is None or fitting[number] != FITS:
            scores[number] = 0
            continue
        if node.unit != unit:
            unit = node.unit
            ask = asked(unit)
        scores[number] = 0 if ask is None else node.score(ask, spread)
