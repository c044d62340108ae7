"""Exit codes and signals of runs, and cleanup after their ends."""

import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PROMPT, wait_until

from pyvgpu import locks, region

from .conftest import reservation_folders


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


@pytest.mark.parametrize("code", [0, 1, 7, 64, 126, 255])
def test_exit_code_is_that_of_the_program(runner, name, code):
    ran = runner("--name", name, "--vmemory", "2GiB", "sh", "-c", f"echo out; exit {code}")
    assert ran.returncode == code
    assert ran.stdout == "out\n"
    assert reservation_folders(name) == []
    assert runner.trees() == []


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE]
)
def test_run_dies_of_the_programs_signal(runner, number):
    ran = runner("--vmemory", "2GiB", "sh", "-c", f"kill -{number.value} $$")
    assert ran.returncode == -number
    assert runner.trees() == []


@pytest.mark.parametrize(
    ("command", "code", "problem"),
    [
        pytest.param("/nonexistent/program", 127, "no such file", id="no such file"),
        pytest.param("no-such-program-here", 127, "no such file", id="not in PATH"),
        pytest.param("/etc/passwd", 126, "permission denied", id="not executable"),
        pytest.param("/etc", 126, "is a directory", id="folder"),
    ],
)
def test_program_that_cannot_start_is_named_in_the_error(runner, command, code, problem):
    ran = runner("--vmemory", "2GiB", command)
    assert ran.returncode == code
    assert ran.stderr == f"pyvgpu: {command}: {problem} or directory\n" or problem in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert runner.trees() == []


def test_script_with_a_missing_interpreter_is_named_in_the_error(runner, tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/nonexistent/interpreter\n")
    script.chmod(0o755)
    ran = runner("--vmemory", "2GiB", script)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (127, 1)
    assert runner.trees() == []


def test_script_without_shebang_is_run_by_the_shell(runner, tmp_path):
    script = tmp_path / "script"
    script.write_text('echo "$1"\n')
    script.chmod(0o755)
    assert runner("--vmemory", "2GiB", script, "given").stdout == "given\n"


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT]
)
def test_signal_sent_to_the_run_reaches_the_program(runner, number):
    short = number.name.removeprefix("SIG")
    script = f"trap 'echo got; exit 9' {short}; echo ready; while :; do sleep 0.05; done"
    with runner.started("--vmemory", "2GiB", "sh", "-c", script) as run:
        assert run.stdout.readline() == "ready\n"
        run.send_signal(number)
        assert run.stdout.readline() == "got\n"
        assert run.wait(PROMPT) == 9
    assert runner.trees() == []


def test_program_has_the_default_signals_and_an_empty_mask(runner):
    ran = runner("--vmemory", "2GiB", "grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status")
    plain = subprocess.run(
        ["grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == plain.stdout


def test_ignored_signals_stay_ignored(runner):
    script = f"trap '' HUP; exec {shlex.join(runner.command('--vmemory', '2GiB'))} "
    ran = subprocess.run(
        ["sh", "-c", f"{script} grep SigIgn /proc/self/status"],
        env=runner.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(ran.stdout.split()[1], 16) & 1 << (signal.SIGHUP - 1)


def test_program_has_no_descriptors_of_ours(runner):
    ran = runner("--vmemory", "2GiB", "ls", "/proc/self/fd")
    assert ran.stdout.split() == ["0", "1", "2", "3"]  # 3 is the listing itself


@pytest.mark.parametrize("end", ["exit 3", "kill -TERM $$"])
def test_closed_standard_streams_are_accepted(runner, end):
    command = shlex.join(runner.command("--vmemory", "2GiB", "sh", "-c", end))
    ran = subprocess.run(
        ["sh", "-c", f"{command} <&- >&- 2>&-"], env=runner.environment, check=False
    )
    assert ran.returncode == (3 if "exit" in end else 128 + signal.SIGTERM)
    assert runner.trees() == []


COUNTER = """
import signal, sys, time
count = [0]
def note(number, frame):
    count[0] += 1
signal.signal(signal.SIGINT, note)
print("ready", flush=True)
sys.stdin.readline()
print(f"count={count[0]}.", flush=True)
"""


def in_terminal(command, environment):
    """Start *command* as the leader of a new terminal; return its pid and our end."""
    pid, terminal = pty.fork()
    if not pid:
        os.execve(command[0], command, environment)
    return pid, terminal


def read_until(terminal, text):
    seen = b""
    while text not in seen:
        seen += os.read(terminal, 1000)
    return seen


def test_ctrl_c_reaches_the_program_once(runner):
    command = runner.command("--vmemory", "2GiB", sys.executable, "-c", COUNTER)
    pid, terminal = in_terminal(command, runner.environment)
    read_until(terminal, b"ready")
    os.write(terminal, b"\x03")
    read_until(terminal, b"^C")
    os.write(terminal, b"\n")
    assert b"count=1." in read_until(terminal, b".")
    assert os.waitpid(pid, 0)[1] == 0
    os.close(terminal)


def test_ctrl_z_stops_both_and_fg_continues_both(runner):
    # An interactive shell between: a session leader is never stopped by its terminal.
    command = runner.command("--vmemory", "2GiB", "sh", "-c", "echo pid $$.; read x; echo got $x.")
    pid, terminal = in_terminal(["/bin/bash", "--norc", "-i"], runner.environment)
    os.write(terminal, b"PS1='$ '; stty -echo\n")
    os.write(terminal, (" ".join(f"'{word}'" for word in command) + "\n").encode())
    seen = read_until(terminal, b"pid ")
    while seen.count(b".\r\n", seen.index(b"pid ")) == 0:
        seen += os.read(terminal, 100)
    program = int(seen.split(b"pid ")[-1].split(b".")[0])
    run = int(Path(f"/proc/{program}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.write(terminal, b"\x1a")
    read_until(terminal, b"Stopped")
    wait_until(lambda: state(program) == state(run) == "T")
    os.write(terminal, b"fg\n")
    wait_until(lambda: state(program) != "T" and state(run) != "T")
    os.write(terminal, b"hello\n")
    assert b"got hello." in read_until(terminal, b"hello.")
    os.write(terminal, b"exit\n")
    os.close(terminal)
    os.waitpid(pid, 0)
    wait_until(lambda: runner.trees() == [])


HOLDER = """
import sys, threading
from pathlib import Path
from pyvgpu.machine import reservations
from pyvgpu.run import supervisor

registries, held = reservations.Registries(*map(Path, sys.argv[1:3])), threading.Event()

def hold():
    with registries.held():
        held.set()
        sys.stdin.readline()

threading.Thread(target=hold, daemon=True).start()
held.wait()
with supervisor.signals_held() as inherited:
    program = supervisor.RunProgram("/bin/sh", ["sh", "-c", "echo $$; kill -TSTP $$"], {})
    supervisor.supervise(program, inherited)
"""


def test_a_supervisor_is_stopped_only_once_it_holds_no_lock(tmp_path):
    registry = tmp_path / "all"
    registry.mkdir()
    registry.chmod(0o1777)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path / "root", registry],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # with a parent outside of it: else the kernel ignores SIGTSTP
    ) as run:
        try:
            program = int(run.stdout.readline())
            wait_until(lambda: state(program) == "T")
            run.stdin.write("\n")
            run.stdin.flush()
            wait_until(lambda: state(run.pid) == "T")
            wait_until(lambda: not locks.is_flocked(registry))
        finally:
            run.kill()


def test_sigkill_of_the_run_ends_the_program_and_cleans_up(runner, name):
    with runner.started(
        "--name", name, "--vmemory", "2GiB", "sh", "-c", "echo $$; exec sleep 1000"
    ) as run:
        program = int(run.stdout.readline())
        assert len(reservation_folders(name)) == 1
        assert len(runner.trees()) == 1
        run.kill()
        run.wait()
        wait_until(lambda: is_gone(program))
        wait_until(lambda: reservation_folders(name) == [])
        wait_until(lambda: runner.trees() == [])


def test_next_run_cleans_up_after_sigkill_of_run_and_janitor(runner, name):
    with runner.started(
        "--name", name, "--vmemory", "80000MiB", "sh", "-c", "echo $$; exec sleep 1000"
    ) as run:
        run.stdout.readline()
        (folder,) = reservation_folders(name)
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        for pid in children:
            if Path(f"/proc/{pid}/comm").read_text().strip() == "pyvgpu-janitor":
                os.kill(int(pid), signal.SIGKILL)
        run.kill()
        run.wait()
    assert folder.exists()
    assert len(runner.trees()) == 1
    assert runner("--name", name, "--vmemory", "80000MiB", "true").returncode == 0
    assert not folder.exists()
    assert runner.trees() == []


def test_a_reservation_lasts_while_a_forked_child_keeps_the_memory(runner, name):
    """The program is killed; a child that it forked still has the driver's descriptors."""
    source = """
import ctypes, os
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
if os.fork() == 0:
    os.read(0, 1)
    os._exit(0)
os.kill(os.getpid(), 9)
"""
    with runner.started("--name", name, "--vmemory", "2GiB", sys.executable, "-c", source) as run:
        run.stdout.close()
        run.wait()
        assert run.returncode == -signal.SIGKILL
        (folder,) = reservation_folders(name)
        with (folder / "usage").open("rb") as usage:
            assert region.is_used(usage.fileno())
        assert runner("--vmemory", "2GiB", "true").returncode == 0  # it cleans up after dead runs
        assert reservation_folders(name) == [folder]
        run.stdin.close()
        wait_until(lambda: reservation_folders(name) == [])
        wait_until(lambda: runner.trees() == [])


def test_run_does_not_wait_for_a_program_left_in_the_background(runner, name):
    ran = runner(
        "--name", name, "--vmemory", "2GiB", "sh", "-c", "sleep 1000 >&- 2>&- & echo $!; exit 3"
    )
    assert ran.returncode == 3
    os.kill(int(ran.stdout), signal.SIGKILL)
    wait_until(lambda: reservation_folders(name) == [])
