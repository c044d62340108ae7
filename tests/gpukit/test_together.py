"""The kit's tenants: the device time that each got, by the device's own clock."""

import json
import os
import subprocess

import pytest
from kit import binaries, cuda, report, shimmed, together

from pyvgpu import shim
from pyvgpu.simulation import simulator

GCC = ("gcc",)


@pytest.fixture
def tenants(tmp_path, monkeypatch):
    """Provide the tenants' program, and a simulated device without the shim."""
    machine = simulator.open_machine("h100", root=tmp_path / "machines")
    program = binaries.build("tenant", GCC, tmp_path)
    monkeypatch.setattr(binaries, "path", lambda _: program)
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (library,) = shim.simulator_libraries().glob(f"{soname[:-2]}.*")
        (tmp_path / soname).symlink_to(library)
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv(cuda.STEPS_VARIABLE, "1.0")  # the simulated device's


@pytest.mark.slow
@pytest.mark.parametrize("kernel_ns", [2_000, 300_000])
def test_a_tenant_notes_its_kernels_over_all_of_the_time(tenants, kernel_ns):
    tenant = together.Tenant(None, kernel_ns)
    (answer,) = together.answers([tenant], 1.0)
    kernels = answer["kernels"]
    assert kernels == sorted(kernels)
    assert {end - begin for begin, end in kernels} == {kernel_ns}
    assert len(kernels) == answer["count"] // together.noted_each(tenant, 1.0) <= 1 << 16
    (had,) = together.play([tenant], 1.0)
    assert 0 < had.percent <= 100.5
    assert had.spread[0] <= had.percent <= had.spread[1]


@pytest.mark.slow
def test_a_tenant_that_waits_for_each_kernel_has_one_under_way(tenants):
    (answer,) = together.answers([together.Tenant(None, 300_000, sync=True)], 0.5)
    assert answer["p50"] >= 300
    assert answer["p99"] >= answer["p50"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel_ns", "sync", "late"),
    [
        pytest.param(20_000, True, True, id="the device has no work meanwhile"),
        pytest.param(500_000_000, False, False, id="the device has work for longer than it waits"),
    ],
)
def test_a_tenant_reports_by_how_much_its_launches_were_late(tenants, kernel_ns, sync, late):
    """Six of them on one processor: each waits for it."""
    processor = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    try:
        answers = together.answers([together.Tenant(None, kernel_ns, sync)] * 6, 0.3)
    finally:
        os.sched_setaffinity(0, before)
    assert {answer["late_ns"] > 0 for answer in answers} == {late}


@pytest.mark.parametrize(
    ("kernels", "count"),
    [
        pytest.param([[100, 200], [200, 300]], 2, id="whole"),
        pytest.param([[50, 150], [350, 450]], 1, id="halves"),
        pytest.param([[0, 100], [400, 500]], 0, id="outside"),
        pytest.param([[0, 800]], 3 / 8, id="one that is longer"),
        pytest.param([[150, 150], [90, 90]], 1, id="shorter than the device's clock tells"),
    ],
)
def test_kernels_count_by_their_part_of_the_time(kernels, count):
    assert together.done({"kernels": kernels}, 100, 400) == count
    assert together.done({"kernels": kernels}, 100, 400, each=3) == 3 * count


def test_the_halves_of_the_time_are_the_scatter_of_a_share():
    ms = 1_000_000
    kernels = [[n * ms, (n + 1) * ms] for n in (*range(0, 50, 2), *range(50, 100))]
    answer = {"kernels": kernels, "late_ns": 12 * ms}
    had = together.had(together.Tenant(30, ms), answer, (0, 100 * ms), 0.1)
    assert had == together.Had(75.0, [50.0, 100.0], 12.0)
    unknown = together.had(
        together.Tenant(30, ms), {**answer, "late_ns": None}, (0, 100 * ms), 0.1
    )
    assert unknown.late is None


def reported(path, function, *arguments):
    function(report.Report(path), *arguments)
    return report.read_lines(path)


@pytest.mark.parametrize(
    ("percent", "spread", "held"),
    [
        pytest.param(30.2, [30, 30.4], True, id="as much"),
        pytest.param(41, [40, 42], False, id="more"),
        pytest.param(34, [30, 38], None, id="perhaps more"),
        pytest.param(38, [33, 43], None, id="perhaps not more"),
        pytest.param(60, [56, 64], False, id="more, however it varies"),
    ],
)
def test_more_than_a_share_is_evaluated_where_halves_are_alike(tmp_path, percent, spread, held):
    found = reported(
        tmp_path / "lines", together.evaluate, "title", together.Tenant(30, 300_000),
        together.Had(percent, spread, None),
    )  # fmt: skip
    differ = spread[1] - spread[0]
    assert found == [
        (
            "guarantee",
            {
                "name": "title: not over its share",
                "held": held,
                "detail": f"{percent:.1f} of 30, parts of the time differ by {differ:.1f}",
            },
        )
    ]


def test_a_tenant_without_a_quota_is_not_evaluated(tmp_path):
    had = together.Had(99.0, [99.0, 99.0], 0.0)
    tenant = together.Tenant(None, 300_000)
    assert reported(tmp_path / "lines", together.evaluate, "title", tenant, had) == []


def test_late_launches_are_reported_where_the_kernel_tells(tmp_path):
    for late, count in ((None, 1), (3.5, 2)):
        had = together.Had(30.0, [29.0, 31.0], late)
        found = reported(tmp_path / f"{late}", together.tell, "title: share", "title", had)
        assert [fields["value"] for _, fields in found] == [30.0, 3.5][:count]
        assert found[0][1]["spread"] == [29.0, 31.0]
    assert found[1][1]["name"] == "title: launched late for lack of a processor"


def test_a_clock_that_rose_makes_no_share_too_high():
    slow, fast = ([[0, ns], [ns, 2 * ns]] for ns in (400_000, 150_000))
    tenant = together.Tenant(50, 300_000)
    assert together.length(tenant, {"kernels": slow}) == 300_000  # others had turns
    assert together.length(tenant, {"kernels": fast}) == 150_000
    short = together.Tenant(50, 2_000)
    assert together.length(short, {"kernels": [[0, 1000]]}) == 2_000


def test_a_rate_that_rises_is_measured_until_it_stays(monkeypatch):
    monkeypatch.setenv("PYVGPU_KIT_SIMULATE", "h100")  # needs no warm-up
    rates = iter([0.2, 0.2, 0.5, 0.9, 1.0, 1.001, 1.0, 7.0])
    assert cuda.steady_rate(lambda: next(rates)) == 1.0


def test_a_process_that_ends_early_is_named():
    command = ["sh", "-c", "exit 7"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ended,
        pytest.raises(shimmed.EndedError, match="ended with 7 before it was ready"),
    ):
        shimmed.together([ended])
    said = json.dumps({"count": 1})
    whole = subprocess.Popen(
        ["sh", "-c", f"echo ready; read line; echo '{said}'"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert shimmed.together([whole]) == [{"count": 1}]
