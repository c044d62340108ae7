"""MPS daemon: the kit's own is stopped however its stage ends, and any other is left alone."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

import kit_daemons
import mps_room
import pytest
import waiting
from kit import mps

from pyvgpu.simulation import simulator

SUPPORT = pathlib.Path(kit_daemons.__file__).parent

# Understands the kit's commands; like NVIDIA's, it runs until it receives `quit`.
CONTROL = """#!/bin/sh
pipe=$CUDA_MPS_PIPE_DIRECTORY/control
if [ "$1" = -f ]; then
    echo $$ > "$FAKE_FOLDER/pid"
    mkfifo "$pipe"
    exec 3<> "$pipe"
    while read -r question <&3; do
        echo "$question" >> "$FAKE_FOLDER/asked"
        case $question in quit*) [ -n "$FAKE_DEAF" ] || exit 0 ;; esac
    done
fi
read -r question
echo "$question" > "$pipe"
"""

# Other tests have daemons of simulated machines at the same time: a test sees only its own.
STAGE = """
import json, sys
import kit_daemons
from kit import mps
kit_daemons.see_only_own(mps)
with mps.daemon() as variables:
    print(json.dumps(variables), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def control(tmp_path, monkeypatch):
    """Give the folder of a control program that stands in for NVIDIA's."""
    path = tmp_path / "bin" / mps.CONTROL
    path.parent.mkdir()
    path.write_text(CONTROL)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_FOLDER", str(tmp_path))
    monkeypatch.delenv(mps.PIPE_VARIABLE, raising=False)
    monkeypatch.setattr(mps, "running", mps.running)  # undone at the end
    kit_daemons.see_only_own(mps)
    return tmp_path


def is_running(pid):
    return pid in mps.running()


def start_stage(kit):
    process = subprocess.Popen(
        [sys.executable, "-c", STAGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": f"{kit.folder}:{SUPPORT}"},
    )  # fmt: skip
    first = process.stdout.readline()
    if not first:
        process.communicate()
    return process, json.loads(first)


@pytest.mark.slow
def test_a_daemon_of_our_own_is_ended_however_its_stage_ends(kit, control, monkeypatch):
    for end in (lambda process: process.communicate(""), lambda process: process.kill()):
        process, variables = start_stage(kit)
        pid = int((control / "pid").read_text())
        assert is_running(pid)
        assert sorted(variables) == [mps.LOG_VARIABLE, mps.PIPE_VARIABLE]
        assert "/nvidia-mps" not in variables[mps.PIPE_VARIABLE]
        end(process)
        waiting.wait_until(lambda pid=pid: not is_running(pid))
        folder = pathlib.Path(variables[mps.PIPE_VARIABLE]).parent
        waiting.wait_until(lambda folder=folder: not folder.exists())
        process.communicate()
    assert (control / "asked").read_text().splitlines() == ["get_server_list", "quit -t 2"] * 2
    monkeypatch.setenv("FAKE_DEAF", "1")
    process, _ = start_stage(kit)
    pid = int((control / "pid").read_text())
    process.communicate("")
    assert not is_running(pid)
    with_another = subprocess.Popen(
        [control / "bin" / mps.CONTROL, "-f"],
        env={**os.environ, mps.PIPE_VARIABLE: str(control)}, start_new_session=True,
    )  # fmt: skip
    try:
        # Until then it has a child of its own name, which outlives it for a moment.
        waiting.wait_until((control / "control").exists)
        assert is_running(with_another.pid)
        said = mps.obstacle()
        assert said.startswith("MPS runs here already (pid ")
        assert str(with_another.pid) in said
        assert said.endswith("): it is left alone")
    finally:
        os.killpg(with_another.pid, signal.SIGKILL)
        with_another.wait()
    (control / "bin" / mps.CONTROL).write_text(
        "#!/bin/sh\necho 'An instance of this daemon is already running' >&2\nexit 1\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(kit.folder))
    with (
        pytest.raises(mps.UnavailableError, match="An instance of this daemon is already running"),
        mps.daemon(),
    ):
        pass


def test_a_daemon_that_a_variable_names_is_left_alone(control, monkeypatch):
    monkeypatch.setenv(mps.PIPE_VARIABLE, "/run/mps")
    assert mps.obstacle() == "CUDA_MPS_PIPE_DIRECTORY=/run/mps is set: that daemon is left alone"
    with pytest.raises(mps.UnavailableError), mps.daemon():
        pass
    assert not (control / "pid").exists()


def test_without_the_program_no_daemon_is_started(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mps.obstacle() == "no program nvidia-cuda-mps-control in PATH or the usual folders"


def test_processes_of_mps_are_found_by_their_names(tmp_path):
    for pid, name, state in (
        ("7", "nvidia-cuda-mps", "S"),
        ("12", "nvidia-cuda-mps-server", "R"),
        ("9", "bash", "S"),
        ("15", "nvidia-cuda-mps", "Z"),
    ):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "stat").write_text(f"{pid} ({name}) {state} 1 1 1 0 -1 4194560\n")
    assert mps.running(tmp_path) == [7, 12]


@pytest.mark.slow
def test_servers_that_a_daemon_left_are_gone_when_its_end_returns(control, monkeypatch):
    """A server holds memory of the device until it is gone, so it counts as running till then."""
    server = control / "bin" / "nvidia-cuda-mps-server"
    server.write_text("#!/bin/sh\nread -r line\n")
    server.chmod(0o755)
    (control / "bin" / mps.CONTROL).write_text('#!/bin/sh\necho "$FAKE_SERVERS"\n')
    kill = os.kill

    def kill_later(*arguments):
        threading.Timer(0.5, kill, arguments).start()

    with (
        subprocess.Popen([server], stdin=subprocess.PIPE) as left,
        subprocess.Popen(["true"], start_new_session=True) as daemon,
    ):
        waiting.wait_until(lambda: is_running(left.pid))
        monkeypatch.setenv("FAKE_SERVERS", str(left.pid))
        monkeypatch.setattr(mps.os, "kill", kill_later)
        mps.end(daemon, {})
        assert not is_running(left.pid)


@pytest.mark.slow
def test_clients_of_a_daemon_that_runs_are_noted_and_have_no_turns(kit, simulated, tmp_path):
    options, environment = simulated
    machine = simulator.open_machine("h100", root=tmp_path / "machines")
    with mps_room.daemon(machine, tmp_path / "pipes"):
        variables = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "pipes")}
        done = kit.run(*options, "--only", "slices", **environment, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "note: programs are clients of an MPS daemon that runs: they have no" in done.stdout
    (fact,) = (f for f in kit.stages()["slices"]["facts"] if "MPS" in f["name"])
    assert fact["value"] is True


@pytest.mark.slow
def test_the_stage_of_mps_runs_on_a_simulated_device(run_stage):
    entry = run_stage("mps")
    facts = {fact["name"]: fact["value"] for fact in entry["facts"]}
    assert facts["a client of MPS"]["enabled"] == 1
    processors = facts["a client of MPS"]["processors"]
    assert facts["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30"]["processors"] < processors / 2
    assert [(g["name"], g["held"]) for g in entry["guarantees"]] == [
        ("the daemon that was started is ended", True)
    ]
