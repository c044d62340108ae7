"""Evaluates a webhook's matchConditions as the API server does before it calls the webhook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cel

if TYPE_CHECKING:
    from collections.abc import Mapping


def holds(hook: Mapping[str, Any], thing: Mapping[str, Any], namespace: str) -> bool:
    """Return whether the API server calls *hook* for the creation of *thing* in *namespace*."""
    context = cel.Context()
    context.add_function("upperAscii", _upper)  # from Kubernetes' strings library for CEL
    context.add_variable("object", dict(thing))
    context.add_variable("request", {"namespace": namespace})
    found = [
        cel.evaluate(condition["expression"], context) for condition in hook["matchConditions"]
    ]
    assert all(type(result) is bool for result in found)
    return all(found)


def _upper(text: str) -> str:
    return "".join(character.upper() if character.isascii() else character for character in text)
