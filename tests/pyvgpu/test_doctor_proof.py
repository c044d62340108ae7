"""Verdicts about a program that requests too much memory, and one that never pauses."""

import dataclasses
import json
import subprocess

import pytest
import runner

from pyvgpu import region
from pyvgpu.cli.doctor import read_proofs
from pyvgpu.doctor import CheckState, inside, proof
from pyvgpu.quota import TimePolicy

GIB = 1 << 30
START = {"event": "start", "total": GIB}
REFUSED = {"event": "refused", "result": 2, "name": "CUDA_ERROR_OUT_OF_MEMORY"}
FAILED = {"event": "failed", "call": "cuInit", "result": 100, "name": "CUDA_ERROR_NO_DEVICE"}


@pytest.mark.parametrize(
    ("events", "refused", "state", "found"),
    [
        pytest.param([START, REFUSED], 1, CheckState.OK, "refused by the shim", id="held"),
        pytest.param([START, REFUSED], 0, CheckState.LIMITED, "not the shim", id="a full device"),
        pytest.param(
            [{**START, "total": 2 * GIB}, REFUSED],
            1,
            CheckState.LIMITED,
            "shows 2147483648",
            id="view",
        ),
        pytest.param(
            [START, {"event": "grown"}], 0, CheckState.MISSING, "was allocated", id="not held"
        ),
        pytest.param(
            [START, {"event": "grown"}],
            1,
            CheckState.MISSING,
            "was allocated",
            id="allocated later",
        ),
        pytest.param(
            [FAILED], 0, CheckState.MISSING, "cuInit returns CUDA_ERROR_NO", id="no device"
        ),
        pytest.param(
            [{**FAILED, "said": "no room for it"}],
            0,
            CheckState.MISSING,
            "(100): no room for it",
            id="its log line",
        ),
        pytest.param([], 0, CheckState.MISSING, "it printed nothing", id="nothing"),
        pytest.param(
            [{"event": "nothing", "said": "libcuda.so.1: cannot open"}],
            0,
            CheckState.MISSING,
            "did nothing: libcuda.so.1: cannot open",
            id="no driver",
        ),
    ],
)
def test_memory_is_limited_if_the_shim_refused(events, refused, state, found):
    said = proof.check_memory(GIB, events, refused)
    assert said.state is state
    assert found in said.found
    assert said.remedy or state is CheckState.OK


def limits(vcore, limit=0, policy=TimePolicy.HARD):
    return region.DeviceLimits("GPU-0", vcore, limit or vcore, GIB, 16 * GIB, 0, 0, policy)


@pytest.mark.parametrize(
    ("given", "spun", "busy", "state"),
    [
        pytest.param(limits(30), 29, 30, CheckState.OK, id="its share"),
        pytest.param(limits(30), 37, 37, CheckState.OK, id="the tolerance of two seconds"),
        pytest.param(limits(30), 99, 0, CheckState.MISSING, id="not in the ledger"),
        pytest.param(limits(30), 10, 99, CheckState.MISSING, id="kernels of others"),
        pytest.param(limits(30), 38, 38, CheckState.MISSING, id="too much"),
        pytest.param(limits(2), 6, 6, CheckState.OK, id="small"),
        pytest.param(limits(2), 8, 8, CheckState.MISSING, id="small, too much"),
        pytest.param(limits(30), 20, 20, CheckState.LIMITED, id="too little"),
        pytest.param(limits(30, 80, TimePolicy.ELASTIC), 80, 80, CheckState.OK, id="elastic"),
        pytest.param(
            limits(30, 60, TimePolicy.ELASTIC), 99, 99, CheckState.MISSING, id="past its limit"
        ),
    ],
)
def test_time_is_limited_if_program_and_ledger_agree(given, spun, busy, state):
    said = proof.check_time(given, proof.Spun(2.0, int(spun * 2e7), 3.0, int(busy * 3e7)))
    assert said.state is state
    assert said.remedy or state is CheckState.OK


def test_unlimited_time_is_not_tested():
    # No ledger is read, and nothing is started.
    assert proof.time(limits(100), None).state is CheckState.OK
    assert proof.time(limits(30, 100, TimePolicy.ELASTIC), None).state is CheckState.OK


@pytest.mark.parametrize(
    ("output", "stderr", "found"),
    [
        pytest.param("", "pyvgpu: no room\n", "failed: no room", id="no run"),
        pytest.param("", "", "it gave no answer", id="silence"),
        pytest.param('{"checks": []}', "", "it gave no answer", id="no proof"),
        pytest.param("[]", "", "it gave no answer", id="nonsense"),
    ],
)
def test_a_trial_that_fails_proves_nothing(output, stderr, found):
    rows = read_proofs(output, stderr)
    assert [row.check for row in rows] == [inside.MEMORY, inside.TIME]
    assert {row.state for row in rows} == {CheckState.LIMITED}
    assert all(found in row.found for row in rows)


def test_a_trial_returns_the_proofs_of_its_doctor():
    proofs = [
        {"check": name, "state": "missing", "found": "x", "remedy": "y"}
        for name in (inside.MEMORY, inside.TIME)
    ]
    rows = read_proofs(json.dumps({"checks": [{"check": "quota"}, *proofs]}), "")
    assert [dataclasses.asdict(row) for row in rows] == proofs


def doctor(*options):
    return (runner.PYVGPU, "doctor", "--json", *options)


@pytest.mark.slow
def test_a_doctor_in_a_run_proves_the_quota_of_the_run(tmp_path):
    ran = runner.Runner(tmp_path, "t4")("--vcore", "20", "--vmemory", "1GiB", *doctor())
    document = json.loads(ran.stdout)
    assert document["place"] == "run"
    rows = {row["check"]: row for row in document["checks"]}
    assert rows["quota"]["found"].endswith(" 20 vcore 1GiB")
    assert rows["libcuda.so.1"]["found"].endswith(": the shim")
    assert rows[inside.MEMORY]["state"] == "ok", rows
    # A busy machine gives a program less time, and never more.
    assert rows[inside.TIME]["state"] in ("ok", "limited"), rows
    assert "allocated 20" in rows[inside.TIME]["found"]
    assert ran.returncode == 0


@pytest.mark.slow
def test_a_doctor_on_a_machine_proves_with_a_run(tmp_path):
    environment = runner.Runner(tmp_path, "t4").environment
    done = subprocess.run(
        doctor("--prove", "--simulate", "t4"), env=environment, capture_output=True, text=True
    )
    document = json.loads(done.stdout)
    assert document["place"] == "machine"
    *_, memory, time = document["checks"]
    assert (memory["check"], memory["state"]) == (inside.MEMORY, "ok"), memory
    assert time["check"] == inside.TIME
    assert time["state"] in ("ok", "limited"), time
    assert done.returncode == 0


@pytest.mark.slow
def test_a_proof_imports_nothing_from_the_current_folder(tmp_path):
    """In a checkout, `pyvgpu` of the current folder is not the installed one."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "json.py").write_text("raise ImportError('of the current folder')\n")
    environment = runner.Runner(tmp_path, "t4").environment
    ask = (runner.PYVGPU, "doctor", "--json", "--prove", "--simulate", "t4")
    done = subprocess.run(ask, env=environment, cwd=checkout, capture_output=True, text=True)
    rows = {row["check"]: row for row in json.loads(done.stdout)["checks"]}
    assert rows[inside.MEMORY]["state"] == "ok", rows[inside.MEMORY]


@pytest.mark.slow
def test_a_proof_names_the_tests_for_a_real_gpu(tmp_path):
    environment = {**runner.Runner(tmp_path, "t4").environment, "COLUMNS": "300"}
    ask = (runner.PYVGPU, "doctor", "--prove", "--simulate", "t4")
    said = subprocess.run(ask, env=environment, capture_output=True, text=True).stdout
    assert "`make gpu-kit` packs the tests" in said.splitlines()[-1]
