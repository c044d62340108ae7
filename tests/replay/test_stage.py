"""Replay of plans on the simulated device, with the recorded timing."""

import pytest

from pyvgpu.replay import plan, playback
from pyvgpu.replay.trace import Trace, TraceRecord
from pyvgpu.simulation import simulator

US, MS = 1_000, 1_000_000


@pytest.fixture(name="play")
def fixture_play(tmp_path):
    def play(*records, vcore=None, times=1):
        trace = Trace("tried", (7, 20), ["one"], records, MS)
        part = playback.PlayedProgram(plan.compile_trace(trace), vcore, times)
        (played,) = playback.play([part], tmp_path, simulator.Law(), 100 * US)
        return played

    return play


def launch(start, ns, *, thread=0, stream=0, **more):
    return TraceRecord(
        thread, start, 2 * US, "launch", stream, start + 5 * US, ns, 0, (8, 1, 1), **more
    )


def near(ns):
    return pytest.approx(ns, abs=50 * US)


def test_concurrent_streams_count_as_busy_once(play):
    played = play(launch(0, 5 * MS), launch(9 * US, 4 * MS, stream=1))
    assert played.makespan_ns == near(5 * MS)
    assert played.busy_ns == near(5 * MS)


def test_dependent_activity_starts_after_its_predecessor(play):
    played = play(launch(0, 5 * MS), launch(9 * US, 4 * MS, stream=1, after=0))
    assert played.makespan_ns == near(9 * MS)


def test_copies_take_their_recorded_time_and_block_as_recorded(play):
    copy = TraceRecord(0, 0, 3 * MS, "d2h", 0, 5 * US, 3 * MS)
    assert play(copy, launch(3 * MS + 9 * US, MS)).makespan_ns == near(4 * MS)
    copy.duration = 2 * US
    assert play(copy, launch(9 * US, MS, stream=1)).makespan_ns == near(3 * MS)


def test_graph_is_one_launch_of_all_its_kernels(play):
    nodes = (TraceRecord(None, 0, 0, "node", 0, 9 * US, MS, 0, (4, 1, 1), ref=0) for _ in range(5))
    played = play(TraceRecord(0, 0, 2 * US, "graph"), *nodes)
    assert (played.launches, played.makespan_ns) == (1, near(5 * MS))


def test_thread_is_delayed_with_the_one_it_follows(play):
    """However long the first thread's waits take."""
    wait = TraceRecord(0, 9 * US, 2 * US, "stream_sync", 0)
    played = play(launch(0, 5 * MS), wait, launch(2 * MS, MS, thread=1))
    assert played.makespan_ns == near(8 * MS)
    assert played.disorder == 0


def test_every_kind_of_call_can_be_played(play):
    kinds = ("malloc", "malloc_host", "event_record", "event_wait", "event_query", "event_sync",
             "stream_sync", "device_sync", "free", "free")  # fmt: skip
    calls = [TraceRecord(0, at * US, US, kind) for at, kind in enumerate(kinds)]
    copies = [
        TraceRecord(0, 90 * US, US, kind, 0, 95 * US, US)
        for kind in ("h2d", "d2d", "memcpy", "memset")
    ]
    assert play(*calls, *copies).makespan_ns < MS


def test_rounds_run_one_after_another(play):
    played = play(launch(0, MS), launch(9 * US, MS, thread=1, stream=1), times=4)
    assert (played.launches, played.disorder, played.busy_ns) == (8, 0, near(4 * MS))


def test_vcore_is_enforced_and_the_clock_waits_for_all(play):
    records = [launch(at * 10 * US, 500 * US) for at in range(400)]
    played = play(*records, vcore=50)
    assert 100 * played.busy_ns / played.makespan_ns == pytest.approx(50, abs=5)
    assert played.forced == 0
