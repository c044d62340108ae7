"""Table-driven command-line options: help text, parser and settings field of each.

A group fills the fields of one settings object, so an option is defined in one place.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, quantity
from pyvgpu.http import endpoints

if TYPE_CHECKING:
    import argparse
    import enum
    from collections.abc import Callable, Iterable

    Read = Callable[[str, str], Any]  # a value from its text; the option is for the error


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One option."""

    flag: str
    value: str  # its placeholder in --help; empty: it takes no value
    field: str  # the settings field that it fills
    text: str  # its help text, with unit and rule
    read: Read | None = None  # None: its text is the value
    default: str = ""  # as on the command line; empty: the field's own
    given: bool = True  # the field's value if a flag without a value is given
    many: bool = False  # may be given several times; the value is a tuple


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """A group of options."""

    title: str
    options: tuple[Option, ...]

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Add the options to *parser*."""
        group = parser.add_argument_group(self.title)
        for option in self.options:
            if not option.value:
                group.add_argument(
                    option.flag, dest=_name(option), action="store_true", help=option.text
                )
                continue
            words = f"{option.text} ({option.default})" if option.default else option.text
            group.add_argument(
                option.flag,
                dest=_name(option),
                metavar=option.value,
                action="append" if option.many else "store",
                help=words.replace("%", "%%"),
            )

    def read(self, options: argparse.Namespace) -> dict[str, Any]:
        """Return the fields of options that are given or have a default; UsageError if invalid."""
        found: dict[str, Any] = {}
        for option in self.options:
            given = getattr(options, _name(option))
            if not option.value:
                if given:
                    found[option.field] = option.given
            elif option.many and given:
                found[option.field] = tuple(_value(option, text) for text in given)
            elif not option.many and (given is not None or option.default):
                found[option.field] = _value(option, option.default if given is None else given)
        return found


def _name(option: Option) -> str:
    return option.flag.lstrip("-").replace("-", "_")


def _value(option: Option, text: str) -> Any:
    return text if option.read is None else option.read(text, option.flag)


# --- parsers of values --------------------------------------------------------------------------


def path(text: str, flag: str) -> Path:
    """Return the path *text*, absolute."""
    if not text or "\0" in text:
        raise errors.UsageError(f"{flag} {text!r}: must name a path, such as /var/lib/pyvgpu")
    return Path(text).absolute()


def word(text: str, flag: str) -> str:
    """Return *text*, which must not be empty."""
    if not text or not text.isprintable():
        raise errors.UsageError(f"{flag} {text!r}: must be a name, such as node-1")
    return text


def namespace(text: str, flag: str) -> str:
    """Return the name of a namespace."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", text):
        raise errors.UsageError(
            f"{flag} {text[:80]!r}: must be the name of a namespace: up to 63 lower-case letters, "
            "digits and hyphens between them, such as team-a"
        )
    return text


def object_name(example: str) -> Read:
    """Return a parser of names of nodes, and of other objects that are no namespaces."""

    def read(text: str, flag: str) -> str:
        part = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
        if len(text) > 253 or not re.fullmatch(rf"{part}(\.{part})*", text):
            raise errors.UsageError(
                f"{flag} {text[:80]!r}: must be a name in Kubernetes: lower-case letters, digits, "
                f"and hyphens and dots between them, such as {example}"
            )
        return text

    return read


def typed(read: Read, flag: str) -> Callable[[str], Any]:
    """Return *read* as the type of the option *flag* of a parser."""
    return lambda text: read(text, flag)


def taint(text: str, flag: str) -> str:
    """Return the key of a taint, with its prefix."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", text):
        raise errors.UsageError(
            f"{flag} {text!r}: must be the key of a taint with a prefix, such as "
            "pyvgpu.io/starting"
        )
    return text


def whole(low: int, high: int, example: int, what: str = "a whole number") -> Read:
    """Return a parser of whole numbers from *low* to *high*."""

    def read(text: str, flag: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 12):
            number = low - 1
        else:
            number = int(text)
        if not low <= number <= high:
            raise errors.UsageError(
                f"{flag} {text!r}: must be {what} from {low} to {high}, such as {example}"
            )
        return number

    return read


def seconds(low: int, high: int, example: int) -> Read:
    """Return a parser of times in whole seconds."""
    read = whole(low, high, example, "a whole number of seconds")
    return lambda text, flag: float(read(text, flag))


def one_of(kind: type[enum.Enum]) -> Read:
    """Return a parser of the values of *kind*."""
    known = {member.value: member for member in kind}

    def read(text: str, flag: str) -> enum.Enum:
        if text not in known:
            first = next(iter(known))
            raise errors.UsageError(
                f"{flag} {text!r}: must be {' or '.join(known)}, such as {first}"
            )
        return known[text]

    return read


def mebibytes(text: str, flag: str) -> int:
    """Return a size in bytes, which must be a multiple of 1 MiB."""
    size = quantity.parse_size(text, flag)
    if size % (1 << 20):
        raise errors.UsageError(f"{flag} {text!r}: must be a multiple of 1 MiB, such as 256Mi")
    return size


def numbers(low: int, high: int, example: str) -> Read:
    """Return a parser of numbers separated by commas; an empty text means none."""
    each = whole(low, high, low)

    def read(text: str, flag: str) -> frozenset[int]:
        try:
            return frozenset(each(part.strip(), flag) for part in text.split(",") if text.strip())
        except errors.UsageError as exc:
            raise errors.UsageError(
                f"{flag} {text!r}: must be numbers from {low} to {high}, separated by commas, "
                f"such as {example}"
            ) from exc

    return read


def pair(example: str) -> Read:
    """Return a parser of PART=NAME, both not empty."""

    def read(text: str, flag: str) -> tuple[str, str]:
        part, _, name = text.partition("=")
        if not part or not name or not text.isprintable():
            raise errors.UsageError(f"{flag} {text!r}: must be PART=NAME, such as {example}")
        return part, name

    return read


def listening(text: str, flag: str) -> str | None:
    """Return an address to listen on; None for `none`."""
    if text == "none":
        return None
    endpoints.read_address(text, flag)
    return text


def flags(groups: Iterable[Group]) -> tuple[str, ...]:
    """Return all options of *groups*."""
    return tuple(option.flag for group in groups for option in group.options)
