"""Cordoned devices, which get no new containers: by `pyvgpu cordon`, or by the node's annotation.

    pyvgpu.io/cordoned: GPU-8c9f5a3e-..., GPU-0d1c2b3a-...

Both are stored in the agent's state folder, so a cordon lasts while the API server is unavailable.
Each is lifted where it was set.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.volumes import atomic_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from pyvgpu.deviceplugin.cluster import own_node

log = logging.getLogger(__name__)

ORDERED, NOTED = "cordoned.json", "cordoned-by-annotation.json"  # in the state folder
POLL_SECONDS = 5.0


class Cordons:
    """The cordoned devices of a node."""

    def __init__(self, state: Path) -> None:
        self._ordered = _StoredUuids(state / ORDERED)
        self._noted = _StoredUuids(state / NOTED)

    @property
    def uuids(self) -> frozenset[str]:
        """The UUIDs of all cordoned devices, from both sources."""
        return self._ordered.uuids | self._noted.uuids

    def change(self, uuid: str, *, cordoned: bool) -> bool:
        """Cordon or uncordon a device; on the disk on return. Whether that changed anything."""
        return self._ordered.change(
            lambda before: before | {uuid} if cordoned else before - {uuid}
        )

    def follow(self, uuids: frozenset[str]) -> bool:
        """Replace the annotation's *uuids*; on the disk on return. Whether they changed."""
        return self._noted.change(lambda _: uuids)


class _StoredUuids:
    """A set of UUIDs, stored in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self.uuids = self._read()

    def change(self, alter: Callable[[frozenset[str]], frozenset[str]]) -> bool:
        with self._lock:
            after = alter(self.uuids)
            if after == self.uuids:
                return False
            atomic_files.write(self._file, json.dumps(sorted(after)).encode())
            self.uuids = after
            return True

    def _read(self) -> frozenset[str]:
        try:
            found = json.loads(self._file.read_bytes())
            if type(found) is not list or any(type(uuid) is not str for uuid in found):
                raise TypeError("no list of UUIDs")
        except FileNotFoundError:
            return frozenset()
        except (OSError, ValueError, TypeError, RecursionError) as exc:
            # A lost cordon would offer a device that an administrator is about to remove.
            raise errors.DataError(
                f"{self._file}: cannot be read ({errors.reason_of(exc)}); fix it, or remove "
                "it if no device is cordoned"
            ) from exc
        return frozenset(found)


class CordonWatch:
    """Follows the annotation of a node, on the thread of :meth:`run`."""

    def __init__(
        self,
        node: own_node.OwnNode,
        known: Callable[[], Collection[str]],
        follow: Callable[[frozenset[str]], None],
    ) -> None:
        self._node = node
        self._known = known  # UUIDs of the devices that the node has
        self._follow = follow
        self._problem = ""

    def run(self, wait: Callable[[float], bool]) -> None:
        """Poll periodically until *wait*, which sleeps for some seconds, returns true."""
        while not wait(POLL_SECONDS):
            try:
                self.poll()
            except errors.PyVgpuError as exc:
                self._complain(f"could not follow {names.CORDONED_ANNOTATION}: {exc}")

    def poll(self) -> None:
        """Read the annotation once, and cordon the devices that it lists."""
        noted = self._node.metadata().get("annotations") or {}
        text = noted.get(names.CORDONED_ANNOTATION, "")
        uuids = read(text)
        self._follow(uuids)
        strange = sorted(uuids - set(self._known()))
        valid = ", ".join(sorted(self._known())) or "none"
        self._complain(
            f"{names.CORDONED_ANNOTATION} {text!r}: this node has no device "
            f"{', '.join(strange)}; valid: {valid}"
            if strange
            else ""
        )

    def _complain(self, text: str) -> None:
        if text and text != self._problem:
            log.warning("%s", text)
        self._problem = text


def read(text: str) -> frozenset[str]:
    """Return the UUIDs in an annotation, separated by commas or whitespace."""
    return frozenset(filter(None, re.split(r"[,\s]+", text)))
