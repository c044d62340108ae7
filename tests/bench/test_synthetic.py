"""Synthetic launch patterns reproduce the figures of their recordings, and can be replayed."""

import functools

import pytest
import synthetic

from pyvgpu import errors
from pyvgpu.replay import plan
from pyvgpu.replay.program import CallKind


@functools.cache
def made(name):
    return synthetic.make(name)


def near(value, part):
    return pytest.approx(value, rel=part)


# From the recordings: launches per second, kernel length quantiles 0.5, 0.9 and 0.99 in us,
# overlap and busy time in percent.
RECORDED = [
    pytest.param("forward", 3575, (12.9, 64.6, 2181), 0, 47, id="forward"),
    pytest.param("training", 18438, (9, 41, 572), 26.8, 84, id="training"),
    pytest.param("decode", 52, (6.2, 136, 165), 0, 56, id="decode"),
    pytest.param("prefill", 534, (133, 2657, 6813), 0, 50, id="prefill"),
    pytest.param("autotuning", 1779, (5, 380, 934), 0.8, 19, id="autotuning"),
    pytest.param("allocating", 696, (52, 341, 2247), 0, 11, id="allocating"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rate", "us", "overlap", "busy"), RECORDED)
def test_pattern_reproduces_its_recording(name, rate, us, overlap, busy):
    pattern = next(each for each in synthetic.PATTERNS if each.name == name)
    found = synthetic.measure(made(name))
    assert found.ms == near(pattern.ms, 0.02)
    assert found.kernels == near(pattern.kernels, 0.01)
    assert found.launches_per_s == near(rate, 0.05)
    assert found.us == tuple(near(each, 0.1) for each in us)
    assert found.new == near(100 * pattern.shapes / pattern.kernels, 0.05)
    assert found.streams == pattern.streams
    assert found.overlap == pytest.approx(overlap, abs=8)
    assert found.busy == near(busy, 0.2)


@pytest.mark.slow
def test_seed_determines_the_trace():
    assert synthetic.make("decode", 1) == synthetic.make("decode", 1)
    assert synthetic.make("decode", 1) != synthetic.make("decode", 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", synthetic.names())
def test_all_work_of_a_pattern_is_played(name):
    trace = made(name)
    program = plan.compile_trace(trace)
    kernels = sum(r.device_duration for r in trace.records if r.kernel is not None)
    calls = [call for thread in program.threads for call in thread]
    launched = sum(call.ns for call in calls if call.kind == CallKind.LAUNCH)
    graphs = [program.graphs[call.what] for call in calls if call.kind == CallKind.GRAPH]
    nodes = sum(node.ns for graph in graphs for node in graph)
    assert launched + nodes == pytest.approx(kernels, rel=1e-6)


def test_unknown_pattern_is_named():
    with pytest.raises(errors.UsageError, match="pattern 'sleeping': must be one of forward"):
        synthetic.make("sleeping")


def test_drawn_patterns_differ_and_depend_on_the_seed_alone():
    drawn = [synthetic.draw(seed) for seed in range(1, 41)]
    assert drawn == [synthetic.draw(seed) for seed in range(1, 41)]
    assert {pattern.streams for pattern in drawn} == {1, 2, 3, 4}
    assert {(pattern.graphs, pattern.ahead) for pattern in drawn} == {
        (False, False),
        (True, False),
        (False, True),
    }
    assert all(pattern.kernels >= pattern.steps * pattern.shapes for pattern in drawn)


@pytest.mark.parametrize("seed", range(1, 6))
def test_drawn_pattern_can_be_replayed(seed):
    trace = synthetic.make(synthetic.DRAWN, seed)
    assert synthetic.measure(trace).busy > 0
    assert plan.compile_trace(trace).threads
