"""Commands that read a FILE of the user's read standard input for `-`, with the same result."""

import json
import subprocess
import sys
from pathlib import Path

import kit_records
import profiles
import pytest
import scheduling_api

PROGRAM = Path(sys.executable).parent / "pyvgpu"
POD = scheduling_api.pod("a", 30, 4)
CLUSTER = {"kind": "List", "items": [{"kind": "Node", **scheduling_api.node("node-1")}]}
READS = {
    "simulate-schedule": ("simulate-schedule", "pod.json", "--cluster", "cluster.json"),
    "--cluster": ("simulate-schedule", "pod.json", "--cluster", "cluster.json"),
    "calibrate": ("calibrate", "record.json", "--json"),
    "replay": ("replay", "trace.json.gz", "--vcore", "50", "--json"),
    "replay a report": ("replay", "report.sqlite", "--vcore", "50", "--json"),
}
INPUTS = {"--cluster": "cluster.json"}  # of the others the first argument


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pod.json").write_text(json.dumps(POD))
    (tmp_path / "cluster.json").write_text(json.dumps(CLUSTER))
    kit_records.write(tmp_path / "record.json", None)
    short = profiles.Profile(kernels=2, steps=1)
    profiles.write_kineto(tmp_path / "trace.json.gz", profiles.kineto(short))
    profiles.write_nsys(tmp_path / "report.sqlite", short)
    return tmp_path


def call(folder, *arguments, data=b"", **options):
    given = {} if "stdin" in options else {"input": data}
    return subprocess.run(
        [PROGRAM, *arguments], cwd=folder, capture_output=True, check=False, **given, **options
    )


def result(done, read):
    """Return the output, without the measurements of a replay, which differ by a fraction."""
    if not read.startswith("replay"):
        return done.stdout.decode()
    (job,) = json.loads(done.stdout)["jobs"]
    return f"{job['file']}: {job['steps']} steps, {job['activities']} activities"


@pytest.mark.parametrize("read", READS)
def test_a_minus_reads_standard_input_like_the_file(read, folder):
    arguments = READS[read]
    file = INPUTS.get(read, arguments[1])
    given = [("-" if argument == file else argument) for argument in arguments]
    expected = call(folder, *arguments)
    assert (expected.returncode, expected.stderr) == (0, b"")
    done = call(folder, *given, data=(folder / file).read_bytes())
    assert (done.returncode, done.stderr) == (0, b"")
    assert result(done, read) == result(expected, read).replace(file, "standard input")


@pytest.mark.parametrize(
    ("read", "rule"),
    [
        pytest.param("simulate-schedule", "must have at least one, such as", id="pods"),
        pytest.param("--cluster", "contains no node; must be the output of", id="cluster"),
        pytest.param("calibrate", "is empty; must be a record.json", id="calibrate"),
        pytest.param("replay", "is not a profile; must be JSON", id="replay"),
    ],
)
def test_empty_standard_input_is_named(read, rule, folder):
    arguments = READS[read]
    file = INPUTS.get(read, arguments[1])
    done = call(folder, *("-" if argument == file else argument for argument in arguments))
    assert (done.returncode, done.stdout) == (65, b"")
    assert done.stderr.startswith(b"pyvgpu: standard input: ")
    assert rule in done.stderr.decode()


@pytest.mark.parametrize("command", ["simulate-schedule", "calibrate", "replay"])
def test_closed_standard_input_is_named(command, folder):
    script = f"exec {PROGRAM} {command} - <&-"
    done = subprocess.run(["sh", "-c", script], cwd=folder, capture_output=True, check=False)
    assert done.returncode in (65, 69)
    assert done.stderr.startswith(b"pyvgpu: standard input: ")
    assert b"is closed" in done.stderr


def test_process_substitution_is_read_once(folder):
    script = f"exec {PROGRAM} replay <(cat trace.json.gz) --vcore 50 --json"
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate-schedule", "-", "--cluster", "-"),
        ("replay", "-", "--vcore", "60", "--beside", "-", "--vcore", "40"),
    ],
    ids=" ".join,
)
def test_standard_input_is_one_of_the_inputs_only(arguments, folder):
    done = call(folder, *arguments)
    assert (done.returncode, done.stdout) == (64, b"")
    assert done.stderr.startswith(b"pyvgpu: -: is given twice")
