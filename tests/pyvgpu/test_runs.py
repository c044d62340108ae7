"""Memory and time of runs, read from the registry and compared over time."""

import dataclasses
import os

import pytest

from pyvgpu import names, quota, region
from pyvgpu._region import ffi
from pyvgpu.cli import views
from pyvgpu.device import Device
from pyvgpu.machine import holders, reservations
from pyvgpu.run import runs

GIB, SECOND = 1 << 30, 10**9
UUID = "GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
FIRST = Device(UUID, 0, "H100", 80 * GIB, 512 << 20)
OTHER = dataclasses.replace(FIRST, uuid=UUID.replace("0f1e", "1f1e"), index=1, name="T4")


@pytest.fixture
def registries(tmp_path):
    return reservations.Registries(tmp_path / "root", tmp_path / "all")


@pytest.fixture
def reserve(registries):
    """Return a function that makes reservations, which end with the test."""
    made = []

    def make(name, vcore=30, device=FIRST, **more):
        request = holders.RunRequest(quota.Quota(vcore, 4 * GIB, **more), (device,), "999.1")
        made.append(
            registries.reserve(request, holders.Holder(name, "/usr/bin/train", tree="/no"))
        )
        return made[-1]

    yield make
    for each in made:
        os.close(each.quota)


def used(made, **counters):
    """Write *counters* of the device into the run's usage file."""
    record = ffi.new("struct usage_compute *", counters)
    with (made.folder / names.USAGE_FILE).open("r+b") as file:
        file.seek(ffi.offsetof("struct usage_file", "compute"))
        file.write(bytes(ffi.buffer(record)))


def sample(registries, seconds):
    return [dataclasses.replace(run, seconds=seconds) for run in runs.sample(registries)]


def shares(devices):
    return {part.name: part.share for device in devices for part in device.parts}


def test_share_is_the_time_used_between_two_samples(registries, reserve):
    first, second = reserve("first"), reserve("second", 70)
    used(first, busy_ns=5 * SECOND)
    watch = runs.RunWatch()
    assert shares(watch.see(sample(registries, 100.0))) == {"first": None, "second": None}
    used(first, busy_ns=5 * SECOND + SECOND * 3 // 5, waited_ns=SECOND)
    used(second, busy_ns=SECOND)
    devices = watch.see(sample(registries, 102.0))
    assert shares(devices) == {"first": 0.3, "second": 0.5}
    assert devices[0].share == 0.8
    assert devices[0].parts[0].waited == 0.5
    assert shares(watch.see(sample(registries, 103.0))) == {"first": 0.0, "second": 0.0}


def test_history_is_bounded_and_ends_with_the_run(registries, reserve):
    made = reserve("first")
    watch = runs.RunWatch()
    for second in range(runs.HISTORY + 10):
        used(made, busy_ns=second * SECOND // 4)
        (device,) = watch.see(sample(registries, float(second)))
    assert device.parts[0].history == (0.25,) * runs.HISTORY
    assert watch.see([]) == ()
    assert watch.see(sample(registries, 1000.0))[0].parts[0].history == ()


def test_share_of_a_run_without_a_time_limit_is_unknown(registries, reserve):
    reserve("first", None)
    watch = runs.RunWatch()
    watch.see(sample(registries, 1.0))
    (device,) = watch.see(sample(registries, 2.0))
    assert (device.share, device.parts[0].share, device.parts[0].requested_vcore) == (
        None,
        None,
        0,
    )


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        pytest.param(SECOND, 0, 0.0, id="counts back"),
        pytest.param(0, 2**64 - 1, 1.0, id="more than there is"),
    ],
)
def test_false_counters_still_give_a_valid_share(registries, reserve, before, after, share):
    made = reserve("first")
    watch = runs.RunWatch()
    used(made, busy_ns=before)
    watch.see(sample(registries, 1.0))
    used(made, busy_ns=after)
    assert shares(watch.see(sample(registries, 2.0))) == {"first": share}


def test_devices_list_the_usage_of_their_runs(registries, reserve):
    reserve("first"), reserve("second", 50), reserve("third", 20, OTHER)
    h100, t4 = runs.RunWatch().see(sample(registries, 1.0))
    assert (h100.name, h100.reserved_vcore, h100.reserved_bytes) == ("H100", 80, 8 * GIB)
    assert (t4.name, t4.reserved_vcore, t4.memory_bytes) == ("T4", 20, 80 * GIB)
    assert [part.name for part in h100.parts] == ["first", "second"]


@pytest.mark.parametrize("damage", ["cut", "link", "gone", "foreign"])
def test_a_run_with_an_unreadable_usage_file_is_shown(registries, reserve, damage):
    made = reserve("first")
    (run,) = runs.sample(registries)
    path = made.folder / names.USAGE_FILE
    if damage == "cut":
        os.truncate(path, 100)
    elif damage == "link":
        path.rename(made.folder / "elsewhere")
        path.symlink_to(made.folder / "elsewhere")
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(bytes(path.stat().st_size))
    ((part,),) = [x.parts for x in runs.RunWatch().see([runs._read(run.reservation)])]
    assert (part.name, part.held, part.processes, part.share) == ("first", None, (), None)


def test_compute_of_a_short_file_is_an_error(registries, reserve):
    made = reserve("first")
    file = os.open(made.folder / names.USAGE_FILE, os.O_RDONLY)
    assert region.read_compute(file, 2) == (region.Compute(0, 0, 0),) * 2
    os.close(file)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        pytest.param(-5, "0s", id="a clock was set"),
        pytest.param(59.9, "59s", id="seconds"),
        pytest.param(60, "1m0s", id="a minute"),
        pytest.param(3700, "1h1m", id="hours"),
        pytest.param(90000, "1d1h", id="days"),
    ],
)
def test_age_has_two_units(seconds, text):
    assert views.age(seconds) == text


def test_history_is_drawn_from_the_right():
    assert views.spark((0.0, 0.01, 0.5, 0.99, 1.0), 8) == "    ▁▅██"
    assert views.spark((0.3,) * 20, 4) == "▃▃▃▃"


@pytest.mark.parametrize(
    ("part", "drawn"), [(0, "░░░░"), (0.5, "██░░"), (1, "████"), (7, "████"), (-1, "░░░░")]
)
def test_bar_stays_within_its_width(part, drawn):
    assert views.bar(part, 4) == drawn
