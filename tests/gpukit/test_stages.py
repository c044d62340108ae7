"""Stages measure the configured behaviour of a simulated machine, and leave nothing behind."""

import pathlib

import pytest
from kit import cuda, report, stages, watch
from kit.stages import facts, offers


def figure(entry, name):
    (value,) = [one["value"] for one in entry["figures"] if one["name"] == name]
    return value


def fact(entry, name):
    (value,) = [one["value"] for one in entry["facts"] if one["name"] == name]
    return value


def test_blocks_of_small_allocations_are_found(run_stage):
    name = "512 bytes that survive in a block of 2 MiB"
    assert figure(run_stage("memory"), name) == 512
    assert figure(run_stage("memory", small_blocks=True), name) == 2 << 20


def test_context_memory_is_measured(run_stage):
    entry = run_stage("contexts", second_context_percent=25, green_context_percent=10)
    primary = figure(entry, "lazy loading: 1 primary, by NVML")
    assert figure(entry, "many contexts: 2 second, by NVML") == primary // 4
    assert figure(entry, "lazy loading: 10 green, by cuMemGetInfo") == primary // 10
    assert "lazy loading: 8 cublas" in [one["name"] for one in entry["missing"]]


@pytest.mark.slow
def test_memory_that_a_forked_child_keeps_is_found(run_stage):
    name = "memory of a killed process with a forked child"
    assert fact(run_stage("fork", fork_keeps=False), name).startswith("free after")
    entry = run_stage("fork")
    assert fact(entry, name) == "stays while the child lives"
    assert figure(entry, "end of the child until memory of a killed process is free") > 0


@pytest.mark.slow
def test_nvml_delay_is_measured(run_stage):
    entry = run_stage("nvml", nvml_memory_late_ns=300_000_000)
    assert figure(entry, "allocation until memory in use shows it") >= 290
    assert figure(entry, "free until memory in use shows it") >= 290


@pytest.mark.slow
@pytest.mark.parametrize("name", ["capture", "descriptors", "offers"])
def test_a_stage_ends_well_and_names_what_is_missing(run_stage, name):
    entry = run_stage(name)
    assert entry["state"] == "done"
    assert entry["facts"]
    assert all(one["reason"] for one in entry["missing"])


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016", "gVisor"),
        ("4.19.0-gvisor #1 SMP Sun Jan 10 15:06:54 PST 2016", "gVisor"),
        ("4.4.0-210-generic #242-Ubuntu SMP Fri Apr 16 09:57:56 UTC 2021", "none seen"),
        ("6.18.44-fc-v657-gpu #1 SMP PREEMPT_DYNAMIC", "none seen"),
    ],
)
def test_a_sandbox_is_known_by_the_kernel_that_it_names(version, name):
    assert facts.sandbox(version) == name


def test_the_readme_lists_every_stage():
    text = (pathlib.Path(cuda.HERE).parent / "README.txt").read_text()
    listed = text.split("stage        measures\n")[1].split("\n\n")[0].splitlines()
    named = [line.split()[0] for line in listed if not line.startswith(" ")]
    assert named == [stage.name for stage in stages.STAGES]


class Driver:
    """A driver that records the steps of a checkpoint, one of which fails."""

    def __init__(self, failing=None):
        self.steps, self._failing = [], failing

    def __getattr__(self, name):
        step = name.removeprefix("cuCheckpointProcess")

        def call(pid, _):
            if step != "GetState":
                self.steps.append((step, pid))
            if step == self._failing:
                raise cuda.CudaError(name, 801)

        return call


class Seen:
    def used(self):
        return 0


def test_a_process_that_was_locked_is_unlocked_whatever_fails(tmp_path):
    every = ["Lock", "Checkpoint", "Restore", "Unlock"]
    for failing, taken in (
        (None, every),
        ("Checkpoint", ["Lock", "Checkpoint", "Unlock"]),
        ("Restore", every),
        ("Lock", ["Lock"]),
    ):
        driver, lines = Driver(failing), report.Report(tmp_path / f"{failing}")
        checkpoint = offers.Checkpoint(driver, 7)
        watch.attempt(lines, "checkpoint", lambda: offers.steps(lines, checkpoint, Seen()))  # noqa: B023
        assert driver.steps == [(step, 7) for step in taken]
        missing = [fields for kind, fields in report.read_lines(tmp_path / f"{failing}")
                   if kind == "missing"]  # fmt: skip
        assert bool(missing) == (failing is not None)


FORBIDDEN = {
    *("query an event of another stream", "query another stream"),
    *("synchronise another stream", "allocate memory"),
}
IS_CAPTURING = {  # of a stream, while a non-blocking one captures, and while a blocking one does
    "the legacy stream": ("0, state 0", 906),
    "the null stream": ("0, state 0", 906),
    "another stream": ("0, state 0", "0, state 0"),
    "the captured stream": ("0, state 1", "0, state 1"),
}


def test_captures_forbid_what_they_forbid_on_an_h100(run_stage):
    """With driver 580.159; in all modes, with and without an exchange of the thread's mode."""
    seen = {one["name"]: one["value"] for one in run_stage("capture")["facts"]}
    assert len(seen) == 156
    for name, value in seen.items():
        where, _, call = name.rpartition(": ")
        result, ends = 0, 0
        if call.startswith("IsCapturing of "):
            both = IS_CAPTURING[call.removeprefix("IsCapturing of ")]
            result = both["non-blocking" not in where]
        elif call in FORBIDDEN and "in GLOBAL, another thread" in where and "RELAXED" not in where:
            result, ends = 900, 901
        assert (name, value) == (name, {"result": result, "the capture ends with": ends})
