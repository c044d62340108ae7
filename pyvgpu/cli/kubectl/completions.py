"""Command-line completion for the kubectl plugin `kubectl vgpu`.

kubectl starts `kubectl_complete-vgpu` with the words after the plugin's name, of which the last
may be empty. It reads candidates, then a line with a completion directive: no file names.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NO_FILES = ":4"  # cobra's ShellCompDirectiveNoFileComp
_VALUES = {"--output": ("json", "wide")}
_KINDS = {"top": ("nodes", "pods")}


def candidates(whole: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Return the completions of the last of *words*."""
    *before, last = words or [""]
    commands = _commands(whole)
    if not before:
        return _beginning(last, [*commands, *_options(whole)] if last else commands)
    parser = commands.get(before[0])
    if parser is None:
        return []
    option = parser._option_string_actions.get(before[-1])
    if option is not None and option.nargs != 0:
        return _beginning(last, _VALUES.get(option.option_strings[-1], ()))
    if last.startswith("-"):
        return _beginning(last, _options(parser))
    kinds = _KINDS.get(before[0], ())
    return [] if set(kinds) & set(before) else _beginning(last, kinds)


def _beginning(text: str, known: Iterable[str]) -> list[str]:
    return sorted(word for word in known if word.startswith(text))


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [
        action.option_strings[-1]
        for action in parser._actions
        if action.option_strings and action.help != argparse.SUPPRESS
    ]


def _commands(whole: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (found,) = (
        action for action in whole._actions if isinstance(action, argparse._SubParsersAction)
    )
    return dict(found.choices)
