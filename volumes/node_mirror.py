"""The mirror of a node: trees in a folder, one of them current, and the state of the driver.

    <output>/<release>-<digest>/<volume>/...    trees, laid out by ``mirror_plan``
             current                            link to the tree that new containers get
             state.json                         whether the driver is present, and since when

``current`` is switched by one rename. The container runtime resolves it when it mounts a volume,
so a container keeps the tree that it started with. The last tree stays when the driver disappears;
a tree that is neither current nor in the CDI specification is removed once it is unused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import enum
import json
import time
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.volumes import atomic_files, cdi, find, mirror_plan, mirror_store, root, tree_users

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyvgpu.volumes import installation

CURRENT = "current"
STATE = "state.json"

_LAYOUT = 1
_REMEDY = "name another folder with --output"
# The runtime may have resolved `current` for a new container, but not mounted the tree yet.
_GRACE_SECONDS = 60.0


class DriverState(enum.StrEnum):
    """The state of the driver on the node."""

    PRESENT = "present"
    MISSING = "missing"
    UNUSABLE = "unusable"  # damaged, half upgraded, unreadable; or the mirror cannot be created


@dataclasses.dataclass(frozen=True, slots=True)
class MirrorState:
    """The state of a node's driver and mirror."""

    driver: DriverState
    release: str = ""  # of the current tree
    tree: str = ""  # the current tree's name; empty: there never was one
    reason: str = ""  # why the driver is not present, in one line
    remarks: tuple[str, ...] = ()  # files left out of the tree, and why
    specification: str = ""  # why the CDI specification, if requested, is not of this tree


@dataclasses.dataclass(frozen=True, slots=True)
class NodeMirror:
    """The mirror in one folder of the node."""

    output: Path
    shim: Path
    specification: Path | None = None  # the file of the CDI specification, if requested

    @property
    def _store(self) -> mirror_store.Store:
        return mirror_store.Store(self.output, _REMEDY)

    def remembering(self) -> AbstractContextManager[None]:
        """Use and save the cache of ELF properties in this context; see :mod:`.store`."""
        return self._store.remembering()

    def current(self) -> Path | None:
        """Return the tree that new containers get."""
        try:
            tree = self.output / (self.output / CURRENT).readlink().name
        except OSError:
            return None
        return tree if tree in self._store.trees() else None

    def mirror(
        self, found: installation.Installation, progress: mirror_store.Progress | None = None
    ) -> MirrorState:
        """Create the mirror of *found* if it does not exist, and make it the current one.

        Raises plan.PlanError, store.MirrorError or store.MirrorRefusedError. An error of the CDI
        specification is only reported in the state, because the mirror exists.
        """
        made = mirror_plan.plan_node(found, self.shim)
        tree = self._store.ensure(made.plan, progress)
        if self.current() != tree:
            with self._store.failures(), atomic_files.locked(self.output):
                atomic_files.link(self.output / CURRENT, tree.name)
        state = MirrorState(
            DriverState.PRESENT,
            found.release,
            tree.name,
            remarks=made.remarks,
            specification=self._specify(found, made.plan, tree),
        )
        self._write(state)
        return state

    def mark(self, exc: errors.PyVgpuError) -> MirrorState:
        """Record that there is no driver to mirror, because of *exc*; the last tree stays."""
        missing = isinstance(exc, find.DriverMissingError)
        tree = self.current()
        state = MirrorState(
            DriverState.MISSING if missing else DriverState.UNUSABLE,
            tree.name.rpartition("-")[0] if tree else "",
            tree.name if tree else "",
            root.shown(str(exc)),
        )
        with contextlib.suppress(errors.PyVgpuError, OSError):  # *exc* is already reported
            if self.output.exists():
                self._write(state)
        return state

    def state(self) -> MirrorState | None:
        """Return the last recorded state; None if there is no valid one."""
        try:
            document: Any = json.loads((self.output / STATE).read_bytes())
            if document["layout"] != _LAYOUT:
                return None
            # A later version may have written more fields, an earlier one fewer.
            known = {name: document[name] for name in MirrorState.__slots__ if name in document}
            known["remarks"] = tuple(known.get("remarks", ()))
            return MirrorState(**{**known, "driver": DriverState(known["driver"])})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def collect(self, now: float | None = None) -> tuple[Path, ...]:
        """Garbage-collect trees that are neither in use nor offered to containers; return them.

        *now* is in seconds since the epoch. Raises store.MirrorError, store.MirrorRefusedError,
        or uses.UnseenError if not all processes of the machine are visible.
        """
        current, given_out = self.current(), self._given_out()
        others = [
            tree
            for tree in self._store.trees()
            if tree != current and tree.name.encode() not in given_out
        ]
        if current is None or not others:
            return ()
        with self._store.failures():
            switched = (self.output / CURRENT).lstat().st_mtime
            if (time.time() if now is None else now) < switched + _GRACE_SECONDS:
                return ()
            in_use = tree_users.used(others)
            unused = tuple(tree for tree in others if tree not in in_use)
            for tree in unused:
                self._store.remove(tree)
            return unused

    def _specify(
        self, found: installation.Installation, made: mirror_plan.MirrorPlan, tree: Path
    ) -> str:
        """Write the CDI specification of *tree* if requested; return the error, if any."""
        if self.specification is None:
            return ""
        try:
            document = cdi.specification(tree, made.entries, found.volumes, cdi.nodes(found.root))
            cdi.write(document, self.specification)
        except errors.PyVgpuError as exc:
            return root.shown(str(exc))
        return ""

    def _given_out(self) -> bytes:
        """Return the CDI specification, which is of an older tree if it could not be written."""
        with contextlib.suppress(OSError):
            return b"" if self.specification is None else self.specification.read_bytes()
        return b""

    def _write(self, state: MirrorState) -> None:
        """Record *state* if it has changed."""
        if state == self.state():
            return
        since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        document = {"layout": _LAYOUT, "since": since, **dataclasses.asdict(state)}
        with self._store.failures(), atomic_files.locked(self.output):
            atomic_files.write(self.output / STATE, json.dumps(document, indent=1).encode())
