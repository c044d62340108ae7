"""Through which door each device is given out: kubelet's counters, or claims; never through both.

Pure. A device changes its door only when nobody has anything of it; meanwhile it is closed at
both, so what was there ends and nothing new comes.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Door(enum.StrEnum):
    """Who gives a device out."""

    PLUGIN = "plugin"  # kubelet's counters: pyvgpu.io/vcore and pyvgpu.io/vmemory
    DRA = "dra"  # claims


_EXAMPLE = "such as dra, or GPU-8c9f5a3e-...=dra"


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """Through which doors an administrator wants the devices of a node to be given out."""

    default: Door = Door.PLUGIN
    of: Mapping[str, Door] = dataclasses.field(default_factory=dict)  # by UUID

    def door(self, uuid: str) -> Door:
        """Return the door that a device is to have."""
        return self.of.get(uuid, self.default)

    @property
    def any_dra(self) -> bool:
        """Whether any device is to be given out for claims."""
        return Door.DRA in (self.default, *self.of.values())


def parse(words: Iterable[str], default: Door) -> Wanted:
    """Return what *words* mean, each a door or UUID=DOOR; UsageError with the rule if nothing."""
    own: dict[str, Door] = {}
    for word in words:
        uuid, equals, name = word.rpartition("=")
        try:
            door = Door(name)
        except ValueError as exc:
            raise errors.UsageError(
                f"--door {word!r}: {name!r} is no door; must be plugin or dra, or one of them for "
                f"a device's UUID, {_EXAMPLE}"
            ) from exc
        if not equals:
            default = door
        elif not uuid.startswith("GPU-") or uuid in own:
            wrong = "is said twice" if uuid in own else "is no device's UUID"
            raise errors.UsageError(f"--door {word!r}: {uuid!r} {wrong}; {_EXAMPLE}")
        else:
            own[uuid] = door
    return Wanted(default, own)


@dataclasses.dataclass(frozen=True, slots=True)
class Stand:
    """The door of a device as it is, and as it is to be."""

    now: Door
    wanted: Door

    @property
    def moves(self) -> bool:
        """Whether it is closed until nobody has anything of it."""
        return self.now is not self.wanted

    @property
    def elsewhere(self) -> str:
        """Who else than kubelet's counters gives it out; empty: nobody."""
        return "" if self.now is self.wanted is Door.PLUGIN else Door.DRA.value

    @property
    def published(self) -> bool:
        """Whether claims may be allocated on it."""
        return self.now is self.wanted is Door.DRA


def stands(
    uuids: Iterable[str], wanted: Wanted, known: Mapping[str, Door], held: Iterable[str]
) -> dict[str, Stand]:
    """Return where each device stands, by UUID; *known* is what was written down of doors.

    One of which nothing was is where it is to be, unless kubelet's counters have given it out:
    those devices are *held*.
    """
    given = frozenset(held)
    return {
        uuid: Stand(
            known.get(uuid, Door.PLUGIN if uuid in given else wanted.door(uuid)),
            wanted.door(uuid),
        )
        for uuid in uuids
    }
