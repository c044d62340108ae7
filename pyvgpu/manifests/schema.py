"""The part of JSON Schema that `values.schema.json` has, and errors that name an example."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
}


class ValuesError(errors.DataError):
    """Values that break a rule; the message has a line for each."""


def check(values: Any, schema: Mapping[str, Any]) -> None:
    """Raise ValuesError with every value that breaks a rule."""
    found = list(_broken(values, schema, schema.get("$defs", {}), ""))
    if found:
        raise ValuesError("\n".join(found))


def _broken(
    value: Any, rule: Mapping[str, Any], shared: Mapping[str, Any], name: str
) -> Iterator[str]:
    if "$ref" in rule:
        rule = {**shared[rule["$ref"].rpartition("/")[2]], **rule}
    why = _why(value, rule)
    if why:
        (example, *_) = rule.get("examples") or [rule.get("default")]
        said = "" if example is None else f", such as {json.dumps(example)}"
        if rule.get("type") == "string" and isinstance(value, int):  # a number, true or false
            said += f"; quote it in YAML, or give --set-string {name}={json.dumps(value)}"
        yield f"{name or 'values'}={json.dumps(value)}: must be {why}{said}"
    elif isinstance(value, dict):
        known = rule.get("properties", {})
        for key, below in value.items():
            at = f"{name}.{key}" if name else key
            if key in known:
                yield from _broken(below, known[key], shared, at)
            elif rule.get("additionalProperties", True) is False:
                yield f"{at}: there is no such value; {name or 'it'} has {', '.join(known)}"
            elif isinstance(rule.get("additionalProperties"), dict):
                yield from _broken(below, rule["additionalProperties"], shared, at)
        for key in rule.get("required", ()):
            if key not in value:
                yield f"{name}: must have {key}"
    elif isinstance(value, list) and "items" in rule:
        for place, below in enumerate(value):
            yield from _broken(below, rule["items"], shared, f"{name}[{place}]")


def _why(value: Any, rule: Mapping[str, Any]) -> str:
    """Return what *value* itself must be and is not; empty: it is that."""
    kind = rule.get("type")
    if kind and not _is(value, kind):
        return f"{'an' if kind[0] in 'aeio' else 'a'} {kind}"
    if "enum" in rule and value not in rule["enum"]:
        return " or ".join(json.dumps(it) for it in rule["enum"])
    if "pattern" in rule and isinstance(value, str) and not _fits(value, rule["pattern"]):
        return str(rule.get("description", rule["pattern"]))
    if isinstance(value, int) and not isinstance(value, bool):
        least, most = rule.get("minimum", value), rule.get("maximum", value)
        if not least <= value <= most:
            return f"from {least} to {most}"
    return ""


def _fits(value: str, pattern: str) -> bool:
    """Tell whether all of *value* fits, as in Go: `^` and `$` are its ends, words are ASCII."""
    return re.fullmatch(pattern.removeprefix("^").removesuffix("$"), value, re.ASCII) is not None


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
