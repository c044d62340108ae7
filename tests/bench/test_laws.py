"""The device laws under which `make bench-share` plays its rows."""

import dataclasses
from pathlib import Path

import laws
import pytest

from pyvgpu import errors
from pyvgpu.calibration import calibration_record, machine_values


def test_named_laws_are_as_documented():
    assert laws.named("today").device == laws.simulator.Law()
    slices, events = laws.named("slices").device, laws.named("events").device
    assert (slices.slice_ns, slices.switch_ns) == (2_500_000, 100_000)
    assert (events.event_ns, events.event_late_ns) == (3_000, 1_500)


def test_h100_law_matches_its_record():
    folder = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu"
    seen = machine_values.values(
        calibration_record.load(folder / "2026-11-26-nvidia-h100-80gb-hbm3.json")
    )
    law = dataclasses.asdict(laws.named("h100").device)
    for key in ("slice_ns", "switch_ns", "launch_ns", "event_ns", "event_late_ns", "queue_depth"):
        assert law[key] == pytest.approx(seen[key].value, rel=0.001), key


def test_seed_gives_the_same_law_each_time():
    assert laws.draw(7) == laws.draw(7)
    assert laws.draw(7) != laws.draw(8)


@pytest.mark.parametrize("seed", range(200))
def test_drawn_law_is_within_its_limits(seed):
    law = laws.draw(seed)
    assert 500_000 <= law.device.slice_ns <= 5_000_000
    assert 0 <= law.device.switch_ns <= 200_000
    assert 0 <= law.device.event_late_ns <= law.device.event_ns <= 5_000
    assert 256 <= law.device.queue_depth <= 4096
    assert all(-5 <= each <= 0 for each in law.priorities)


def test_printed_law_has_its_seed():
    assert str(laws.draw(7)).startswith("drawn from seed 7: slice_ns=")
    assert str(laws.TODAY).startswith("today: slice_ns=1000000, switch_ns=0")


def test_unknown_law_is_refused_with_the_known_ones():
    with pytest.raises(errors.UsageError, match="law 'slice': must be today, slices, events,"):
        laws.named("slice")


def test_context_switches_reduce_a_shared_devices_capacity():
    assert laws.SLICES.capacity(1) == 100
    assert laws.SLICES.capacity(2) == pytest.approx(96.15, abs=0.01)
    assert laws.TODAY.capacity(8) == 100


def test_drawn_law_has_three_points_and_the_others_one():
    assert [laws.named(name).points for name in laws.NAMES] == [1, 1, 1, 1, 3]
