"""`pyvgpu demo` end to end: its output for terminals and for programs, signals and cleanup."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PROMPT, wait_until

from pyvgpu.demo import tenant_runs, workspace
from pyvgpu.demo.observations import EventKind, Role, TenantEvent
from pyvgpu.errors import DataError
from pyvgpu.machine import reservations

pytestmark = pytest.mark.slow

DEMO = [str(Path(sys.executable).with_name("pyvgpu")), "demo", "--seconds", "5"]


@pytest.fixture
def room(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    yield tmp_path
    wait_until(lambda: not leavings(tmp_path))


def leavings(folder, pid=-1):
    """Return what a demonstration with that cache, and of that process, has left by now."""
    machines = [
        path for base in workspace.PLACES for path in Path(base).glob(f"{workspace.PREFIX}{pid}-*")
    ]
    trees = (folder / "cache" / "pyvgpu" / "runs").glob("*")
    live = [
        x.folder for x in reservations.Registries().live() if x.holder.tree.startswith(str(folder))
    ]
    return [*machines, *trees, *live]


def test_all_claims_hold_and_nothing_is_left(room):
    with subprocess.Popen(
        [*DEMO, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        output, stderr = demo.communicate()
    assert stderr == ""
    found = json.loads(output)
    assert [claim for claim in found["claims"] if not claim["holds"]] == []
    assert len(found["claims"]) == 8
    assert demo.returncode == 0
    assert leavings(room, demo.pid) == []


def test_terminal_shows_a_table_that_is_redrawn(room):
    pid, terminal = pty.fork()
    if not pid:
        os.environ.update(TERM="xterm", COLUMNS="100")
        os.execv(DEMO[0], DEMO)
    shown = b""
    while True:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            break
        shown += chunk
    os.close(terminal)
    text = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", shown).decode()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, text[-4000:]
    assert text.count("reserved") > 10, "the table was drawn again and again"
    assert "8 of 8 claims hold" in text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_the_demonstration_and_its_children(room, number, code):
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        while "doomed  holds" not in demo.stdout.readline():
            assert demo.poll() is None
        assert leavings(room, demo.pid)
        demo.send_signal(number)
        assert demo.wait(PROMPT) == code
        assert demo.stderr.read() == ""
    assert leavings(room, demo.pid) == []


def test_sigkill_ends_the_tenants_and_the_next_demonstration_cleans_up(room):
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, text=True) as demo:
        while "doomed  holds" not in demo.stdout.readline():
            assert demo.poll() is None
        demo.kill()
    wait_until(lambda: not leavings(room))
    (folder,) = leavings(room, demo.pid)
    os.utime(folder, (0, 0))  # a recent folder may belong to a demonstration that is starting
    with workspace.private_folder():
        assert not folder.exists()


def test_failed_claim_is_named_and_sets_the_exit_code(room):
    (room / "libcuda.so.1").write_bytes(b"")  # a rival, which `pyvgpu run` refuses
    ran = subprocess.run(
        DEMO,
        env={**os.environ, "LD_LIBRARY_PATH": str(room)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    text = "".join(ran.stdout.split())
    assert f"steadydidnotstart:pyvgpu:LD_LIBRARY_PATHnames{room}" in text
    assert "1of8claimshold;failed:notenantexceededitsquota;atenantwithin" in text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        pytest.param(["--seconds", "0"], "--seconds '0': must be whole seconds", id="zero"),
        pytest.param(["--seconds", "-5"], "--seconds '-5': must be", id="negative"),
        pytest.param(["--seconds", "1.5"], "from 5 to 22, such as 12", id="fraction"),
        pytest.param(["--seconds", "23"], "--seconds '23': must be", id="beyond half a minute"),
        pytest.param(["--seconds", "long"], "--seconds 'long': must be", id="word"),
        pytest.param(
            ["--simulate", "voodoo"], "--simulate 'voodoo': must be one of t4", id="model"
        ),
        pytest.param(["--simulate", "h100:2"], "such as h100", id="two devices"),
        pytest.param(
            ["--report", "/nowhere/report.html"],
            "such as report.html",
            id="no folder",
        ),
        pytest.param(
            ["--report", "/tmp"], "must name a file in an existing folder", id="a folder"
        ),
        pytest.param(["--scenario", "x"], "must be quotas or oversubscribe", id="scenario"),
        pytest.param(
            ["--scenario", "oversubscribe"], "--seconds: is for --scenario quotas", id="seconds"
        ),
        pytest.param(["now"], "unrecognized arguments: now", id="argument"),
    ],
)
def test_bad_options_give_a_one_line_error(options, problem):
    ran = subprocess.run([*DEMO, *options], capture_output=True, text=True, check=False)
    assert ran.returncode == 64
    assert ran.stdout == ""
    assert problem in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "event"),
    [
        pytest.param(
            b'{"event": "start", "mode": "hold", "pid": 7, "total": 9, "free": 8}',
            TenantEvent(1.0, Role.DOOMED, EventKind.START, size=9, free=8, pid=7),
            id="start",
        ),
        pytest.param(
            b'{"event": "refused", "bytes": 5, "free": 1, "result": 2, "name": "OUT"}',
            TenantEvent(1.0, Role.DOOMED, EventKind.REFUSED, 2, 5, 1, text="OUT"),
            id="refused",
        ),
        pytest.param(
            b'{"event": "round", "number": 3, "bytes": 12, "wrong": 4}',
            TenantEvent(1.0, Role.DOOMED, EventKind.ROUND, 4, 12),
            id="round",
        ),
        pytest.param(
            b'{"event": "spun", "kernels": 5, "ns": 5000000, "at": 100.5}',
            TenantEvent(0.5, Role.DOOMED, EventKind.SPUN, 5, ns=5000000),
            id="spun, as old as it says",
        ),
        pytest.param(
            b'{"event": "failed", "call": "cuInit", "result": 800, "name": "NOT_PERMITTED"}',
            TenantEvent(
                1.0, Role.DOOMED, EventKind.FAILED, 800, text="cuInit returned NOT_PERMITTED"
            ),
            id="failed",
        ),
    ],
)
def test_report_of_a_tenant_becomes_an_event(line, event):
    assert tenant_runs.parse(1.0, Role.DOOMED, line, 100.0) == event


@pytest.mark.parametrize(
    "line", [b"hello", b"{}", b"[]", b'{"event": "dance"}', b'{"event": "held", "bytes": "x"}']
)
def test_other_output_of_a_tenant_is_an_error(line):
    with pytest.raises(DataError, match="doomed: sent a line that is not an event"):
        tenant_runs.parse(1.0, Role.DOOMED, line)
