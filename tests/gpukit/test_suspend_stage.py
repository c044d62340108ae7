"""The stage of suspended runs: what it records, and what it leaves."""

import types

import pytest
import waiting
from kit import cuda, record, report
from kit.stages import suspend
from kit_records import by_name


@pytest.mark.slow
def test_runs_are_suspended_resumed_killed_and_refused(run_stage):
    entry = run_stage("suspend", "h100")
    facts = {name: fact["value"] for name, fact in by_name(entry["facts"]).items()}
    figures = by_name(entry["figures"])
    assert entry["missing"] == []
    for size in (256, 1024):
        title = f"{size} MiB"
        assert facts[f"{title}, while suspended: state of the process"] == "checkpointed"
        assert facts[f"{title}, while suspended: the process in NVML"] == "not listed"
        assert figures[f"{title}: comes free"]["value"] >= size << 20
        assert figures[f"{title}: suspend"]["value"] > 0
    for title in suspend.REFUSED.values():
        assert facts[f"{title}: suspend"]["exit code"] == 69
    assert "managed memory" in facts["managed memory: suspend"]["said"]
    assert {"suspend: each GiB", "resume: each GiB"} < set(figures)
    assert [guarantee["name"] for guarantee in entry["guarantees"]] == [
        "256 MiB: memory of a suspended run is free",
        "256 MiB: all bytes are the same after a resume",
        "1024 MiB: memory of a suspended run is free",
        "1024 MiB: all bytes are the same after a resume",
        "of a suspended run that is killed, no process is left",
        "managed memory: its program goes on with the same bytes",
        "memory of cuIpcGetMemHandle: its program goes on with the same bytes",
    ]


@pytest.mark.parametrize(
    ("names", "version", "lacking"),
    [
        pytest.param(suspend.FUNCTIONS[1:], 13000, suspend.FUNCTIONS[0], id="a function"),
        pytest.param(suspend.FUNCTIONS, 12040, ", ".join(suspend.FUNCTIONS), id="all of them"),
    ],
)
def test_a_driver_without_checkpoints_is_recorded_by_their_names(
    monkeypatch, tmp_path, names, version, lacking
):
    raw = types.SimpleNamespace(**dict.fromkeys(names))
    monkeypatch.setattr(cuda, "driver", lambda: types.SimpleNamespace(raw=raw))
    monkeypatch.setattr(cuda, "driver_version", lambda: version)
    suspend.run(report.Report(tmp_path / "lines"))
    ((kind, fields),) = report.read_lines(tmp_path / "lines")
    assert (kind, fields["name"]) == ("missing", "checkpoint interface")
    assert f"does not offer {lacking}: release 570 does" in fields["reason"]


DIES_SUSPENDED = """
import os, signal
from kit.stages import suspend
def run(report):
    with suspend.held("plain", suspend.SMALL) as one:
        report.fact("pid", one.pid)
        report.fact("exit code", suspend.ask("suspend", one.name)[0])
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_stage_that_is_killed_leaves_no_suspended_process(kit, simulated):
    options, environment = simulated
    kit.put(dies=(60, 1, DIES_SUSPENDED))
    kit.run(*options, **environment)
    entry = record.read(kit.out / "record.json")["stages"]["dies"]
    assert entry["state"] == "crashed"
    facts = by_name(entry["facts"])
    assert facts["exit code"]["value"] == 0
    waiting.wait_until(lambda: not suspend.is_alive(facts["pid"]["value"]))
