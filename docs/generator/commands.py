"""Command reference page, generated from the argument parsers with the texts of `--help`."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING

from generator.tables import code, table
from pyvgpu.cli.main import KUBECTL, PYVGPU

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WIDTH = 95
HEAD = """# Commands and options

`pyvgpu COMMAND --help` prints the same text. Options are those of this version; `pyvgpu --version`
prints yours.

"""
# Pages with details about a command, where the page's name differs from the command's.
PAGES = {
    "device-plugin": "agent",
    "dra-driver": "dra",
    "claim-controller": "dra",
    "control-nodes": "agent-install",
    "flexvolume": "mirror",
    "sidecar-controller": "sidecar",
    "sidecar-node": "sidecar",
    "manifests": "install",
    "manual": "completion",
    "status-page": "status",
}
PROGRAMS = {
    PYVGPU: PAGES,
    KUBECTL: dict.fromkeys(("top", "ps", "suspend", "resume", "audit"), "kubectl"),
}


def parser_of(called: str, module: str) -> argparse.ArgumentParser:
    """Return the parser of the command named *called*, such as `pyvgpu run`."""
    found = argparse.ArgumentParser(
        prog=called,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=WIDTH),
    )
    importlib.import_module(module).prepare_parser(found)
    return found


def text(root: Path) -> str:
    """Return the page."""
    everything = [
        (f"{program.name} {name}", module, summary, pages.get(name, name))
        for program, pages in PROGRAMS.items()
        for name, module, summary in program.commands
    ]
    rows = [
        (f"[`{called}`](#{called.replace(' ', '-')})", summary)
        for called, _, summary, _ in everything
    ]
    parts = [HEAD, table(("command", "what it does"), rows)]
    for called, module, summary, page in everything:
        more = f" More: [{page}.md](../{page}.md)." if _is_page(root, page) else ""
        parts.append(f"## {called}\n\n{summary[0].upper()}{summary[1:]}.{more}\n\n")
        parts += _of_parser(parser_of(called, module), level=3)
    return "".join(parts)


def _is_page(root: Path, page: str) -> bool:
    return (root / "docs" / f"{page}.md").exists()


def _of_parser(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    """Yield the usage of a parser, its options group by group, and its subcommands."""
    yield f"```text\n{parser.format_usage().removeprefix('usage: ').strip()}\n```\n\n"
    for group in parser._action_groups:
        rows = [
            (_called(option), _help(parser, option))
            for option in group._group_actions
            if option.help != argparse.SUPPRESS
            and not isinstance(option, argparse._SubParsersAction)
        ]
        if rows:
            yield table((group.title or "", "meaning"), rows)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield f"{'#' * level} {parser.prog} {name}\n\n"
                yield from _of_parser(below, level + 1)


def _called(action: argparse.Action) -> str:
    if not action.option_strings:
        return code(str(action.metavar or action.dest))
    value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    return ", ".join(code(f"{string}{value}") for string in action.option_strings)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""
