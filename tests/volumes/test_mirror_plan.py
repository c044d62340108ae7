from pathlib import Path

import pytest

from pyvgpu.volumes import find, mirror_plan

SHIM = Path("/shim/libcuda-control.so")
FOLDER = Path("/driver")


def driver_with(*others):
    """A driver of release 580.1 with *others* (file name, SONAME) beside CUDA and NVML."""
    named = [("libcuda.so.580.1", "libcuda.so.1"), ("libnvidia-ml.so.580.1", "libnvidia-ml.so.1")]
    return find.Driver(
        place=FOLDER,
        release="580.1",
        libcuda=FOLDER / "libcuda.so.580.1",
        libnvidia_ml=FOLDER / "libnvidia-ml.so.580.1",
        files=tuple(find.DriverFile(FOLDER / n, soname) for n, soname in [*named, *others]),
    )


def test_shim_is_one_file_with_four_names():
    entries = mirror_plan.plan(driver_with(), SHIM).entries
    assert entries[:4] == (
        mirror_plan.PlannedFile("lib64/libcuda.so.1", SHIM, ours=True),
        mirror_plan.OtherName("lib64/libcuda.so", "lib64/libcuda.so.1"),
        mirror_plan.OtherName("lib64/libnvidia-ml.so.1", "lib64/libcuda.so.1"),
        mirror_plan.OtherName("lib64/libnvidia-ml.so", "lib64/libcuda.so.1"),
    )


def test_originals_have_their_own_folder_and_private_names():
    assert set(mirror_plan.plan(driver_with(), SHIM).entries[4:]) == {
        mirror_plan.PlannedFile("origin/libcuda.so.580.1", FOLDER / "libcuda.so.580.1"),
        mirror_plan.PlannedFile("origin/libnvidia-ml.so.580.1", FOLDER / "libnvidia-ml.so.580.1"),
        mirror_plan.PlannedLink("origin/libcuda-origin.so.1", "libcuda.so.580.1"),
        mirror_plan.PlannedLink("origin/libnvidia-ml-origin.so.1", "libnvidia-ml.so.580.1"),
    }


def test_siblings_are_found_from_both_folders():
    entries = mirror_plan.plan(
        driver_with(("libnvidia-x.so.580.1", "libnvidia-x.so.1")), SHIM
    ).entries
    assert [entry for entry in entries if "libnvidia-x" in entry.path] == [
        mirror_plan.PlannedFile("lib64/libnvidia-x.so.580.1", FOLDER / "libnvidia-x.so.580.1"),
        mirror_plan.PlannedLink("lib64/libnvidia-x.so.1", "libnvidia-x.so.580.1"),
        mirror_plan.PlannedLink("origin/libnvidia-x.so.1", "../lib64/libnvidia-x.so.580.1"),
        mirror_plan.PlannedLink("origin/libnvidia-x.so.580.1", "../lib64/libnvidia-x.so.580.1"),
    ]


@pytest.mark.parametrize(
    "soname",
    [
        pytest.param("libx.so.580.1", id="its own file name"),
        pytest.param("libcuda.so.1", id="the shim's"),
        pytest.param("libnvidia-ml.so", id="another of the shim's"),
        pytest.param("libcuda-origin.so.1", id="the originals' private one"),
        pytest.param("../../etc/libx.so.1", id="a path"),
        pytest.param("..", id="the folder above"),
        pytest.param("", id="nothing"),
        pytest.param("manifest.json", id="no library's"),
    ],
)
def test_used_or_invalid_soname_gets_no_link(soname):
    made = mirror_plan.plan(driver_with(("libx.so.580.1", soname)), SHIM).entries
    without = mirror_plan.plan(driver_with(), SHIM).entries
    assert set(made) - set(without) == {
        mirror_plan.PlannedFile("lib64/libx.so.580.1", FOLDER / "libx.so.580.1"),
        mirror_plan.PlannedLink("origin/libx.so.580.1", "../lib64/libx.so.580.1"),
    }


def test_of_two_libraries_with_one_soname_the_first_gets_the_link():
    twins = driver_with(("liba.so.580.1", "libx.so.1"), ("libb.so.580.1", "libx.so.1"))
    entries = mirror_plan.plan(twins, SHIM).entries
    assert [entry for entry in entries if entry.path.endswith("/libx.so.1")] == [
        mirror_plan.PlannedLink("lib64/libx.so.1", "liba.so.580.1"),
        mirror_plan.PlannedLink("origin/libx.so.1", "../lib64/liba.so.580.1"),
    ]


def test_every_path_occurs_once_and_after_its_target():
    entries = mirror_plan.plan(driver_with(("liba.so.580.1", "libb.so.580.1")), SHIM).entries
    paths = [entry.path for entry in entries]
    assert len(set(paths)) == len(paths)
    for entry in entries:
        if isinstance(entry, mirror_plan.OtherName):
            assert paths.index(entry.file) < paths.index(entry.path)
