import pytest
from waiting import PROMPT

from pyvgpu.volumes import folder_watch, survey


@pytest.fixture
def root(tmp_path):
    (tmp_path / "usr/lib/x86_64-linux-gnu/nvidia/current").mkdir(parents=True)
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    return tmp_path


def test_folders_of_libraries_and_of_the_loaders_cache(root):
    found = survey.folders(root)
    assert root / "usr/lib/x86_64-linux-gnu" in found
    assert root / "usr/lib64" in found  # not there yet
    assert root / "etc" in found
    assert all(folder.is_relative_to(root) for folder in found)


def test_folders_include_those_of_intermediate_links(root):
    """Debian's: /usr/lib/... -> /etc/alternatives -> /usr/lib/nvidia/current."""
    (root / "usr/lib/nvidia/current").mkdir(parents=True)
    (root / "usr/lib/nvidia/current/libcuda.so.1").symlink_to("libcuda.so.580.1")
    (root / "etc/alternatives/libcuda").symlink_to("/usr/lib/nvidia/current/libcuda.so.1")
    (root / "usr/lib/x86_64-linux-gnu/libcuda.so.1").symlink_to("/etc/alternatives/libcuda")
    found = survey.folders(root)
    assert {root / "etc/alternatives", root / "usr/lib/nvidia/current"} <= set(found)


def test_folders_include_those_of_other_files(root):
    (root / "lib/firmware/nvidia/580.1").mkdir(parents=True)
    assert {
        root / "usr/bin",
        root / "etc/OpenCL/vendors",
        root / "usr/share/vulkan/icd.d",
        root / "lib/firmware/nvidia",
        root / "lib/firmware/nvidia/580.1",
        root / "usr/lib64/vdpau",
    } <= set(survey.folders(root))


@pytest.mark.slow
@pytest.mark.parametrize("inotify", [True, False])
def test_retargeted_link_to_the_driver_is_noticed(root, inotify):
    """NixOS: the link is absolute, and dangling where the root is mounted in a container."""
    for name in ("one", "two"):
        (root / f"nix/store/{name}/lib").mkdir(parents=True)
    (root / "run").mkdir()
    (root / "run/opengl-driver").symlink_to("/nix/store/one")
    with folder_watch.FolderWatch(inotify=inotify) as watched:
        watched.watch(survey.folders(root))
        assert not watched.wait(0)
        (root / "nix/store/one/lib/libcuda.so.1").touch()
        assert watched.wait(PROMPT)
        (root / "run/new").symlink_to("/nix/store/two")
        (root / "run/new").rename(root / "run/opengl-driver")
        assert watched.wait(PROMPT)


def test_links_in_a_circle_end(root):
    (root / "usr/lib/x86_64-linux-gnu/libcuda.so.1").symlink_to("libcuda.so")
    (root / "usr/lib/x86_64-linux-gnu/libcuda.so").symlink_to("libcuda.so.1")
    assert root / "usr/lib/x86_64-linux-gnu" in survey.folders(root)


def test_root_that_is_not_mounted_yet_is_waited_for(tmp_path):
    assert survey.folders(tmp_path / "driver") == (tmp_path, tmp_path / "driver")
