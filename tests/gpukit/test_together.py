"""The kit's tenants: the device time that each got, by the device's own clock."""

import json
import subprocess

import pytest
from kit import binaries, cuda, shimmed, together

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
    assert 0 < had <= 100.5


@pytest.mark.slow
def test_a_tenant_that_waits_for_each_kernel_has_one_under_way(tenants):
    (answer,) = together.answers([together.Tenant(None, 300_000, sync=True)], 0.5)
    assert answer["p50"] >= 300
    assert answer["p99"] >= answer["p50"]


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
