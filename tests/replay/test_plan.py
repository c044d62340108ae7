"""Compilation of a recorded trace into a replay plan."""

import pytest

from pyvgpu.replay import plan
from pyvgpu.replay.program import BLOCKS, GAP_OF_FIRST, CallKind
from pyvgpu.replay.trace import Trace, TraceRecord

US, MS = 1_000, 1_000_000


def program(*records, streams=(7, 20, 21)):
    trace = Trace("tried", streams, ["one", "other"], records, 100 * MS)
    return plan.compile_trace(trace)


def launch(start, *, thread=0, stream=0, device=None, ns=10 * US, kernel=0, **more):
    begin = start + 5 * US if device is None else device
    return TraceRecord(
        thread, start, 2 * US, "launch", stream, begin, ns, kernel, (8, 1, 1), **more
    )


def call(kind, start, duration=2 * US, *, thread=0, **more):
    return TraceRecord(thread, start, duration, kind, **more)


def test_gap_of_a_call_starts_at_the_end_of_the_previous_call():
    (calls,) = program(launch(3 * US), launch(9 * US), launch(10 * US)).threads
    assert [each.gap_ns for each in calls] == [3 * US, 4 * US, 0]


def test_kernel_has_its_recorded_shape_and_length():
    shape = {"block": (128, 2, 1), "shared": 99}
    made = program(launch(0, ns=7, kernel=1), launch(9 * US, **shape))
    first, second = made.threads[0]
    assert (first.ns, first.shape.kernel, first.shape.grid) == (7, 0, (8, 1, 1))
    assert (second.shape.kernel, second.shape.block) == (1, (128, 2, 1))
    assert second.shape.shared_bytes == 99
    assert made.kernels == [0, 99]


@pytest.mark.parametrize(
    ("given", "played"),
    [
        pytest.param((0, 1, 1), (1, 1, 1), id="nothing"),
        pytest.param((70_000, 70_000, 1), (70_000, 65_535, 1), id="too wide"),
        pytest.param(None, (1, 1, 1), id="not recorded"),
    ],
)
def test_grid_is_clamped_to_launchable_sizes(given, played):
    record = launch(0)
    record.grid = given
    assert program(record).threads[0][0].shape.grid == played


def test_block_with_too_many_threads_is_shrunk():
    assert program(launch(0, block=(1024, 2, 1))).threads[0][0].shape.block == (1024, 1, 1)


def test_default_stream_comes_first():
    (calls,) = program(launch(0, stream=1), launch(9 * US), launch(20 * US, stream=2)).threads
    assert [each.stream for each in calls] == [1, 0, 2]


def test_work_from_before_the_recording_is_left_out():
    orphan = TraceRecord(None, 0, 0, "orphan", 0, 0, 5 * US)
    assert program(orphan, launch(9 * US)).threads[0][0].order == 1


def test_wait_without_a_stream_is_for_the_stream_that_ended_last():
    records = (
        launch(0, ns=MS),
        launch(3 * US, stream=1, ns=50 * MS),
        launch(6 * US, stream=2, ns=2 * MS),
        call("stream_sync", 10 * US, 2 * MS),
    )
    last = program(*records).threads[0][-1]
    assert (last.kind, last.stream) == (CallKind.STREAM_SYNC, 2)


def test_wait_that_ended_before_all_work_waits_for_nothing():
    last = program(launch(0, ns=50 * MS), call("stream_sync", 10 * US)).threads[0][-1]
    assert (last.kind, last.what) == (CallKind.EVENT_SYNC, plan.DONE)


def test_event_wait_is_for_the_event_that_was_complete_then():
    records = (
        launch(0, ns=MS),
        call("event_record", 10 * US),
        launch(20 * US, ns=50 * MS),
        call("event_record", 30 * US),
        call("event_sync", 40 * US, MS),
    )
    calls = program(*records).threads[0]
    assert calls[-1].what == calls[1].what != calls[3].what


def test_activity_after_another_streams_waits_for_an_event():
    records = (launch(0, ns=MS), launch(9 * US, stream=1, device=2 * MS, after=0))
    calls = program(*records).threads[0]
    kinds = [CallKind.LAUNCH, CallKind.EVENT_RECORD, CallKind.EVENT_WAIT, CallKind.LAUNCH]
    assert [each.kind for each in calls] == kinds
    assert (calls[1].stream, calls[2].stream) == (0, 1)
    assert calls[1].what == calls[2].what
    assert [each.gap_ns for each in calls] == [0, 0, 7 * US, 0]


def test_thread_waits_for_the_previous_user_of_its_stream():
    records = (launch(0), launch(20 * US, thread=1), launch(30 * US, thread=1), launch(90 * US))
    first, second = program(*records).threads
    assert (second[0].first, second[0].flags, second[0].gap_ns) == ((0, 1), GAP_OF_FIRST, 18 * US)
    assert (second[1].first, second[1].gap_ns) == (None, 8 * US)
    assert (first[1].first, first[1].gap_ns) == ((1, 2), 58 * US)


def test_threads_with_separate_streams_do_not_wait_for_each_other():
    records = (launch(0), launch(20 * US, thread=1, stream=1), launch(90 * US))
    assert [each.first for calls in program(*records).threads for each in calls] == [None] * 3


@pytest.mark.parametrize(
    ("kind", "duration", "blocks"),
    [
        pytest.param("d2h", 90 * US, True, id="out, until it is done"),
        pytest.param("d2h", 2 * US, False, id="out, over before"),
        pytest.param("h2d", 200 * US, True, id="in, for long"),
        pytest.param("h2d", 90 * US, False, id="in"),
        pytest.param("d2d", 200 * US, False, id="on the device"),
    ],
)
def test_copy_blocks_if_its_recorded_call_did(kind, duration, blocks):
    copy = TraceRecord(0, 0, duration, kind, 0, 20 * US, 60 * US)
    assert bool(program(copy).threads[0][0].flags & BLOCKS) is blocks


def graph(number, start, *lengths):
    yield call("graph", start)
    for length in lengths:
        yield TraceRecord(
            None, start, 0, "node", 0, start + 9 * US, length, 0, (4, 1, 1), ref=number
        )


def test_similar_graphs_are_merged_with_average_durations():
    made = program(*graph(0, 0, 10, 20), *graph(3, MS, 30, 20))
    assert [each.what for each in made.threads[0]] == [0, 0]
    assert [(node.ns, node.after) for node in made.graphs[0]] == [(20, ()), (20, (0,))]


def test_packed_program_has_the_file_layout():
    packed = program(*graph(0, 0, 10, 20), launch(MS)).pack()
    threads, graphs, calls, nodes, kernels = 1, 1, 2, 2, 1
    assert len(packed) == 40 + 8 * (threads + graphs) + 88 * calls + 48 * nodes + 4 * kernels
