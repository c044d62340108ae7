"""Device time of containers over a minute, from NVML's samples."""

import pytest

from pyvgpu.deviceplugin.audit import device_time

KEY = ("GPU-a", "1")


def above(used, allowed=30, count=61, step=1.0):
    times = device_time.Times()
    for number in range(count):
        times.note(number * step, {KEY: device_time.TimeSample(used(number), allowed)})
    return times.above()


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        pytest.param(lambda _: 100, [device_time.Above(*KEY, 100, 30)], id="all of it"),
        pytest.param(lambda _: 30, [], id="its share"),
        pytest.param(lambda _: 49, [], id="a little more"),
        pytest.param(lambda second: 100 if second % 10 < 3 else 0, [], id="long kernels"),
        pytest.param(
            lambda second: 100 if second % 10 < 6 else 0,
            [device_time.Above(*KEY, 61, 30)],
            id="twice its share, in long kernels",
        ),
    ],
)
def test_container_far_above_its_time_over_a_minute_is_found(used, expected):
    assert above(used) == expected


def test_half_a_minute_is_not_enough():
    assert above(lambda _: 100, count=31) == []


def test_old_burst_leaves_the_window():
    assert above(lambda second: 100 if second < 60 else 0, count=121) == []


def test_limit_at_the_time_of_the_sample_counts():
    times = device_time.Times()
    for second in range(61):
        times.note(second, {KEY: device_time.TimeSample(70, 70 if second < 50 else 10)})
    assert times.above() == []


def test_window_restarts_after_a_gap():
    times = device_time.Times()
    for second in (*range(40), *range(100, 140)):
        times.note(second, {KEY: device_time.TimeSample(100, 30)})
    assert times.above() == []


def test_ended_container_is_dropped():
    times = device_time.Times()
    for second in range(61):
        times.note(second, {KEY: device_time.TimeSample(100, 30)})
    times.note(61, {})
    assert times.above() == []
