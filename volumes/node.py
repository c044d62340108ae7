"""The mirror of a node: trees in a folder, one of them current, and a word on the driver.

    <output>/<release>-<digest>/<volume>/...    as :mod:`pyvgpu.volumes.plan` has them
             current                            link to the tree that new containers get
             state.json                         whether the driver is there, and since when

``current`` is switched by one rename. A container's runtime follows it when it mounts a
volume, so a container keeps the tree that it began with. The last tree stays when the driver
vanishes; one that is neither current nor in the CDI specification goes when nobody uses it.
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
from pyvgpu.volumes import cdi, drafts, find, plan, root, store, uses

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyvgpu.volumes import installation

CURRENT = "current"
STATE = "state.json"

_LAYOUT = 1
_REMEDY = "name another folder with --output"
# A container that is being made has looked where `current` leads, and mounts it in a moment.
_GRACE_SECONDS = 60.0


class Driver(enum.StrEnum):
    """What there is of a driver on the node."""

    PRESENT = "present"
    MISSING = "missing"
    UNUSABLE = "unusable"  # damaged, half upgraded, not to be read; or no mirror can be made


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """What a node says of its driver and its mirror."""

    driver: Driver
    release: str = ""  # of the current tree
    tree: str = ""  # the current tree's name; empty: there never was one
    reason: str = ""  # why the driver is not present, in one line
    remarks: tuple[str, ...] = ()  # what was left out of the tree, and why
    specification: str = ""  # why the CDI specification, if one is wanted, is not this tree's


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """The mirror in one folder of the node."""

    output: Path
    shim: Path
    specification: Path | None = None  # where CDI's is kept, if it is wanted

    @property
    def _store(self) -> store.Store:
        return store.Store(self.output, _REMEDY)

    def remembering(self) -> AbstractContextManager[None]:
        """Know inside what was read of the driver's files before; see :mod:`.store`."""
        return self._store.remembering()

    def current(self) -> Path | None:
        """Return the tree that new containers get."""
        try:
            tree = self.output / (self.output / CURRENT).readlink().name
        except OSError:
            return None
        return tree if tree in self._store.trees() else None

    def mirror(
        self, found: installation.Installation, progress: store.Progress | None = None
    ) -> State:
        """Make the mirror of *found* unless it is there, and make it the current one.

        Raises plan.PlanError, store.MirrorError or store.MirrorRefusedError. What is wrong with
        the CDI specification alone is said in the state: the mirror is there.
        """
        made = plan.plan_node(found, self.shim)
        tree = self._store.ensure(made.plan, progress)
        if self.current() != tree:
            with self._store.failures(), drafts.locked(self.output):
                drafts.link(self.output / CURRENT, tree.name)
        state = State(
            Driver.PRESENT,
            found.release,
            tree.name,
            remarks=made.remarks,
            specification=self._specify(found, made.plan, tree),
        )
        self._write(state)
        return state

    def mark(self, exc: errors.PyVgpuError) -> State:
        """Say that there is no driver to mirror, because of *exc*; the last tree stays."""
        missing = isinstance(exc, find.DriverMissingError)
        tree = self.current()
        state = State(
            Driver.MISSING if missing else Driver.UNUSABLE,
            tree.name.rpartition("-")[0] if tree else "",
            tree.name if tree else "",
            root.shown(str(exc)),
        )
        if self.output.exists():
            with contextlib.suppress(errors.PyVgpuError):  # what there is to say was *exc*
                self._write(state)
        return state

    def state(self) -> State | None:
        """Return what was said last; None if nothing that we understand."""
        try:
            document: Any = json.loads((self.output / STATE).read_bytes())
            if document.pop("layout") != _LAYOUT:
                return None
            del document["since"]
            driver, remarks = Driver(document.pop("driver")), tuple(document.pop("remarks"))
            return State(driver, remarks=remarks, **document)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def collect(self, now: float | None = None) -> tuple[Path, ...]:
        """Remove the trees that nobody uses or will be given; return them.

        *now* is in seconds since the epoch. Raises store.MirrorError, store.MirrorRefusedError,
        or uses.UnseenError where not all processes of the machine can be seen.
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
            in_use = uses.used(others)
            unused = tuple(tree for tree in others if tree not in in_use)
            for tree in unused:
                self._store.remove(tree)
            return unused

    def _specify(self, found: installation.Installation, made: plan.Plan, tree: Path) -> str:
        """Write the CDI specification of *tree* if one is wanted; return why that cannot be."""
        if self.specification is None:
            return ""
        try:
            document = cdi.specification(tree, made.entries, found.volumes, cdi.nodes(found.root))
            cdi.write(document, self.specification)
        except errors.PyVgpuError as exc:
            return root.shown(str(exc))
        return ""

    def _given_out(self) -> bytes:
        """Return the CDI specification, which is of an older tree where it cannot be written."""
        with contextlib.suppress(OSError):
            return b"" if self.specification is None else self.specification.read_bytes()
        return b""

    def _write(self, state: State) -> None:
        """Keep *state* if it is news."""
        if state == self.state():
            return
        since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        document = {"layout": _LAYOUT, "since": since, **dataclasses.asdict(state)}
        with self._store.failures(), drafts.locked(self.output):
            drafts.write(self.output / STATE, json.dumps(document, indent=1).encode())
