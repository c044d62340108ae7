"""Capability nodes of MIG devices, from files like the kernel driver's."""

import pytest

from pyvgpu import errors
from pyvgpu.volumes import capabilities, cdi

FILES = {
    "driver/nvidia/capabilities/mig/monitor": 2,
    "driver/nvidia/capabilities/gpu3/mig/gi2/access": 426,
    "driver/nvidia/capabilities/gpu3/mig/gi2/ci0/access": 427,
}


@pytest.fixture(name="proc")
def fixture_proc(tmp_path):
    """A folder like /proc, of a host whose only GPU with instances has the minor 3."""
    proc = tmp_path / "proc"
    for path, minor in FILES.items():
        (proc / path).parent.mkdir(parents=True, exist_ok=True)
        (proc / path).write_text(
            f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        )
    (proc / "devices").write_text(
        "Character devices:\n  1 mem\n195 nvidia\n508 nvidia-caps\n\nBlock devices:\n  7 loop\n"
    )
    return proc


def test_mig_device_has_the_nodes_of_its_two_instances(proc):
    assert capabilities.of_instance(3, 2, 0, proc) == (
        cdi.CdiNode("nvidia-caps/nvidia-cap426", 508, 426),
        cdi.CdiNode("nvidia-caps/nvidia-cap427", 508, 427),
    )
    first, _ = capabilities.of_instance(3, 2, 0, proc)
    assert first.edit() == {
        "path": "/dev/nvidia-caps/nvidia-cap426",
        "type": "c",
        "major": 508,
        "minor": 426,
    }


@pytest.mark.parametrize("of", [(0, 2, 0), (3, 1, 0), (3, 2, 1)], ids=["GPU", "GI", "CI"])
def test_instance_that_the_driver_does_not_list_is_named(proc, of):
    with pytest.raises(errors.UnavailableError, match=r"access: cannot be read"):
        capabilities.of_instance(*of, proc)


def test_driver_without_capabilities_is_named(proc):
    (proc / "devices").write_text("Character devices:\n  1 mem\n195 nvidia\n")
    with pytest.raises(errors.UnavailableError, match="devices has no nvidia-caps"):
        capabilities.of_instance(3, 2, 0, proc)


def test_malformed_capability_file_is_named(proc):
    (proc / "driver/nvidia/capabilities/gpu3/mig/gi2/access").write_text("DeviceFileMinor: x\n")
    with pytest.raises(errors.UnavailableError, match="gi2/access has no DeviceFileMinor"):
        capabilities.of_instance(3, 2, 0, proc)


def test_monitor_is_there_with_mig_only(proc, tmp_path):
    assert capabilities.monitor(proc) == (cdi.CdiNode("nvidia-caps/nvidia-cap2", 508, 2),)
    assert capabilities.monitor(tmp_path) == ()


def test_folder_like_proc_of_a_driver_root_counts_if_it_has_capabilities(proc, tmp_path):
    assert capabilities.proc_of(tmp_path) == proc
    assert capabilities.proc_of(tmp_path / "other") == capabilities.PROC
