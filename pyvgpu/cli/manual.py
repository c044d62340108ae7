"""`pyvgpu manual`: the man page, generated from --help."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

import pyvgpu
from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

_DESCRIPTION = """\
Print the man page pyvgpu(1): every command with its options and examples, as --help has them.
"""
_EXAMPLES = """\
examples:
  pyvgpu manual | man -l -
  pyvgpu manual > /usr/local/share/man/man1/pyvgpu.1
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add no options to `pyvgpu manual`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES


def run(_: argparse.Namespace) -> int:
    """Print the page."""
    print(page())
    return 0


def page() -> str:
    """Return the man page, in the macros of man(7)."""
    from pyvgpu.cli.main import PYVGPU, whole

    parser = whole(PYVGPU)
    lines = [
        f'.TH PYVGPU 1 "" "pyvgpu {pyvgpu.__version__}" "User Commands"',
        ".SH NAME",
        f"pyvgpu \\- {_text((parser.description or '').rstrip('.'))}",
        ".SH SYNOPSIS",
        ".B pyvgpu",
        "[\\-\\-help] [\\-\\-version]",
        ".I COMMAND",
        "[options]",
        ".SH COMMANDS",
    ]
    for name, command, summary in _commands(parser):
        lines += [f".SS pyvgpu {_text(name)}", _text(summary), ".PP", *_command(command)]
    lines += [".SH EXIT STATUS", ".nf", *_exits(), ".fi"]
    return "\n".join(lines)


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    yield from (".B", _text(usage), ".PP")
    yield from _paragraphs(parser.description or "")
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        named = ", ".join(action.option_strings) or action.metavar or action.dest
        taken = "" if action.nargs == 0 or not action.option_strings else _taken(action)
        yield from (".TP", f"\\fB{_text(str(named))}\\fR{taken}", _text(_help(parser, action)))
    if parser.epilog:
        yield from (".PP", ".nf", *map(_text, parser.epilog.strip().splitlines()), ".fi")


def _commands(
    whole: argparse.ArgumentParser,
) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    for action in whole._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, parser in action.choices.items():
                yield name, parser, summaries[name]


def _taken(action: argparse.Action) -> str:
    return f" \\fI{_text(str(action.metavar or action.dest.upper()))}\\fR"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        yield from (_text(" ".join(paragraph.split())), ".PP")


def _exits() -> Iterator[str]:
    classes: list[type[errors.PyVgpuError]] = [errors.PyVgpuError]
    classes += errors.PyVgpuError.__subclasses__()
    kinds = {
        class_.exit_code: class_ for class_ in classes if class_.__module__ == errors.__name__
    }
    yield "0    success"
    kinds.pop(errors.PyVgpuError.exit_code)
    for code, kind in sorted(kinds.items()):
        yield _text(f"{code}   {(kind.__doc__ or '').splitlines()[0]}")
    yield _text(f"{errors.PyVgpuError.exit_code}   Any other error that a user can fix.")


def _text(text: str) -> str:
    """Escape *text* for roff: none of its characters is a request or an escape."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped
