"""`pyvgpu completion SHELL`: shell completion scripts."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from pyvgpu import errors, models
from pyvgpu.controller.scheduler import pod_request

if TYPE_CHECKING:
    from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish")
_WORDS = {  # the values that a placeholder of --help stands for
    "MODEL": tuple(models.BY_KEY),
    "MODEL[:COUNT]": tuple(models.BY_KEY),
    "OPERATION": ("init", "mount", "unmount"),
    "POLICY": tuple(policy.value for policy in pod_request.NodePolicy),
    "SHELL": SHELLS,
}
_FILES = ("ARGUMENT", "FILE", "FILE.html", "RECORD", "SOCKET")
_FOLDERS = ("DIR",)
_LIST_RUNS = "pyvgpu ps --quiet 2>/dev/null"
_RUNS = {  # the value RUN: the names of the runs at the time of the completion
    "bash": "_pyvgpu_runs",
    "zsh": "_pyvgpu_runs",
    "fish": f"({_LIST_RUNS})",
    "preamble": {
        "bash": f'_pyvgpu_runs() {{ compgen -W "$({_LIST_RUNS})" -- "$1"; }}',
        "zsh": f'_pyvgpu_runs() {{ compadd -- ${{(f)"$({_LIST_RUNS})"}}; }}',
    },
}
_COMMAND = {  # the program of `pyvgpu run` and `cdi`, as the shell completes it without them
    "bash": "_shtab_compgen_files",  # not reached: see _BASH
    "zsh": "_pyvgpu_command",
    # The function reads option names from the first argument on that is no option of its own.
    "fish": "(__fish_complete_subcommand --fcs-skip=2 - $_shtab_pyvgpu_opts_with_value)",
    "preamble": {
        "zsh": """_pyvgpu_command() {
  if [[ $words[1] == -- ]]; then
    shift words
    ((CURRENT -= 1))
  fi
  _normal
}""",
    },
}
# shtab passes a function only the word at the cursor, so the search for COMMAND comes first.
_BASH = """
_pyvgpu_command() {
  local word=${COMP_WORDS[COMP_CWORD]}
  if declare -F _comp_command_offset >/dev/null; then
    _comp_command_offset "$1"
  elif declare -F _command_offset >/dev/null; then
    _command_offset "$1"
  elif (($1 == COMP_CWORD)); then
    mapfile -t COMPREPLY < <(compgen -c -A directory -- "$word")
  else
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}

_pyvgpu() {
  local at=2
  if [[ ${COMP_WORDS[1]} == @(COMMANDS) ]]; then
    while ((at <= COMP_CWORD)); do
      case ${COMP_WORDS[at]} in
        --) ((at == COMP_CWORD)) && break; _pyvgpu_command $((at + 1)); return ;;
        FLAGS) ((at += 1)) ;;
        -*) if [[ ${COMP_WORDS[at + 1]} == "=" ]]; then ((at += 3)); else ((at += 2)); fi ;;
        *) _pyvgpu_command "$at"; return ;;
      esac
    done
  fi
  _shtab_pyvgpu
}

complete -o bashdefault -F _pyvgpu pyvgpu
"""
_DESCRIPTION = """\
Print a script that lets a shell complete the commands and options of pyvgpu, known values such
as models and files, the names of the active runs, and the program of a run with its arguments.
"""
_EXAMPLES = """\
examples:
  pyvgpu completion bash > ~/.local/share/bash-completion/completions/pyvgpu
  pyvgpu completion zsh > ~/.zfunc/_pyvgpu                        (a folder of $fpath)
  pyvgpu completion fish > ~/.config/fish/completions/pyvgpu.fish
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu completion`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    parser.add_argument("shell", metavar="SHELL", help=", ".join(SHELLS))


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    print(script(options.shell))
    return 0


def script(shell: str) -> str:
    """Return the script for *shell*; UsageError for an unknown shell."""
    if shell not in SHELLS:
        raise errors.UsageError(f"SHELL {shell!r}: must be {' or '.join(SHELLS)}, such as bash")
    import shtab

    from pyvgpu.cli.main import PYVGPU, whole

    parser = whole(PYVGPU)
    _shorten_help(parser)
    for action in _actions(parser):
        _tell_values(action)
        if shell == "zsh" and isinstance(action.metavar, str):  # where a colon ends the word
            action.metavar = action.metavar.replace(":", r"\:")
    printed = str(shtab.complete(parser, shell))
    return printed + _complete_programs(parser) if shell == "bash" else printed


def _complete_programs(parser: argparse.ArgumentParser) -> str:
    """Return a function of bash that finds COMMAND, and has bash complete it."""
    starters: list[str] = []
    flags: set[str] = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                if any(given.metavar == "COMMAND" for given in command._actions):
                    starters.append(name)
                    for given in command._actions:
                        flags.update(given.option_strings if given.nargs == 0 else ())
    return _BASH.replace("COMMANDS", "|".join(starters)).replace("FLAGS", "|".join(sorted(flags)))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield every option and argument of all commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
        else:
            yield action


def _shorten_help(parser: argparse.ArgumentParser) -> None:
    """Let shtab show the summaries of commands, not the beginnings of their descriptions."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                command.description = None


def _tell_values(action: argparse.Action) -> None:
    """Tell shtab the values of *action*; it may be changed, as no other code uses the parser."""
    taken = str(action.metavar)
    if action.choices or action.nargs == 0:
        return
    if taken in _WORDS or re.fullmatch(r"[a-z]+(\|[a-z]+)+", taken):
        action.choices = _WORDS.get(taken, taken.split("|"))
    elif taken == "RUN":
        action.complete = _RUNS  # type: ignore[attr-defined]
    elif taken == "COMMAND":
        action.complete = _COMMAND  # type: ignore[attr-defined]
    elif taken in _FILES or taken in _FOLDERS:
        action.complete = "file" if taken in _FILES else "directory"  # type: ignore[attr-defined]
