"""Order, filter and help of `pyvgpu top`, and the keys that change them. Pure."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.cli import views
from pyvgpu.machine import users

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyvgpu.run.runs import DeviceView, RunShare

BACKSPACE, ENTER, ESCAPE = ("\x7f", "\b"), ("\r", "\n"), "\x1b"
END = "\x04"  # the end of the input, or Ctrl-D
_LONGEST = 40  # characters of a filter


class SortKey(enum.StrEnum):
    """The order of the runs on a device."""

    AGE = "age"
    NAME = "name"
    VCORE = "vcore"
    VMEMORY = "vmemory"
    SHARE = "share"
    HELD = "held"


# The values by which runs are compared: the first run is the one that matters most.
_ORDERS: dict[SortKey, Callable[[RunShare], tuple[object, ...]]] = {
    SortKey.AGE: lambda part: (part.created,),
    SortKey.NAME: lambda part: (part.full_name,),
    SortKey.VCORE: lambda part: (-part.requested_vcore,),
    SortKey.VMEMORY: lambda part: (-part.limits.vmemory,),
    SortKey.SHARE: lambda part: (-(part.share or 0.0),),
    SortKey.HELD: lambda part: (-(part.held or 0),),
}
_SORT_KEYS = {
    "a": SortKey.AGE,
    "n": SortKey.NAME,
    "v": SortKey.VCORE,
    "m": SortKey.VMEMORY,
    "s": SortKey.SHARE,
    "u": SortKey.HELD,
}
HELP = (  # the keys, and what they do
    ("q", "quit"),
    ("a", "sort by age, the oldest run first"),
    ("n", "sort by name"),
    ("v", "sort by vcore, the largest first"),
    ("m", "sort by vmemory, the largest first"),
    ("s", "sort by share, the largest first"),
    ("u", "sort by memory in use, the largest first"),
    ("r", "reverse the order"),
    ("/", "show only runs whose name, user or command contains a text; Enter ends, Esc clears it"),
    ("h, ?", "show or hide this help"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class TopView:
    """What the user has chosen to see."""

    sort: SortKey = SortKey.AGE
    reverse: bool = False
    wanted: str = ""  # only runs that contain this text
    typing: bool = False  # keys extend *wanted*
    help: bool = False
    quit: bool = False

    def pressed(self, keys: str) -> TopView:
        """Return the view after *keys*, as one read from the terminal; others change nothing."""
        if len(keys) > 1 and keys.startswith(ESCAPE):
            return self  # an arrow or a function key
        view = self
        for key in keys:
            if key == END:
                return dataclasses.replace(view, quit=True)
            view = view._typed(key) if view.typing else view._chosen(key)
        return view

    def _chosen(self, key: str) -> TopView:
        match key.lower():
            case "q":
                return dataclasses.replace(self, quit=True)
            case "r":
                return dataclasses.replace(self, reverse=not self.reverse)
            case "h" | "?":
                return dataclasses.replace(self, help=not self.help)
            case "/":
                return dataclasses.replace(self, typing=True)
            case "\x1b":
                return dataclasses.replace(self, wanted="", help=False)
            case letter if letter in _SORT_KEYS:
                return dataclasses.replace(self, sort=_SORT_KEYS[letter], reverse=False)
        return self

    def _typed(self, key: str) -> TopView:
        if key in ENTER:
            return dataclasses.replace(self, typing=False)
        if key == ESCAPE:
            return dataclasses.replace(self, typing=False, wanted="")
        if key in BACKSPACE:
            return dataclasses.replace(self, wanted=self.wanted[:-1])
        if key.isprintable():
            return dataclasses.replace(self, wanted=(self.wanted + key)[:_LONGEST])
        return self

    @property
    def status(self) -> str:
        """The line that says how the runs are ordered and filtered; empty for the defaults."""
        words = []
        if self.sort is not SortKey.AGE or self.reverse:
            words.append(f"by {self.sort}" + (", reversed" if self.reverse else ""))
        if self.wanted or self.typing:
            words.append(f"filter: {self.wanted}" + ("_" if self.typing else ""))
        return "   ".join(words)

    def arranged(self, devices: Sequence[DeviceView]) -> tuple[DeviceView, ...]:
        """Return *devices* with the runs that are shown, in order.

        A filter hides devices without such a run; sums over a device count all of its runs.
        """
        found = []
        for device in devices:
            parts = sorted(filter(self._shows, device.parts), key=_ORDERS[self.sort])
            if parts:
                ordered = tuple(reversed(parts)) if self.reverse else tuple(parts)
                found.append(dataclasses.replace(device, shown=ordered))
        return tuple(found)

    def _shows(self, part: RunShare) -> bool:
        texts = (part.full_name, users.name(part.uid), views.command(part))
        return any(self.wanted.lower() in text.lower() for text in texts)


def parse_sort(text: str) -> SortKey:
    """Return the order called *text*."""
    try:
        return SortKey(text)
    except ValueError:
        known = ", ".join(SortKey)
        raise errors.UsageError(
            f"--sort {text[:40]!r}: must be one of {known}, such as share"
        ) from None
