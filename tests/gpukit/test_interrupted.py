"""Runs that are ended early: nothing goes on, the record says so, and the next run goes on."""

import os
import signal

import pytest
import waiting
from kit import logs, main, report
from kit.stages import suspend

WAITS = """
import subprocess, time
def run(report):
    report.fact("left", subprocess.Popen(["sleep", "1000"]).pid)
    time.sleep(1000)
"""
GOOD = "def run(report):\n    report.fact('good', 1)\n"
WAITING, DONE = (60, 1, WAITS), (60, 1, GOOD)


@pytest.fixture
def started(kit, simulated):
    """Return a function that starts a run, and returns it with a process that its stage began."""
    options, environment = simulated

    def start(*more):
        process = kit.start(*options, *more, **environment)
        lines = kit.out / "lines.jsonl"
        waiting.wait_until(lambda: process.poll() is not None or report.read_lines(lines))
        ((_, fact),) = report.read_lines(lines)
        return process, fact["value"]

    return start


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_stage_and_the_record_says_so(kit, simulated, started, number):
    options, environment = simulated
    kit.put(waits=WAITING, good=DONE)
    process, left = started()
    os.kill(process.pid, number)
    _, said = process.communicate()
    name = signal.Signals(number).name
    assert process.returncode == 128 + number
    assert said == f"run: ended by {name}; go on with --resume\n"
    waiting.wait_until(lambda: not suspend.is_alive(left))
    assert sorted(path.name for path in kit.out.iterdir()) == ["log.txt", "record.json"]
    entry = kit.stages()["waits"]
    assert entry["state"] == "not reached"
    assert entry["reason"] == f"the run ended while this stage ran, ended by {name}"
    assert entry["facts"] == [{"name": "left", "value": left}]
    kit.put(waits=DONE, good=DONE)
    assert kit.run("--resume", *options, **environment).returncode == 0
    assert {entry["state"] for entry in kit.stages().values()} == {"done"}


def test_a_runner_that_is_killed_leaves_no_process_and_a_record(kit, simulated, started):
    options, environment = simulated
    kit.put(good=DONE)
    kit.run(*options, **environment)
    kit.put(good=WAITING, waits=WAITING)
    process, left = started("--only", "waits")
    process.kill()
    process.communicate()
    waiting.wait_until(lambda: not suspend.is_alive(left))
    stages = kit.stages()
    assert stages["good"]["state"] == "done"
    assert (stages["waits"]["state"], stages["waits"]["reason"]) == ("not reached", main.ENDED)
    kit.put(good=WAITING, waits=DONE)
    assert kit.run("--resume", *options, **environment).returncode == 0
    assert kit.stages()["waits"]["state"] == "done"


def test_a_stage_that_is_run_again_keeps_its_results_until_it_is_done(kit, simulated, started):
    options, environment = simulated
    kit.put(good=DONE)
    kit.run(*options, **environment)
    before = kit.stages()
    kit.put(good=WAITING)
    process, _ = started("--only", "good")
    process.terminate()
    process.communicate()
    assert kit.stages() == before


def test_a_reader_that_is_gone_ends_no_run(kit, simulated):
    options, environment = simulated
    kit.put(good=DONE, more=DONE)
    process = kit.start(*options, **environment)
    process.stdout.close()
    process.stdout = None
    _, said = process.communicate()
    assert (process.returncode, said) == (0, "")
    assert {entry["state"] for entry in kit.stages().values()} == {"done"}


def test_minutes_begin_when_the_command_does(kit, simulated):
    options, environment = simulated
    kit.put(good=(60, 30, GOOD))
    done = kit.run("--minutes", "10", *options, **environment, PYVGPU_KIT_SPENT="590")
    assert done.returncode == 75
    assert kit.stages()["good"]["state"] == "not reached"
    assert kit.run("--minutes", "10", "--resume", *options, **environment).returncode == 0


def test_a_stage_that_prints_without_end_is_killed(kit, simulated):
    options, environment = simulated
    kit.set("logs", "MOST_WHILE_RUNNING", 1 << 20)
    kit.put(
        prints=(60, 1, "import time\ndef run(report):\n    print('x' * (2 << 20), flush=True)\n"
                       "    time.sleep(1000)\n"),
        good=DONE,
    )  # fmt: skip
    assert kit.run(*options, **environment).returncode == 1
    stages = kit.stages()
    assert stages["prints"]["state"] == "failed"
    assert stages["prints"]["reason"].startswith("killed: it printed more than 1 MiB; xxx")
    assert stages["good"]["state"] == "done"
    assert (kit.out / "log.txt").stat().st_size < 1 << 20


def test_of_a_long_log_both_ends_are_kept(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("before\n" + "begin " + 1000 * "x" + " end")
    logs.shorten(path, 7, 20)
    short = "before\nbegin xxxx\n--- 990 bytes are left out\nxxxxxx end"
    assert path.read_text() == short
    logs.shorten(path, 7, len(short) - 7)
    assert path.read_text() == short
    path.unlink()
    logs.make_room(path)
    assert not path.exists()


def test_a_stage_that_reports_without_end_is_cut(tmp_path):
    lines = report.Report(tmp_path / "lines.jsonl")
    for number in range(3000):
        lines.fact(f"fact {number}", 100 * "x")
    found = report.read_lines(tmp_path / "lines.jsonl")
    assert len(found) < 3000
    assert found[-1] == (
        "missing",
        {"name": "further lines", "reason": "the stage wrote more than 200000 characters"},
    )
