"""Tells the cluster what the node has, in an annotation on the node; see allocator/annotations.

Written when it is another than before, once for all who have changed something meanwhile; and
looked at now and then, since a node may be deleted and come again.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.allocator import annotations as notes
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyvgpu.allocator import facts
    from pyvgpu.deviceplugin import ownnode
    from pyvgpu.deviceplugin.grants import Grant

log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0  # between two looks at whether it still stands there
AGAIN_SECONDS = 5.0  # until what could not be written is tried again
PATIENCE_SECONDS = 1.0  # for which a container's start waits until it is written


def text_of(
    unit: int,
    devices: Iterable[facts.Device],
    minors: Mapping[str, int],
    grants: Iterable[Grant],
) -> str:
    """Return the annotation: the devices, and what was placed on them by nobody but us."""
    placed: dict[str, dict[str, tuple[facts.Share, ...]]] = {}
    for grant in grants:
        if grant.owner is not None and not grant.chosen:
            placed.setdefault(grant.owner.uid, {})[grant.owner.container] = _promised(grant, unit)
    return notes.publish(notes.Published(unit, tuple(devices), minors, placed))


def _promised(grant: Grant, unit: int) -> tuple[facts.Share, ...]:
    """Return what a grant has of its devices, though its administrator may have lowered it."""
    if grant.whole:
        return grant.shares
    if grant.claim is not None:
        return grant.claim.shares
    vcore, vmemory = grant.promised(unit)
    return tuple(
        dataclasses.replace(it, vcore=max(it.vcore, vcore), vmemory=max(it.vmemory, vmemory))
        for it in grant.shares
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Told:
    """What stands on the node."""

    text: str = ""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Publisher:
    """Writes what :func:`text_of` gives, from :meth:`run` until :meth:`stop`."""

    def __init__(
        self,
        node: ownnode.OwnNode,
        text: Callable[[], str],
        labels: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._node = node
        self._text = text
        self._labels = labels  # which the node shall have besides
        self._changed = threading.Condition()
        self._wanted = 0  # changes so far
        self._written = 0  # of them
        self._failing = self._stopped = False

    def changed(self) -> None:
        """Let it be written soon."""
        with self._changed:
            self._wanted += 1
            self._changed.notify_all()

    def wait(self, seconds: float = PATIENCE_SECONDS) -> bool:
        """Be back when what has changed so far is written; False if it is not.

        Nobody waits for an API server that has just refused.
        """
        with self._changed:
            wanted = self._wanted
            self._changed.wait_for(
                lambda: self._written >= wanted or self._failing or self._stopped, seconds
            )
            return self._written >= wanted

    def stop(self) -> None:
        """Let :meth:`run` end."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def run(self) -> None:
        """Write whenever something has changed."""
        known, due = _Told(), 0.0
        while (begun := self._wait(due)) is not None:
            try:
                if time.monotonic() >= due:
                    known, due = self._read(), time.monotonic() + LOOK_SECONDS
                told = _Told(self._text(), dict(self._labels()))
                if told.text != known.text or not told.labels.items() <= known.labels.items():
                    self._write(told)
                known = told
            except apiserver.ServerError as exc:
                if not self._failing:
                    log.warning("what this node has cannot be published: %s", exc)
                due = time.monotonic() + AGAIN_SECONDS
                self._note(begun, failing=True)
            else:
                self._note(begun, failing=False)

    def _wait(self, due: float) -> int | None:
        """Return the number of changes when there is something to do; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._wanted)  # nothing is known yet
            self._changed.wait_for(
                lambda: self._stopped or (self._wanted > self._written and not self._failing),
                max(0.0, due - time.monotonic()),
            )
            return None if self._stopped else self._wanted

    def _note(self, begun: int, *, failing: bool) -> None:
        with self._changed:
            self._failing = failing
            if not failing:
                self._written = begun
            self._changed.notify_all()

    def _read(self) -> _Told:
        meta = self._node.metadata()
        text = (meta.get("annotations") or {}).get(names.NODE_DEVICES_ANNOTATION, "")
        return _Told(str(text), meta.get("labels") or {})

    def _write(self, told: _Told) -> None:
        noted = {names.NODE_DEVICES_ANNOTATION: told.text}
        self._node.write({"annotations": noted, "labels": told.labels})
