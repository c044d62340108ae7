"""Shell completion, the man page and --version."""

import argparse
import functools
import os
import re
import secrets
import subprocess
from pathlib import Path

import pytest
import runner
import shells

from pyvgpu import cli, models, region
from pyvgpu.cli import completion, manual
from pyvgpu.cli.main import COMMANDS, PYVGPU, whole

NAMES = {name for name, _, _ in COMMANDS}
PAGE = manual.page()
MODELS = {"h100", "h200"}


@pytest.fixture(scope="module", params=completion.SHELLS)
def propose(request, tmp_path_factory):
    """Return a function that gives a shell's completions of a line."""
    script = tmp_path_factory.mktemp("completion") / "pyvgpu"
    script.write_text(completion.script(request.param))
    return functools.partial(getattr(shells, request.param), script)


def test_commands_are_proposed(propose):
    assert propose("pyvgpu ") >= NAMES
    assert propose("pyvgpu doc") == {"doctor"}


def test_options_of_a_command_are_proposed(propose):
    assert {"--vcore", "--vmemory", "--simulate"} <= propose("pyvgpu run --")
    assert propose("pyvgpu doctor --pro") == {"--prove"}


@pytest.mark.slow
def test_known_values_are_proposed(propose):
    assert {word for word in propose("pyvgpu run --simulate h") if word in models.BY_KEY} == MODELS
    assert propose("pyvgpu set train --policy ") == {"hard", "elastic"}
    assert propose("pyvgpu completion ") == set(completion.SHELLS)


@pytest.mark.slow
def test_names_of_runs_are_proposed(propose, monkeypatch, tmp_path):
    own = runner.Runner(tmp_path)
    for variable in ("XDG_CACHE_HOME", "PYVGPU_SIMULATED_MACHINES"):
        monkeypatch.setenv(variable, own.environment[variable])
    monkeypatch.setenv("PATH", f"{Path(runner.PYVGPU).parent}:{os.environ['PATH']}")
    name = f"test-{secrets.token_hex(4)}"
    with own.started("--name", name, "--vmemory", "2GiB", "sh", "-c", "echo; read x") as run:
        run.stdout.readline()
        for command in ("set", "suspend", "resume"):
            assert propose(f"pyvgpu {command} {name[:9]}") == {name}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_summaries_of_commands_are_shown(shell):
    script = re.sub(r"""['"\\]""", "", completion.script(shell))
    for _, _, summary in COMMANDS:
        assert summary.replace("'", "") in script
    assert "omitted values stay as they are" not in script


def test_files_are_proposed_for_commands(propose, monkeypatch, tmp_path):
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    assert propose("pyvgpu run --vmemory 8GiB -- python tr") == {"train.py"}
    assert propose("pyvgpu replay tr") == {"train.py"}


@pytest.mark.parametrize(
    "given", ["run", "run --", "run --vcore 30 --no-namespace", "cdi --vmemory 8GiB --"]
)
def test_programs_of_path_are_proposed_for_a_run(propose, monkeypatch, tmp_path, given):
    program = tmp_path / "programs" / "test-pyvgpu-program"
    program.parent.mkdir()
    program.touch(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    assert propose(f"pyvgpu {given} test-pyvgpu-") == {program.name}


def test_options_of_a_run_are_not_proposed_for_its_program(propose):
    assert "--vcore" not in propose("pyvgpu run -- test-pyvgpu-program --v")


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_program_is_completed_as_without_a_run(shell, tmp_path):
    text = completion.script(shell)
    if shell == "bash":
        library = Path("/usr/share/bash-completion/bash_completion")
        if not library.exists():
            pytest.skip("no bash-completion here: apt-get install bash-completion")
        text = f"source {library}\n{text}"
    script = tmp_path / "pyvgpu"
    script.write_text(text)
    line = "pyvgpu run --vcore 30 -- pyvgpu set train --policy "
    assert getattr(shells, shell)(script, line) == {"hard", "elastic"}


def test_nothing_is_proposed_for_free_values(propose):
    assert propose("pyvgpu doctor --agent ") == set()


def test_an_unknown_shell_is_refused(capsys):
    assert cli.main(["completion", "ksh"]) == 64
    assert "must be bash or zsh or fish, such as bash" in capsys.readouterr().err


def test_the_page_has_every_command_and_option():
    plain = PAGE.replace("\\-", "-")
    for name, command, summary in manual._commands(whole(PYVGPU)):
        assert f".SS pyvgpu {name}\n{summary}\n" in plain
        shown = (action for action in command._actions if action.help != argparse.SUPPRESS)
        assert {action.option_strings[-1] for action in shown if action.option_strings} - {
            "--help"
        } <= set(re.findall(r"--[\w-]+", plain))
    assert set(re.findall(r"^\.SS pyvgpu (\S+)$", plain, re.MULTILINE)) == NAMES


def test_the_page_uses_only_known_requests():
    requests = {line.split()[0] for line in PAGE.splitlines() if line[:1] in (".", "'")}
    assert requests <= {".TH", ".SH", ".SS", ".B", ".I", ".PP", ".TP", ".nf", ".fi"}


def test_groff_reports_no_warnings():
    shells.needed("groff", "groff-base")
    command = ["groff", "-man", "-ww", "-z", "-Tutf8"]
    done = subprocess.run(command, input=PAGE, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


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
    assert protocol == f"protocol {max(region.known_layouts())} of quota and ledger, reads 1 to 5"
