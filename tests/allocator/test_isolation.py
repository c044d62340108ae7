import pytest

from pyvgpu import errors, quota
from pyvgpu.allocator import datatypes, isolation


@pytest.mark.parametrize(
    ("annotations", "read"),
    [
        pytest.param({}, quota.Isolation.QUOTA, id="none"),
        pytest.param({"pyvgpu.io/isolation": "quota"}, quota.Isolation.QUOTA, id="quota"),
        pytest.param({"pyvgpu.io/isolation": "hardware"}, quota.Isolation.HARDWARE, id="hardware"),
    ],
)
def test_an_annotation_names_the_isolation(annotations, read):
    assert isolation.read(annotations) is read


def test_mps_is_refused_in_a_cluster():
    with pytest.raises(errors.UsageError, match="mps: must be quota or hardware in a cluster"):
        isolation.read({"pyvgpu.io/isolation": "mps"})


@pytest.mark.parametrize("text", ["", "MPS", "mig", "2"])
def test_another_word_is_refused_with_the_valid_ones(text):
    with pytest.raises(errors.UsageError, match="must be quota, hardware or mps, such as quota"):
        isolation.read({"pyvgpu.io/isolation": text})


@pytest.mark.parametrize(
    ("uuid", "vcore", "mig", "means"),
    [
        pytest.param("GPU-1", 50, "", "quota", id="a share"),
        pytest.param("GPU-1", 100, "", "whole-device", id="a GPU"),
        pytest.param("GPU-1", 12, "1g.10gb@6", "hardware", id="an instance of its own"),
        pytest.param("MIG-1", 100, "", "hardware", id="a MIG device"),
        pytest.param("MIG-1", 50, "", "hardware+quota", id="a share of a MIG device"),
    ],
)
def test_means_of_a_share(uuid, vcore, mig, means):
    assert isolation.of_share(datatypes.NodeShare(uuid, vcore, 1 << 30, mig)) == means


@pytest.mark.parametrize(
    ("uuid", "asked", "means"),
    [
        ("GPU-1", quota.Isolation.QUOTA, "quota"),
        ("GPU-1", quota.Isolation.MPS, "mps"),
        ("MIG-1", quota.Isolation.QUOTA, "hardware+quota"),
        ("MIG-1", quota.Isolation.MPS, "mps"),
    ],
)
def test_means_of_a_run(uuid, asked, means):
    assert isolation.of_run(uuid, asked) == means


def test_means_of_devices_in_one_line():
    profile = datatypes.MigProfile("1g.10gb", 19, 9 << 30, 16, 1, 1, 7, (0, 1))
    devices = (
        datatypes.NodeDevice("GPU-0", 0, 80 << 30),
        datatypes.NodeDevice("GPU-1", 1, 80 << 30, profiles=(profile,)),
        datatypes.NodeDevice("GPU-2", 2, 80 << 30, allocated_by="time-slices"),
        datatypes.NodeDevice("GPU-3", 3, 80 << 30, allocated_by="dra"),
        datatypes.NodeDevice("MIG-4", 500, 39 << 30),
    )
    assert isolation.describe(devices) == (
        "gpu0=quota,gpu1=hardware,gpu2=time-slices,gpu3=quota,gpu500=hardware+quota"
    )
