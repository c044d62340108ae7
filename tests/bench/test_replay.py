"""The replay benchmark: ideal times, pairs, repeats and errors."""

import laws
import pytest
import replay

from pyvgpu import errors
from pyvgpu.replay import plan
from pyvgpu.replay.trace import Trace, TraceRecord

US, MS = 1_000, 1_000_000


@pytest.fixture(name="piece")
def fixture_piece():
    """A program that keeps the device busy half of the time."""
    records = [
        TraceRecord(0, at * MS, 2 * US, "launch", 0, at * MS + 5 * US, MS // 2, 0)
        for at in range(200)
    ]
    trace = Trace("half", (7,), ["one"], records, 200 * MS)
    return replay.Piece(trace, plan.compile_trace(trace))


@pytest.fixture(name="player")
def fixture_player(tmp_path):
    return replay.Player(laws.TODAY, tmp_path)


def test_ideal_time_is_that_of_the_bare_driver_or_of_the_share(player, piece):
    (free,) = replay.alone(player, piece, None, 1)
    (quarter,) = replay.alone(player, piece, 25, 1)
    assert free["bare_busy"] == pytest.approx(50, abs=1)
    assert free["ideal_ms"] == pytest.approx(200, abs=1)
    assert quarter["ideal_ms"] == pytest.approx(400, rel=0.01)
    assert quarter["held"] <= 27
    assert (free["forced"], free["disorder"], free["faults"]) == (0, 0, [])


def test_pair_is_evaluated_while_both_run(player, piece):
    left, right = replay.pair(player, (piece, piece), (30, 70), 0.2)
    assert (left["vcore"], left["beside"], right["vcore"]) == (30, "half", 70)
    assert left["held"] <= 32


def test_short_trace_is_repeated(player, piece):
    assert [player.repeats(piece, seconds) for seconds in (0, 0.19, 0.5)] == [1, 1, 3]


def test_median_run_counts_and_extremes_are_recorded():
    runs = [[{"to_ideal": value, "run": number}] for number, value in enumerate((1.5, 1.1, 1.2))]
    (row,) = replay.middle(runs)
    assert (row["run"], row["least_to_ideal"], row["most_to_ideal"]) == (2, 1.1, 1.5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "trace 'nothing': must be a file, the name of one in"),
        ("pattern:nothing", "pattern 'nothing': must be one of forward"),
        ("pattern:decode:x", "seed 'x': must be a whole number, such as 1"),
    ],
)
def test_missing_trace_is_named(name, message):
    with pytest.raises(errors.UsageError, match=message):
        replay.open_piece(name)


def test_file_other_than_a_trace_is_named(tmp_path):
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(b"cut")
    with pytest.raises(errors.DataError, match="it is no whole 'launch-trace 1'"):
        replay.open_piece(str(path))
