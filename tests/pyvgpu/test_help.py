"""Help and suggestions of the command line."""

import subprocess
import sys

import pytest

from pyvgpu import cli, errors
from pyvgpu.cli.main import GROUPS


@pytest.mark.parametrize("name", ["main", "kubectl_main"])
def test_a_program_without_arguments_shows_its_help(name, capsys):
    assert getattr(cli, name)([]) == 0
    bare = capsys.readouterr().out
    with pytest.raises(SystemExit):
        getattr(cli, name)(["--help"])
    assert capsys.readouterr().out == bare
    assert bare.startswith("usage: ")


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["help"], ["--help"]),
        (["help", "run"], ["run", "--help"]),
        (["version"], ["--version"]),
    ],
)
def test_option_names_of_other_programs_are_accepted(words, options, capsys):
    said = []
    for line in (words, options):
        with pytest.raises(SystemExit):
            cli.main(line)
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""


def test_the_help_has_each_command_once_in_its_group(capsys):
    cli.main([])
    parts = capsys.readouterr().out.split("\n\n")
    for title, commands in GROUPS:
        (part,) = (candidate for candidate in parts if candidate.startswith(f"{title}:\n"))
        shown = [line.split()[0] for line in part.splitlines()[1:] if line[:3].strip()]
        assert shown == [name for name, _, _ in commands]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["rnu"], "'rnu': is no command; did you mean run?"),
        (["device-plugins"], "'device-plugins': is no command; did you mean device-plugin?"),
        (["frobnicate"], "'frobnicate': is no command (see"),
        (["ps", "--jsom"], "unrecognized arguments: --jsom; did you mean --json?"),
        (["device-plugin", "--simulated=h100"], "--simulated=h100; did you mean --simulate?"),
        (
            ["--simulate", "h100", "run", "true"],
            "--simulate: is an option of a command, and must follow it, such as `pyvgpu run "
            "--simulate` (see",
        ),
        (["--vcore=30", "run", "true"], "must follow it, such as `pyvgpu run --vcore=30` (see"),
        (["--verison"], "unrecognized arguments: --verison; did you mean --version?"),
        (["run", "--gpus", "all"], "unrecognized arguments: --gpus; did you mean --device?"),
        (["run", "--memory=8g"], "unrecognized arguments: --memory=8g; did you mean --vmemory?"),
        (["top", "--delay", "3"], "--delay 3; did you mean --interval?"),
        (
            ["set", "a", "--name", "b"],
            "unrecognized arguments: --name b; valid would be `pyvgpu set eval --vcore 50` (see",
        ),
        (["simulate-schedule", "--pod", "x"], "`pyvgpu simulate-schedule pod.yaml` (see"),
        (["completion", "tcsh"], "SHELL 'tcsh': must be bash or zsh or fish, such as bash\n"),
        (
            ["suspend", "a", "b"],
            "unrecognized arguments: b; `pyvgpu suspend` takes one RUN, and options, such as "
            "`pyvgpu suspend train` (see",
        ),
        (["set", "a", "40"], "unrecognized arguments: 40; did you mean --vcore 40?"),
        (["set", "a", "8GiB"], "unrecognized arguments: 8GiB; did you mean --vmemory 8GiB?"),
        (
            ["top", "a"],
            "arguments: a; `pyvgpu top` takes only options, such as `pyvgpu top --sort share`",
        ),
    ],
)
def test_misspelt_commands_get_a_suggestion(given, said, capsys):
    assert cli.main(given) == errors.UsageError.exit_code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["set"], "required: RUN, such as `pyvgpu set eval --vcore 50` (see `pyvgpu set --help`)"),
        (["replay"], "required: FILE, such as `pyvgpu replay trace.json.gz` (see"),
        (["explain"], "required: POD, such as `pyvgpu explain train-0` (see"),
        (
            ["run", "--simulate"],
            "argument --simulate: expected one argument, such as `pyvgpu run --simulate h100 "
            "--vmemory 2GiB -- python train.py` (see",
        ),
        (["top", "--sort"], "--sort: expected one argument, such as `pyvgpu top --sort share`"),
        (["run", "--priority"], "argument --priority: expected one argument (see"),
        (["ps", "--json=5"], "--json '5': must have no value, such as `pyvgpu ps --json` (see"),
        (["run", "--no-namespace=yes", "true"], "--no-namespace 'yes': must have no value (see"),
    ],
)
def test_a_missing_argument_is_answered_with_an_example(given, said, capsys):
    assert cli.main(given) == errors.UsageError.exit_code
    assert said in capsys.readouterr().err


def test_the_package_can_be_run_as_a_module():
    command = [sys.executable, "-m", "pyvgpu", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: pyvgpu ")
