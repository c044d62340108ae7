"""Asks real shells for completions of a line, with the scripts of `pyvgpu completion`."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from waiting import WHOLE

if TYPE_CHECKING:
    from pathlib import Path

_BASH = """
compopt() { :; }  # it works only in a completion that a key has started
source "$1"
read -ra COMP_WORDS <<< "$2"; [[ $2 != *" " ]] || COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
COMP_LINE=$2
COMP_POINT=${#2}
how=$(complete -p pyvgpu | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$how" pyvgpu "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
_FISH = 'source $argv[1]; complete -C "$argv[2]"'
# zsh also writes its completions to a file. It completes as soon as it edits the line, then exits.
_ZSH = """
unsetopt beep
fpath=($ZDOTDIR $fpath)
autoload -Uz compinit
compinit -u -D
compadd() {
    local -a hits
    if [[ " $* " != *" -"[OAD]" "* ]]; then
        builtin compadd -A hits "$@"
        print -rl -- $hits >>$ZDOTDIR/hits
    fi
    builtin compadd "$@"
}
zle-line-init() {
    BUFFER=$LINE CURSOR=$#LINE
    zle complete-word
    exit 0
}
zle -N zle-line-init
"""


def bash(script: Path, line: str) -> set[str]:
    """Return bash's completions of the last word of *line*."""
    return _asked(["bash", "--norc", "-c", _BASH, "bash", str(script), line])


def fish(script: Path, line: str) -> set[str]:
    """Return fish's completions of *line*, without their descriptions."""
    said = _asked(["fish", "--no-config", "-c", _FISH, "--", str(script), line])
    return {completion.split("\t")[0] for completion in said}


def zsh(script: Path, line: str) -> set[str]:
    """Return zsh's completions of *line*; zsh needs a terminal for them."""
    needed("zsh")
    folder = script.parent / "zsh"
    folder.mkdir(exist_ok=True)
    shutil.copy(script, folder / "_pyvgpu")
    (folder / ".zshrc").write_text(_ZSH)
    hits = folder / "hits"
    hits.write_text("")
    terminal, its = pty.openpty()
    with subprocess.Popen(
        ["zsh", "-d", "-i"],
        env={**os.environ, "ZDOTDIR": str(folder), "LINE": line, "TERM": "dumb"},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    ) as process:
        os.close(its)
        said = _until_it_ends(terminal)
        os.close(terminal)
        assert process.wait(WHOLE) == 0, said
    assert "command not found" not in said
    return set(hits.read_text().split())


def _until_it_ends(terminal: int) -> str:
    """Return the output to a terminal until its last process has closed it."""
    said, end = b"", time.monotonic() + WHOLE
    with contextlib.suppress(OSError):  # EIO: the last process has closed it
        while time.monotonic() < end:
            if select.select([terminal], [], [], 1)[0]:
                said += os.read(terminal, 1 << 16)
    return said.decode(errors="replace")


def needed(program: str, package: str = "") -> None:
    """Skip the test if there is no such program."""
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here: apt-get install {package or program}")


def _asked(command: list[str]) -> set[str]:
    needed(command[0])
    done = subprocess.run(command, capture_output=True, text=True, timeout=WHOLE)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return {line.strip() for line in done.stdout.splitlines() if line.strip()}
