"""The stage of `make bench-share` without the shim: device sharing and the virtual clock."""

import subprocess

import built
import laws
import pytest
import scene_clock
import scene_runs
import scores
from scene_runs import Scene, Tenant

MS = 1_000_000
SECOND = 1000 * MS


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def shares(trace, begin_s, end_s):
    return [
        scores.of(trace, tenant).share(begin_s * SECOND, end_s * SECOND)
        for tenant in range(len(trace.had_ns))
    ]


@pytest.mark.parametrize("kind", ["async", "graph", "streams", "mixed"])
def test_lone_tenant_that_never_waits_has_the_whole_device(cache, kind):
    trace = scene_runs.play(Scene((Tenant(None, kind, MS),), 0.5), cache)
    assert shares(trace, 0.1, 0.5) == [pytest.approx(100, abs=1)]


def test_busy_processes_have_equal_shares(cache):
    pair = (Tenant(None, "async", MS // 4), Tenant(None, "async", 8 * MS, processes=3))
    trace = scene_runs.play(Scene(pair, 0.5), cache)
    assert shares(trace, 0.1, 0.5) == [pytest.approx(25, abs=2), pytest.approx(75, abs=2)]


def test_tenant_that_pauses_half_of_the_time_has_half(cache):
    trace = scene_runs.play(Scene((Tenant(None, "bursty", MS),), 0.6), cache)
    assert shares(trace, 0.1, 0.6) == [pytest.approx(50, abs=2)]


def test_tenants_come_and_go(cache):
    tenants = (Tenant(None, "async", MS), Tenant(None, "sync", MS, begin_s=0.2, end_s=0.4))
    trace = scene_runs.play(Scene(tenants, 0.6), cache)
    assert shares(trace, 0.1, 0.2) == [pytest.approx(100, abs=1), pytest.approx(0, abs=0.1)]
    assert shares(trace, 0.3, 0.4) == [pytest.approx(50, abs=5), pytest.approx(50, abs=5)]
    assert shares(trace, 0.5, 0.6) == [pytest.approx(100, abs=1), pytest.approx(0, abs=0.1)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["heldbyhost", "heldbyevent", "heldbyvalue"])
def test_stream_that_waits_for_the_host_does_not_delay_another_one(cache, kind):
    trace = scene_runs.play(Scene((Tenant(None, kind, MS, more=(30,)),), 0.2), cache)
    ((said,),) = trace.programs
    assert said["returned"] == 1
    assert 1e9 * said["launches"] / said["elapsed_ns"] == pytest.approx(1000, rel=0.01)


def test_kernels_of_two_streams_run_together(cache):
    trace = scene_runs.play(Scene((Tenant(None, "pair", MS, more=(10 * MS,)),), 0.2), cache)
    ((said,),) = trace.programs
    assert 1e9 * said["launches"] / said["elapsed_ns"] == pytest.approx(1000, rel=0.01)
    assert said["long_launches"] == pytest.approx(20, abs=1)


def test_time_of_a_child_counts_for_its_tenant(cache):
    trace = scene_runs.play(Scene((Tenant(None, "brief", 10 * MS),), 2, witness_ns=MS), cache)
    assert trace.had_ns[0][-1] == pytest.approx(80 * MS, abs=8 * MS)


def test_device_of_a_scene_has_its_law(cache):
    pair = (Tenant(None, "async", MS),) * 2
    trace = scene_runs.play(Scene(pair, 0.5, law=laws.SLICES), cache)
    assert sum(shares(trace, 0.1, 0.5)) == pytest.approx(laws.SLICES.capacity(2), abs=0.5)


@pytest.mark.parametrize("name", ["plain", "two words", "a:b"])
def test_clock_is_loaded_from_a_checkout_at_any_path(tmp_path, monkeypatch, name):
    (tmp_path / name).symlink_to(built.BUILD)
    monkeypatch.setattr(built, "BUILD", tmp_path / name)
    clock = scene_clock.Clock(tmp_path / "clock")
    listed = ["cat", "/proc/self/maps"]
    ran = subprocess.run(listed, env=clock.environment, capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    assert "/libvirtualclock.so\n" in ran.stdout


def test_idle_hour_is_skipped(cache):
    tenants = (Tenant(None, "idle", 1), Tenant(None, "sync", MS, begin_s=3599.9))
    trace = scene_runs.play(Scene(tenants, 3600, witness_ns=SECOND), cache)
    assert trace.at_ns[-1] >= 3600 * SECOND
    assert trace.had_ns[0][-1] == 0 < trace.had_ns[1][-1]
