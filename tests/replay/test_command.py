"""The command `pyvgpu replay`."""

import json
import subprocess
import sys
from pathlib import Path

import profiles
import pytest
from profiles import US, Profile

PROGRAM = Path(sys.executable).parent / "pyvgpu"


def replay(*arguments):
    return subprocess.run(
        [PROGRAM, "replay", *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.fixture(name="trace")
def fixture_trace(tmp_path):
    return profiles.write_kineto(tmp_path / "train.json.gz", profiles.kineto(Profile()))


@pytest.fixture(name="report")
def fixture_report(tmp_path):
    served = Profile(kernel_ns=50 * US, kernels=200, process=77)
    return profiles.write_nsys(tmp_path / "serve.sqlite", served, Profile(steps=1))


def test_job_with_half_the_vcore_it_needs_takes_twice_as_long(trace):
    ran = replay(trace, "--vcore", 44, "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    (job,) = json.loads(ran.stdout)["jobs"]
    assert (job["file"], job["steps"], job["activities"]) == ("train.json.gz", 3, 63)
    assert job["unlimited"]["held"] == pytest.approx(88, abs=1)
    (half,) = job["alone"]
    assert (half["vcore"], half["ratio"]) == (44, pytest.approx(2, rel=0.1))
    assert half["steps_per_s"] == pytest.approx(job["unlimited"]["steps_per_s"] / 2, rel=0.1)
    assert job["together"] is None


def test_jobs_beside_each_other_have_their_shares(trace, report):
    ran = replay(trace, "--vcore", 60, "--beside", report, "--vcore", 30, "--json")
    assert ran.stderr == (
        f"pyvgpu: {report}: process 77 has most of the work and is replayed; there are also 4242\n"
    )
    first, second = json.loads(ran.stdout)["jobs"]
    assert (first["together"]["vcore"], second["together"]["vcore"]) == (60, 30)
    # Both run for a second or two, and the first launches are charged by estimates.
    assert first["together"]["held"] <= 65
    assert second["together"]["held"] <= 35


def test_table_and_page_have_a_line_for_each_share(trace, tmp_path):
    page = tmp_path / "page.html"
    ran = replay(trace, "--vcore", 50, "--html", page)
    assert "63 kernels, copies and sets in 34.1 ms on NVIDIA H100 80GB HBM3" in ran.stdout
    lines = [line.split()[0] for line in ran.stdout.splitlines() if "ms" in line and "%" in line]
    assert lines == ["train.json.gz:", "none", "vcore"]
    assert "<td>vcore 50</td>" in page.read_text()


WRONG = [
    pytest.param(["--vcore", "0"], "--vcore '0': must be a whole percentage", id="vcore"),
    pytest.param(
        ["--beside", "b.json", "--vcore", "50"],
        "--vcore is given 1 times for 2 jobs; with --beside each job must have one, such as",
        id="too few",
    ),
    pytest.param(
        ["--beside", "b.json", "--vcore", "60", "--vcore", "50"],
        "--vcore 60 and 50: must be 100 together at most, such as 60 and 40",
        id="too much",
    ),
    pytest.param(["--beside=b"] * 4, "--beside b: must be given 3 times at most", id="too many"),
    pytest.param(["--process", "x"], "--process 'x': must be a whole number from 0", id="process"),
    pytest.param(["--process", "9"], "--process 9: ", id="no such process"),
    pytest.param(["--device", "3"], "--device 3: ", id="no such device"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_wrong_use_prints_one_line_with_the_rule(trace, arguments, message):
    ran = replay(trace, *arguments)
    assert (ran.returncode, ran.stdout) == (64, "")
    assert ran.stderr.startswith(f"pyvgpu: {message}")
    assert ran.stderr.count("\n") == 1


def test_missing_file_is_named(tmp_path):
    ran = replay(tmp_path / "none.json")
    assert (ran.returncode, ran.stderr) == (
        69,
        f"pyvgpu: {tmp_path / 'none.json'}: must be a profile, such as trace.json.gz or "
        "report.sqlite; cannot be read: No such file or directory\n",
    )


def test_unwritable_page_is_named(trace, tmp_path):
    ran = replay(trace, "--vcore", 90, "--html", tmp_path / "none" / "page.html")
    assert ran.returncode == 69
    assert "page.html: cannot be written: No such file or directory" in ran.stderr
