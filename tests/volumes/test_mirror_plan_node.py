from pathlib import Path

import pytest

from pyvgpu import errors
from pyvgpu.volumes import installation, mirror_plan

RELEASE = "580.1"
HOST = Path("/host")
SHIM = Path("/build/libcuda-control.so")


def file(place, *links):
    """Return the installed file for *place* in a tree."""
    folder, _, name = place.rpartition("/")
    return installation.InstalledFile(HOST / place, folder, name, links)


CUDA = file("lib64/libcuda.so.580.1", "libcuda.so.1")
NVML = file("lib64/libnvidia-ml.so.580.1", "libnvidia-ml.so.1")


def planned(*files, shared=True):
    """The entries of one volume with libcuda, libnvidia-ml and *files*; without its name."""
    volume = installation.DriverVolume("v", shared, (CUDA, NVML, *files))
    made = mirror_plan.plan_node(installation.Installation(HOST, RELEASE, (volume,)), SHIM)
    return {entry.path.removeprefix("v/"): shown(entry) for entry in made.plan.entries}


def shown(entry):
    if isinstance(entry, mirror_plan.PlannedLink):
        return f"-> {entry.target}"
    return f"= {entry.file}" if isinstance(entry, mirror_plan.OtherName) else str(entry.source)


SHIM_ENTRIES = {
    "lib64/libcuda.so.1": str(SHIM),
    "lib64/libcuda.so": "= v/lib64/libcuda.so.1",
    "lib64/libnvidia-ml.so.1": "= v/lib64/libcuda.so.1",
    "lib64/libnvidia-ml.so": "= v/lib64/libcuda.so.1",
    "origin/libcuda.so.580.1": "/host/lib64/libcuda.so.580.1",
    "origin/libnvidia-ml.so.580.1": "/host/lib64/libnvidia-ml.so.580.1",
    "origin/libcuda-origin.so.1": "-> libcuda.so.580.1",
    "origin/libnvidia-ml-origin.so.1": "-> libnvidia-ml.so.580.1",
}
DRIVER_ENTRIES = {
    "lib64/libcuda.so.580.1": "/host/lib64/libcuda.so.580.1",
    "lib64/libcuda.so.1": "-> libcuda.so.580.1",
    "lib64/libcuda.so": "-> libcuda.so.580.1",
    "lib64/libnvidia-ml.so.580.1": "/host/lib64/libnvidia-ml.so.580.1",
    "lib64/libnvidia-ml.so.1": "-> libnvidia-ml.so.580.1",
    "lib64/libnvidia-ml.so": "-> libnvidia-ml.so.580.1",
}


@pytest.mark.parametrize(
    ("found", "shared", "exclusive"),
    [
        pytest.param((), {}, {}, id="nothing more"),
        pytest.param(
            (file("lib64/libnvidia-x.so.580.1", "libnvidia-x.so.1", "libnvidia-x.so"),),
            {
                "lib64/libnvidia-x.so.580.1": "/host/lib64/libnvidia-x.so.580.1",
                "lib64/libnvidia-x.so.1": "-> libnvidia-x.so.580.1",
                "lib64/libnvidia-x.so": "-> libnvidia-x.so.580.1",
                "origin/libnvidia-x.so.1": "-> ../lib64/libnvidia-x.so.580.1",
                "origin/libnvidia-x.so": "-> ../lib64/libnvidia-x.so.580.1",
                "origin/libnvidia-x.so.580.1": "-> ../lib64/libnvidia-x.so.580.1",
            },
            {
                "lib64/libnvidia-x.so.580.1": "/host/lib64/libnvidia-x.so.580.1",
                "lib64/libnvidia-x.so.1": "-> libnvidia-x.so.580.1",
                "lib64/libnvidia-x.so": "-> libnvidia-x.so.580.1",
            },
            id="a library with two more names",
        ),
        pytest.param(
            (file("lib64/vdpau/libvdpau_nvidia.so.580.1", "libvdpau_nvidia.so.1"),),
            {
                "lib64/vdpau/libvdpau_nvidia.so.580.1": (
                    "/host/lib64/vdpau/libvdpau_nvidia.so.580.1"
                ),
                "lib64/vdpau/libvdpau_nvidia.so.1": "-> libvdpau_nvidia.so.580.1",
            },
            {
                "lib64/vdpau/libvdpau_nvidia.so.580.1": (
                    "/host/lib64/vdpau/libvdpau_nvidia.so.580.1"
                ),
                "lib64/vdpau/libvdpau_nvidia.so.1": "-> libvdpau_nvidia.so.580.1",
            },
            id="a library in a folder below",
        ),
        pytest.param(
            (file("bin/nvidia-smi"), file("firmware/nvidia/580.1/gsp_ga10x.bin")),
            {
                "bin/nvidia-smi": "/host/bin/nvidia-smi",
                "firmware/nvidia/580.1/gsp_ga10x.bin": "/host/firmware/nvidia/580.1/gsp_ga10x.bin",
            },
            {
                "bin/nvidia-smi": "/host/bin/nvidia-smi",
                "firmware/nvidia/580.1/gsp_ga10x.bin": "/host/firmware/nvidia/580.1/gsp_ga10x.bin",
            },
            id="programs and firmware",
        ),
        pytest.param(
            (file("lib/libcuda.so.580.1", "libcuda.so.1"),),
            {},
            {
                "lib/libcuda.so.580.1": "/host/lib/libcuda.so.580.1",
                "lib/libcuda.so.1": "-> libcuda.so.580.1",
                "lib/libcuda.so": "-> libcuda.so.580.1",
            },
            id="a 32-bit libcuda",
        ),
        pytest.param(
            (file("lib64/libx.so.580.1", "libcuda.so.1", "../../x.so", "..", ""),),
            {
                "lib64/libx.so.580.1": "/host/lib64/libx.so.580.1",
                "origin/libx.so.580.1": "-> ../lib64/libx.so.580.1",
            },
            {"lib64/libx.so.580.1": "/host/lib64/libx.so.580.1"},
            id="a library with another's and impossible names",
        ),
        pytest.param(
            (file("lib64/libcuda.so.1"), file("lib64/libnvidia-ml.so")),
            {},
            {
                "lib64/libcuda.so.1": "/host/lib64/libcuda.so.1",
                "lib64/libnvidia-ml.so": "/host/lib64/libnvidia-ml.so",
            },
            id="files that have the names of the shim",
        ),
    ],
)
def test_volumes_have_the_driver_and_shared_ones_the_shim(found, shared, exclusive):
    assert planned(*found) == SHIM_ENTRIES | shared
    assert planned(*found, shared=False) == DRIVER_ENTRIES | exclusive


def test_shared_volume_has_an_empty_folder_for_the_region_of_a_container():
    volumes = installation.volumes_of((CUDA, NVML))
    made = mirror_plan.plan_node(installation.Installation(HOST, RELEASE, volumes), SHIM)
    assert made.plan.empty == ("shared/region",)
    assert "shared/region" in made.plan.folders


def test_32_bit_files_are_left_out_of_a_shared_volume_with_a_remark():
    files = (CUDA, NVML, file("lib/libcuda.so.580.1"), file("lib/vdpau/libv.so.580.1"))
    made = mirror_plan.plan_node(
        installation.Installation(
            HOST, RELEASE, installation.volumes_of(files), remarks=("said by find",)
        ),
        SHIM,
    )
    assert made.remarks == (
        "said by find",
        "shared: without the 2 32-bit libraries of the driver, because there is no 32-bit shim",
    )
    with_32_bit = {
        entry.path.split("/lib/")[0] for entry in made.plan.entries if "/lib/" in entry.path
    }
    assert with_32_bit == {"exclusive"}


def test_both_volumes_have_the_same_sources():
    made = mirror_plan.plan_node(
        installation.Installation(HOST, RELEASE, installation.volumes_of((CUDA, NVML))), SHIM
    )
    assert {(each.path.split("/")[0], each.source.name) for each in made.plan.files} == {
        ("shared", "libcuda-control.so"),
        ("shared", "libcuda.so.580.1"),
        ("shared", "libnvidia-ml.so.580.1"),
        ("exclusive", "libcuda.so.580.1"),
        ("exclusive", "libnvidia-ml.so.580.1"),
    }


def test_shared_volume_without_the_originals_is_refused():
    volume = installation.DriverVolume("nvidia", True, (CUDA, file("bin/nvidia-smi")))
    with pytest.raises(mirror_plan.PlanError, match=r"nvidia: without libnvidia-ml.so.580.1;"):
        mirror_plan.plan_node(installation.Installation(HOST, RELEASE, (volume,)), SHIM)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", ".hidden", "a\nb", "\udcff"])
def test_name_of_a_volume_must_be_a_folder_name(name):
    with pytest.raises(errors.DataError, match="must be the name of a folder"):
        installation.DriverVolume(name, False, ())


@pytest.mark.parametrize(
    ("folder", "name"),
    [("..", "x"), ("/etc", "x"), ("lib64", ".."), ("lib64", "a/b"), ("", "x"), ("a//b", "x")],
)
def test_file_must_be_within_the_tree(folder, name):
    with pytest.raises(ValueError, match="must be a path within a tree"):
        installation.InstalledFile(HOST, folder, name)


def test_folders_come_after_their_parents():
    made = mirror_plan.MirrorPlan(
        "1.1", (mirror_plan.PlannedLink("a/b/c/x", "y"), mirror_plan.PlannedLink("a/d/x", "y"))
    )
    assert made.folders == ("a", "a/b", "a/b/c", "a/d")
