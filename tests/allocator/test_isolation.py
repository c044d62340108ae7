import pytest

from pyvgpu import errors, quota
from pyvgpu.allocator import (
    datatypes,
    elastic,
    free_capacity,
    isolation,
    placement_explanation,
    pod_placement,
)


@pytest.mark.parametrize(
    ("annotations", "read"),
    [
        pytest.param({}, quota.Isolation.QUOTA, id="none"),
        pytest.param({"pyvgpu.io/isolation": "quota"}, quota.Isolation.QUOTA, id="quota"),
        pytest.param({"pyvgpu.io/isolation": "hardware"}, quota.Isolation.HARDWARE, id="hardware"),
        pytest.param({"pyvgpu.io/isolation": "mps"}, quota.Isolation.MPS, id="mps"),
    ],
)
def test_an_annotation_names_the_isolation(annotations, read):
    assert isolation.read(annotations) is read


@pytest.mark.parametrize("wants_mps", [False, True])
def test_pods_with_mps_and_others_never_meet_on_a_device(wants_mps):
    devices = tuple(
        datatypes.NodeDevice(f"GPU-{number}", number, 80 << 30, mps=number == 1)
        for number in range(3)
    )
    need = datatypes.ContainerNeed(60, 1 << 30)
    asked = datatypes.Pod(
        (datatypes.Container("c", need),), selector=datatypes.Selector(mps=wants_mps)
    )
    held: list[datatypes.Holding] = []
    for _ in range(1 if wants_mps else 2):
        node = datatypes.NodeDevices(devices, tuple(held))
        assert pod_placement.fits(free_capacity.of(node), asked)
        (share,) = pod_placement.place(node, asked)["c"]
        assert (share.uuid == "GPU-1") is wants_mps
        assert not pod_placement.problem(node, asked, {"c": (share,)})
        held.append(datatypes.Holding(share, "other"))
    full = datatypes.NodeDevices(devices, tuple(held))
    assert not pod_placement.fits(free_capacity.of(full), asked)
    said = "is not one that MPS divides" if wants_mps else "which pods request with .*: mps"
    with pytest.raises(placement_explanation.Refused, match=said):
        pod_placement.place(full, asked)
    other = datatypes.NodeShare("GPU-0" if wants_mps else "GPU-1", 60, 1 << 30)
    assert pod_placement.problem(datatypes.NodeDevices(devices), asked, {"c": (other,)})


def test_a_share_of_a_device_that_mps_divides_is_shown_as_that():
    share = datatypes.NodeShare("GPU-1", 50, 1 << 30)
    assert isolation.of_share(share, mps=True) == "mps"
    device = datatypes.NodeDevice("GPU-1", 0, 80 << 30, mps=True)
    assert isolation.describe([device]) == "gpu0=mps"


@pytest.mark.parametrize(
    ("need", "words"),
    [
        pytest.param(datatypes.ContainerNeed(100, 0), "whole devices are requested", id="whole"),
        pytest.param(datatypes.ContainerNeed(50, 1, 2), "shares of 2 devices", id="several"),
    ],
)
def test_mps_serves_shares_of_one_device_only(need, words):
    with pytest.raises(errors.UsageError, match=f"{words}.*valid would be 1 to 99 vcore"):
        isolation.check_need(need)


@pytest.mark.parametrize(
    ("time_sharing", "priority"),
    [
        pytest.param(elastic.TimeSharing(quota.TimePolicy.ELASTIC, 80), None, id="elastic"),
        pytest.param(None, quota.Priority.HIGH, id="priority"),
    ],
)
def test_options_of_time_are_refused_under_mps(time_sharing, priority):
    isolation.check_time_sharing(quota.Isolation.QUOTA, time_sharing, priority)
    isolation.check_time_sharing(quota.Isolation.MPS, None, quota.Priority.NORMAL)
    with pytest.raises(errors.UsageError, match="under MPS"):
        isolation.check_time_sharing(quota.Isolation.MPS, time_sharing, priority)


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
