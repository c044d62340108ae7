"""Publishes the node's devices and placements as a node annotation; see allocator/annotations.

The publisher writes only differences, one write for all changes since the last, and re-reads the
node now and then, since a node may be deleted and created again.
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

    from pyvgpu.allocator import datatypes
    from pyvgpu.deviceplugin.cluster import own_node
    from pyvgpu.deviceplugin.grants import Grant

log = logging.getLogger(__name__)

POLL_SECONDS = 60.0  # between two checks that the node still has the annotation
AGAIN_SECONDS = 5.0  # before a failed write is retried
TIMEOUT_SECONDS = 1.0  # how long the start of a container waits for the write


def text_of(
    unit: int,
    devices: Iterable[datatypes.NodeDevice],
    minors: Mapping[str, int],
    grants: Iterable[Grant],
) -> str:
    """Return the annotation: the devices, and the pods that the agent itself placed on them."""
    placed: dict[str, dict[str, tuple[datatypes.NodeShare, ...]]] = {}
    for grant in grants:
        if grant.owner is not None and not grant.chosen:
            placed.setdefault(grant.owner.uid, {})[grant.owner.container] = _allocated(grant, unit)
    return notes.publish(notes.Published(unit, tuple(devices), minors, placed))


def _allocated(grant: Grant, unit: int) -> tuple[datatypes.NodeShare, ...]:
    """Return a grant's original shares, even where an administrator has lowered them since."""
    if grant.whole:
        return grant.shares
    if grant.claim is not None:
        return grant.claim.shares
    vcore, vmemory = grant.allocated(unit)
    return tuple(
        dataclasses.replace(
            share, vcore=max(share.vcore, vcore), vmemory=max(share.vmemory, vmemory)
        )
        for share in grant.shares
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _NodeObject:
    """The annotation and labels of the node object."""

    text: str = ""
    isolation: str = ""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


class NodePublisher:
    """Writes the annotation of :func:`text_of`, from :meth:`run` until :meth:`stop`."""

    def __init__(
        self,
        node: own_node.OwnNode,
        text: Callable[[], str],
        labels: Callable[[], Mapping[str, str]] = dict,
        isolation: Callable[[], str] = str,
    ) -> None:
        self._node = node
        self._text = text
        self._labels = labels  # that the node is to have as well
        self._isolation = isolation  # of the devices, for display; empty: none
        self._changed = threading.Condition()
        self._wanted = 0  # changes so far
        self._written = 0  # changes that are written
        self._failing = self._stopped = False

    def changed(self) -> None:
        """Request a write soon."""
        with self._changed:
            self._wanted += 1
            self._changed.notify_all()

    def wait(self, seconds: float = TIMEOUT_SECONDS) -> bool:
        """Wait until all changes so far are written; False if they are not.

        Returns at once while the last write has failed.
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
        known, due = _NodeObject(), 0.0
        while (begun := self._wait(due)) is not None:
            try:
                if time.monotonic() >= due:
                    known, due = self._read(), time.monotonic() + POLL_SECONDS
                state = _NodeObject(self._text(), self._isolation(), dict(self._labels()))
                noted = state.text, state.isolation
                if (
                    noted != (known.text, known.isolation)
                    or not state.labels.items() <= known.labels.items()
                ):
                    self._write(state)
                known = state
            except apiserver.ServerError as exc:
                if not self._failing:
                    log.warning("cannot publish the devices of this node: %s", exc)
                due = time.monotonic() + AGAIN_SECONDS
                self._note(begun, failing=True)
            else:
                self._note(begun, failing=False)

    def _wait(self, due: float) -> int | None:
        """Return the number of changes when there is something to write; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._wanted)  # no devices known yet
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

    def _read(self) -> _NodeObject:
        meta = self._node.metadata()
        noted = meta.get("annotations") or {}
        return _NodeObject(
            str(noted.get(names.NODE_DEVICES_ANNOTATION, "")),
            str(noted.get(names.DEVICE_ISOLATION_ANNOTATION, "")),
            meta.get("labels") or {},
        )

    def _write(self, state: _NodeObject) -> None:
        noted = {names.NODE_DEVICES_ANNOTATION: state.text}
        if state.isolation:
            noted[names.DEVICE_ISOLATION_ANNOTATION] = state.isolation
        self._node.write({"annotations": noted, "labels": state.labels})
