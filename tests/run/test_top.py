"""`pyvgpu ps` and `pyvgpu top`: quotas and usage of runs, for users and for programs."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import termios

import forked
import pytest
import rights
from runner import PYVGPU

from pyvgpu import shim

GIB, MIB = 1 << 30, 1 << 20
AS_OTHER = """
import os, sys
sys.path[:0] = sys.argv[2:]
from pyvgpu.cli import main
main(["ps"])  # imports everything, before this user loses access to the files
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
sys.exit(main(["ps"]))
"""


def show(runner, *arguments):
    return subprocess.run(
        [PYVGPU, *arguments], env=runner.environment, capture_output=True, text=True, check=False
    )


@contextlib.contextmanager
def holder(runner, name, size, *options):
    """Start a run that holds *size* bytes."""
    tenant = [str(shim.tenant_program()), "hold", str(size)]
    with runner.started("--name", name, *options, "--", *tenant) as process:
        while '"held"' not in (line := process.stdout.readline()):
            assert line, process.stderr.read()
        yield process
        process.stdin.close()
        process.wait(30)


def entry(document, name):
    (found,) = [run for run in document["runs"] if run["name"] == name]
    return found


@pytest.mark.slow
def test_ps_lists_quotas_and_usage(runner, name):
    with holder(runner, name, GIB, "--vmemory", "2GiB", "--vcore", "30"):
        found = entry(json.loads(show(runner, "ps", "--json").stdout), name)
        assert (found["vcore"], found["vmemory_bytes"], found["policy"]) == (30, 2 * GIB, "hard")
        (process,) = found["processes"]
        assert process["name"] == "tenant"
        assert found["held_bytes"] == process["held"] > GIB
        (line,) = [x for x in show(runner, "ps").stdout.splitlines() if name in x]
        assert re.search(r" 30 +2\.00 GiB +1\.5\d GiB +1 ", line)
    assert name not in show(runner, "ps").stdout


@pytest.mark.slow
def test_the_command_line_of_own_runs_is_shown(runner):
    script = runner.cache.parent / "my_train.py"
    script.write_text("import sys; print('up', flush=True); sys.stdin.read()")
    command = (sys.executable, script, "--epochs", 3)
    with runner.started("--vmemory", "2GiB", "--", *command) as process:
        assert process.stdout.readline() == "up\n"
        listed = show(runner, "ps").stdout
        (line,) = [x for x in listed.splitlines() if str(script) in x]
        assert re.match(r" my-train-[0-9a-f]{4} ", line)
        assert line.endswith(f" {sys.executable} {script} --epochs 3")
        name = line.split()[0]
        assert name in show(runner, "ps", "--quiet").stdout.splitlines()
        found = entry(json.loads(show(runner, "ps", "--json").stdout), name)
        assert found["command_line"] == f"{sys.executable} {script} --epochs 3"
        assert found["command"] == sys.executable


@rights.as_root
@pytest.mark.slow
def test_the_command_line_of_other_users_is_not_shown(runner, name):
    with holder(runner, name, GIB, "--vmemory", "2GiB"):
        seen = subprocess.run(
            [sys.executable, "-c", AS_OTHER, str(forked.OTHER_UID), *sys.path],
            env=runner.environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert seen.returncode == 0, seen.stderr
    own, others = [x for x in seen.stdout.splitlines() if name in x]
    assert own.startswith(f" {name} ")
    assert own.endswith(f" hold {GIB}")
    assert others.startswith(f" root/{name} ")
    assert others.endswith(" tenant")


@pytest.mark.slow
def test_priorities_are_shown_and_set(runner, name):
    options = ("--vmemory", "2GiB", "--vcore", "30", "--priority", "low")
    with holder(runner, name, GIB, *options):
        for command in (("ps",), ("top", "--once", "--interval", "0.1")):
            (line,) = [x for x in show(runner, *command).stdout.splitlines() if name in x]
            assert re.search(r" 30 low +", line)
        set_to = show(runner, "set", name, "--priority", "high").stdout
        assert set_to.startswith(f"{name}: vcore 30, priority high, vmemory 2GiB of ")
        found = entry(json.loads(show(runner, "ps", "--json").stdout), name)
        assert (found["priority"], found["vcore"]) == ("high", 30)


@pytest.mark.slow
@pytest.mark.parametrize(("value", "priority"), [("0", "high"), ("1", "low"), ("7", "low")])
def test_the_variable_of_hami_is_a_priority(runner, name, monkeypatch, value, priority):
    monkeypatch.setitem(runner.environment, "CUDA_TASK_PRIORITY", value)
    with holder(runner, name, GIB, "--vmemory", "2GiB"):
        assert entry(json.loads(show(runner, "ps", "--json").stdout), name)["priority"] == priority
    with holder(runner, name, GIB, "--vmemory", "2GiB", "--priority", "normal"):
        assert entry(json.loads(show(runner, "ps", "--json").stdout), name)["priority"] == "normal"


@pytest.mark.slow
def test_top_prints_once_without_a_terminal(runner, name):
    options = ("--vmemory", "2GiB", "--vcore", "20", "--policy", "elastic", "--vcore-limit", "70")
    with holder(runner, name, GIB, *options):
        shown = show(runner, "top", "--interval", "0.1").stdout
        document = json.loads(show(runner, "top", "--once", "--json", "--interval", "0.1").stdout)
    (line,) = [x for x in shown.splitlines() if name in x]
    assert re.search(r" 20-70 +0\.0 % ", line)
    assert re.search(r"^ +\d+ tenant +1\.5\d GiB", shown, re.MULTILINE)
    found = entry(document, name)
    assert (found["share"], found["vcore_limit"]) == (0.0, 70)
    (device,) = [x for x in document["devices"] if x["uuid"] == found["device"]]
    assert (device["reserved_vcore"], device["reserved_bytes"]) == (20, 2 * GIB)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_top_is_shown_in_any_encoding(runner, name, encoding):
    with holder(runner, name, GIB, "--vmemory", "2GiB"):
        shown = subprocess.run(
            [PYVGPU, "top", "--once", "--interval", "0.1"],
            env={**runner.environment, "PYTHONIOENCODING": encoding},
            capture_output=True,
            check=True,
        ).stdout.decode(encoding)
    (line,) = [x for x in shown.splitlines() if name in x]
    assert re.search(r" 1\.5\d GiB ", line)
    assert "#####" in line


@pytest.mark.slow
def test_top_writes_a_line_per_sample_until_the_pipe_closes(runner, name):
    with (
        holder(runner, name, GIB, "--vmemory", "2GiB"),
        subprocess.Popen(
            [PYVGPU, "top", "--json", "--interval", "0.1"],
            env=runner.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as top,
    ):
        for _ in range(3):
            assert entry(json.loads(top.stdout.readline()), name)
        top.stdout.close()
        assert top.wait(30) == 141
        assert top.stderr.read() == ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["xterm", "dumb", "unknown"])
def test_terminal_is_redrawn_until_q(runner, name, kind):
    with holder(runner, name, GIB, "--vmemory", "2GiB"):
        pid, terminal = pty.fork()
        if not pid:
            environment = {**runner.environment, "TERM": kind, "COLUMNS": "120"}
            os.execve(PYVGPU, [PYVGPU, "top", "--interval", "0.1"], environment)

        def wait_for(text, times=1):
            shown = b""
            while shown.count(text.encode()) < times:
                shown += os.read(terminal, 1 << 16)

        wait_for(name, 3)
        os.write(terminal, b"/no-such-run\r")
        wait_for("no run contains")
        os.write(terminal, b"\x1b")
        wait_for(name)
        os.write(terminal, b"h")
        wait_for("sort by vmemory")
        os.write(terminal, b"q")
        with contextlib.suppress(OSError):
            while os.read(terminal, 1 << 16):
                pass
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_no_line_is_wider_than_the_terminal(runner, name, kind):
    with holder(runner, name, GIB, "--vmemory", "2GiB"):
        pid, terminal = pty.fork()
        if not pid:
            termios.tcsetwinsize(0, (24, 60))
            environment = {**runner.environment, "TERM": kind}
            environment.pop("COLUMNS", None)
            os.execve(PYVGPU, [PYVGPU, "top", "--once", "--interval", "0.1"], environment)
        shown = b""
        with contextlib.suppress(OSError):
            while part := os.read(terminal, 1 << 16):
                shown += part
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).splitlines()
    assert any(name[:8] in line for line in lines)
    assert [line for line in lines if len(line) > 60] == []


@pytest.mark.parametrize("interval", ["0", "-1", "0.05", "61", "1s", "1e1", "nan"])
def test_invalid_interval_is_refused_in_one_line(runner, interval):
    ran = show(runner, "top", "--interval", interval)
    assert (ran.returncode, ran.stdout) == (64, "")
    assert "must be seconds from 0.1 to 60, such as 1" in ran.stderr
    assert re.fullmatch(r"pyvgpu: [^\n]+\n", ran.stderr)
