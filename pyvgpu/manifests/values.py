"""What an installation is told: files of values and `--set`, one over the other as helm has it."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import yaml

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None}
_EXAMPLE = "such as --set webhook.replicas=3"


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML as Kubernetes has it: what looks like a date is a string."""


_Loader.yaml_implicit_resolvers = {
    key: [it for it in found if it[0] != "tag:yaml.org,2002:timestamp"]
    for key, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read(path: Path) -> dict[str, Any]:
    """Return the values in a file of YAML; DataError if there are none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "is not text"
        raise errors.DataError(f"{path}: {str(reason).lower()}") from exc
    return parse(text, str(path))


def parse(text: str, name: str) -> dict[str, Any]:
    """Return the values that *text* has; DataError, in which it is called *name*, if none."""
    try:
        found = yaml.load(text, _Loader)  # noqa: S506 - it is a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as exc:
        raise errors.DataError(f"{name}: is not YAML: {' '.join(str(exc).split())}") from exc
    if not isinstance(found, dict | None):
        raise errors.DataError(
            f"{name}: must be values by their names, such as 'simulate: h100:2'"
        )
    return found or {}


def over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return *below* with what *above* says, null too."""
    found = copy.deepcopy(below)
    for key, value in above.items():
        before = found.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            found[key] = over(before, value)
        else:
            found[key] = copy.deepcopy(value)
    return found


def merge(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return *defaults* with what was given over them; what is null there is not in it."""
    return _without_nulls(over(defaults, given))


def _without_nulls(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }


def apply(values: dict[str, Any], setting: str, *, strings: bool = False) -> dict[str, Any]:
    """Return *values* with what one `--set` says: `a.b=c`, more of it after commas.

    `{x,y}` is a list, `a[0]=x` changes an element, a backslash takes the next character's meaning.
    Of *strings* none becomes a number, true, false or null.
    """
    found = copy.deepcopy(values)
    for part in _split(setting, ","):
        path, equals, text = _partition(part)
        if not equals or not path:
            raise errors.UsageError(f"--set {part!r}: must be NAME=VALUE, {_EXAMPLE}")
        _put(found, list(_steps(path, part)), _value(text, strings), part)
    return found


def _value(text: str, strings: bool) -> Any:
    if text.startswith("{") and text.endswith("}"):
        return [_typed(it, strings) for it in _split(text[1:-1], ",")] if text != "{}" else []
    return _typed(text, strings)


def _typed(text: str, strings: bool) -> Any:
    if not strings and text in _WORDS:
        return _WORDS[text]
    if not strings and _INTEGER.fullmatch(text):
        return int(text)
    return re.sub(r"\\(.)", r"\1", text)


def _split(text: str, mark: str) -> Iterator[str]:
    """Give what is between marks that are neither in braces nor after a backslash."""
    part, depth, taken = "", 0, False
    for char in text:
        if char == mark and not depth and not taken:
            yield part
            part = ""
            continue
        if not taken:
            depth += (char == "{") - (char == "}")
        part += char
        taken = char == "\\" and not taken
    yield part


def _partition(part: str) -> tuple[str, str, str]:
    """Return what is before the first `=` that no backslash takes, that, and the rest."""
    name = "".join(re.findall(r"^(?:[^=\\]|\\.)*", part, re.DOTALL))
    return name, part[len(name) : len(name) + 1], part[len(name) + 1 :]


def _steps(path: str, part: str) -> Iterator[str | int]:
    for piece in _split(path, "."):
        match = re.fullmatch(r"((?:[^\[\]\\]|\\.)+)((?:\[\d{1,4}\])*)", piece)
        if match is None:
            raise errors.UsageError(f"--set {part!r}: {piece!r} is no name, {_EXAMPLE}")
        yield re.sub(r"\\(.)", r"\1", match[1])
        yield from (int(it) for it in re.findall(r"\d+", match[2]))


def _put(into: Any, steps: list[str | int], value: Any, part: str) -> None:
    """Write *value* where the steps lead, through what is there or is made."""
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if isinstance(step, int):
            if step > len(into):
                raise errors.UsageError(
                    f"--set {part!r}: the list has {len(into)} elements, so [{len(into)}] is next"
                )
            if step == len(into):
                into.append(None)
            below = into[step]
        else:
            below = into.get(step)
        if following is None:
            into[step] = value
            return
        wanted = list if isinstance(following, int) else dict
        if not isinstance(below, wanted):
            below = into[step] = wanted()
        into = below
