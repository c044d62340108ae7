"""The functions that templates of the chart may use, which do as helm's of the same names."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from typing import TYPE_CHECKING, Any, NoReturn

from pyvgpu.manifests import template

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# What is a string however it is read, without quotes; and words that are none.
_PLAIN = re.compile(r"[A-Za-z/][\w./-]*", re.ASCII)
_WORDS = frozenset(["true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"])


def to_yaml(value: Any) -> str:
    """Return *value* as YAML, in block style."""
    return "\n".join(_lines(value))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, below in sorted(value.items()):
            first, *rest = _lines(below)
            if isinstance(below, dict | list) and below:
                yield f"{_scalar(key)}:"
                yield from (f"  {line}" for line in (first, *rest))
            else:
                yield f"{_scalar(key)}: {first}"
    elif isinstance(value, list) and value:
        for below in value:
            first, *rest = _lines(below)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


def to_json(value: Any) -> str:
    """Return *value* as Go's JSON: sorted, without blanks, and fit for HTML."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029]", lambda it: f"\\u{ord(it[0]):04x}", text)


def nindent(width: int, text: str) -> str:
    """Return *text* on lines of its own, each that much to the right."""
    return "\n" + "\n".join(" " * width + line for line in text.split("\n"))


def quote(value: Any) -> str:
    """Return a string in double quotes; nothing for nothing."""
    return "" if value is None else json.dumps(template.shown(value), ensure_ascii=False)


def default(otherwise: Any, value: Any = None) -> Any:
    """Return *value*, or the other where that is empty."""
    return value if template.true(value) else otherwise


def eq(value: Any, *others: Any) -> bool:
    """Tell whether the first is one of the others."""
    return any(value == other for other in others)


def and_(*values: Any) -> Any:
    """Return the first that is empty, else the last."""
    return next((it for it in values if not template.true(it)), values[-1])


def or_(*values: Any) -> Any:
    """Return the first that is not empty, else the last."""
    return next((it for it in values if template.true(it)), values[-1])


def printf(form: str, *values: str) -> str:
    """Return *form* with strings in the places of its %s."""
    return form % values


def fail(message: str) -> NoReturn:
    """Say that these values make no sense together."""
    raise template.TemplateError(message)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "and": and_,
    "default": default,
    "dir": posixpath.dirname,
    "eq": eq,
    "fail": fail,
    "has": lambda value, values: value in values,
    "ne": lambda one, other: one != other,
    "nindent": nindent,
    "not": lambda value: not template.true(value),
    "or": or_,
    "printf": printf,
    "quote": quote,
    "replace": lambda old, new, text: text.replace(old, new),
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "toJson": to_json,
    "toYaml": to_yaml,
    "trim": str.strip,
}
