"""What a shell and man are told of the command line, and what --version says."""

import argparse
import re
import subprocess

import pytest
import runner

from pyvgpu import cli, region
from pyvgpu.cli import completion, manual
from pyvgpu.cli.main import COMMANDS, PYVGPU, whole

NAMES = {name for name, _, _ in COMMANDS}
PAGE = manual.page()
COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
read -r _ _ how _ <<< "$(complete -p pyvgpu)"
[ "$how" = -F ] || how=$(complete -p pyvgpu | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$how" pyvgpu "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash(tmp_path_factory):
    """Return what bash proposes for the last of some words."""
    script = tmp_path_factory.mktemp("completion") / "pyvgpu"
    script.write_text(completion.script("bash"))

    def propose(*words):
        command = ["bash", "--norc", "-c", COMPLETE, "bash", script, "pyvgpu", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return {line.strip() for line in done.stdout.splitlines() if line.strip()}

    return propose


def test_bash_proposes_commands(bash):
    assert bash("") >= NAMES
    assert bash("doc") == {"doctor"}


def test_bash_proposes_the_options_of_a_command(bash):
    assert {"--vcore", "--vmemory", "--simulate"} <= bash("run", "--")
    assert bash("doctor", "--pro") == {"--prove"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_every_command(shell):
    told = completion.script(shell)
    assert {name for name in NAMES if name in told} == NAMES


def test_a_shell_that_is_not_known_is_refused(capsys):
    assert cli.main(["completion", "ksh"]) == 64
    assert "must be bash or zsh or fish, such as bash" in capsys.readouterr().err


def test_the_page_has_every_command_and_option():
    plain = PAGE.replace("\\-", "-")
    for name, command, summary in manual._commands(whole(PYVGPU)):
        assert f".SS pyvgpu {name}\n{summary}\n" in plain
        shown = (it for it in command._actions if it.help != argparse.SUPPRESS)
        assert {it.option_strings[-1] for it in shown if it.option_strings} - {"--help"} <= set(
            re.findall(r"--[\w-]+", plain)
        )
    assert set(re.findall(r"^\.SS pyvgpu (\S+)$", plain, re.MULTILINE)) == NAMES


def test_no_line_of_the_page_is_a_request_that_is_none():
    requests = {line.split()[0] for line in PAGE.splitlines() if line[:1] in (".", "'")}
    assert requests <= {".TH", ".SH", ".SS", ".B", ".I", ".PP", ".TP", ".nf", ".fi"}


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (".TH is no request", "\\&.TH is no request"),
        ("'quoted'", "\\&'quoted'"),
        ("--no-x \\n", "\\-\\-no\\-x \\en"),
    ],
)
def test_characters_of_man_are_written_as_they_are(text, written):
    assert manual._text(text) == written


def test_version_says_shim_and_protocol_too():
    done = subprocess.run([runner.PYVGPU, "--version"], capture_output=True, text=True, check=True)
    first, shim, protocol = done.stdout.splitlines()
    assert re.fullmatch(r"pyvgpu \d+\.\d+\.\d+(\.dev\d+)?", first)
    assert re.fullmatch(r"shim [0-9a-f]{16}, for \w+", shim)
    assert protocol == f"protocol {max(region.known_layouts())} of quota and ledger, reads 1 to 2"
