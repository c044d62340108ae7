import os
import platform
import re
import struct
from pathlib import Path

import forked
import pytest
import rights

from pyvgpu import errors
from pyvgpu.volumes import find, root, search

RELEASE = "580.65.06"  # of the fixture driver_folder


def elf_header(bits, machine):
    """A header of an ELF library without content."""
    ident = b"\x7fELF" + bytes((bits // 32, 1, 1)) + bytes(9)
    if bits == 32:
        return ident + struct.pack(
            "<HHIIIIIHHHHHH", 3, machine, 1, 0, 0, 0, 0, 52, 32, 0, 40, 0, 0
        )
    return ident + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, 0, 0, 64, 56, 0, 64, 0, 0)


def test_driver_is_everything_of_one_release(driver_folder):
    driver_folder.add("libnvidia-ptxjitcompiler.so.470.1", "libnvidia-ptxjitcompiler.so.1")
    driver_folder.add("libfoo.so.1", "libcuda.so.1")
    driver = find.find_driver(driver_folder.path)
    assert driver.release == RELEASE
    assert driver.folder == driver_folder.path
    assert driver.libcuda == driver_folder.path / f"libcuda.so.{RELEASE}"
    assert driver.libnvidia_ml == driver_folder.path / f"libnvidia-ml.so.{RELEASE}"
    assert [(file.name, file.soname) for file in driver.files] == [
        (f"libcuda.so.{RELEASE}", "libcuda.so.1"),
        (f"libcudadebugger.so.{RELEASE}", "libcudadebugger.so.1"),
        (f"libnvidia-ml.so.{RELEASE}", "libnvidia-ml.so.1"),
        (f"libnvidia-ptxjitcompiler.so.{RELEASE}", "libnvidia-ptxjitcompiler.so.1"),
    ]


def test_links_are_resolved_to_the_folder_of_the_driver(driver_folder, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libcuda.so.1").symlink_to(driver_folder.path / "libcuda.so.1")
    driver = find.find_driver(tmp_path / "lib")
    assert driver.folder == driver_folder.path
    assert len(driver.files) == 4


def test_siblings_beside_the_link_belong_to_the_driver(driver_folder, tmp_path, libraries):
    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / "libcuda.so.1").symlink_to(driver_folder.path / "libcuda.so.1")
    (lib / f"libnvidia-encode.so.{RELEASE}").write_bytes(
        (libraries / "libcudadebugger.so.1").read_bytes()
    )
    assert lib / f"libnvidia-encode.so.{RELEASE}" in [
        file.path for file in find.find_driver(lib).files
    ]


def test_names_without_links_are_enough(empty_folder):
    empty_folder.add("libcuda.so.999.1", "libcuda.so.1")
    empty_folder.add("libnvidia-ml.so.999.1", "libnvidia-ml.so.1")
    assert find.find_driver(empty_folder.path).release == "999.1"


def test_relative_folder_gives_absolute_files(driver_folder, monkeypatch):
    monkeypatch.chdir(driver_folder.path.parent)
    assert find.find_driver(Path("driver")).libcuda.is_absolute()


def test_siblings_that_cannot_be_loaded_are_left_out(driver_folder):
    (driver_folder.path / f"libold.so.{RELEASE}").write_bytes(elf_header(32, 3))
    foreign = elf_header(64, _foreign_machine())
    (driver_folder.path / f"libforeign.so.{RELEASE}").write_bytes(foreign)
    (driver_folder.path / f"libtext.so.{RELEASE}").write_text("hello")
    (driver_folder.path / f"libgone.so.{RELEASE}").symlink_to("nowhere")
    assert len(find.find_driver(driver_folder.path).files) == 4


def write(name, content):
    def spoil(folder):
        (folder.path / name).unlink(missing_ok=True)
        (folder.path / name).write_bytes(content)

    return spoil


def _foreign_machine():
    return 183 if platform.machine() == "x86_64" else 62


def _rename(folder, name, new):
    (folder.path / name).rename(folder.path / new)


def _damage(folder):
    path = folder.path / f"libcuda.so.{RELEASE}"
    path.write_bytes(path.read_bytes()[:200])


def _remove_all(folder):
    for path in folder.path.iterdir():
        path.unlink()


def _remove(folder, stem):
    for path in folder.path.glob(f"{stem}.so*"):
        path.unlink()


def _two_releases(folder):
    _remove(folder, "libcuda")
    folder.add("libcuda.so.580.1", "libcuda.so.1")
    folder.add("libcuda.so.580.2", "libcuda.so.1")


def _stub(folder):
    _remove(folder, "libcuda")
    folder.add("libcuda.so", "libcuda.so.1")
    folder.link("libcuda.so.1", "libcuda.so")


def _other_nvml(folder):
    _remove(folder, "libnvidia-ml")
    folder.add("libnvidia-ml.so.570.86.15", "libnvidia-ml.so.1")


def _shim(folder):
    _remove(folder, "libcuda")
    folder.add("libcuda.so.1", "libcuda-control.so")


def _directory(folder):
    _remove(folder, "libcuda")
    (folder.path / "libcuda.so.1").mkdir()


def _pipe(folder):
    _remove(folder, "libcuda")
    os.mkfifo(folder.path / "libcuda.so.1")


def _circle(folder):
    _remove(folder, "libcuda")
    folder.link("libcuda.so.1", "libcuda.so")
    folder.link("libcuda.so", "libcuda.so.1")


@pytest.mark.parametrize(
    ("spoil", "exit_code", "problem"),
    [
        pytest.param(_remove_all, 69, "no libcuda.so.1 in it", id="empty"),
        pytest.param(
            lambda folder: _remove(folder, "libnvidia-ml"),
            65,
            "no libnvidia-ml.so.1",
            id="no NVML",
        ),
        pytest.param(write("libcuda.so.1", b"hello\n"), 65, "not an ELF library", id="text file"),
        pytest.param(write("libcuda.so.1", b""), 65, "not an ELF library", id="empty file"),
        pytest.param(_damage, 65, "a damaged ELF file", id="cut short"),
        pytest.param(
            write("libcuda.so.1", elf_header(32, 3)), 65, "a 32-bit library", id="32 bit"
        ),
        pytest.param(
            write("libcuda.so.1", elf_header(64, _foreign_machine())),
            65,
            f"this machine is EM_{platform.machine().upper()}",
            id="other machine",
        ),
        pytest.param(_shim, 65, "is a mirror", id="mirror"),
        pytest.param(_other_nvml, 65, f"of release {RELEASE}, ", id="two releases of two"),
        pytest.param(_two_releases, 65, "libcuda.so.580.1 and libcuda.so.580.2", id="two libcuda"),
        pytest.param(_stub, 65, "must end in the driver's release", id="toolkit's stub"),
        pytest.param(
            lambda folder: write("libcuda.so.1", (folder.path / "libnvidia-ml.so.1").read_bytes())(
                folder
            ),
            65,
            "its SONAME is libnvidia-ml.so.1",
            id="other library",
        ),
        pytest.param(
            lambda folder: _rename(folder, f"libcuda.so.{RELEASE}", "hidden"),
            65,
            "a dangling symbolic link",
            id="dangling",
        ),
        pytest.param(_directory, 65, "must be a regular file", id="directory"),
        pytest.param(_pipe, 65, "must be a regular file", id="pipe"),
        pytest.param(_circle, 77, "cannot be read", id="a loop of symbolic links"),
    ],
)
def test_bad_folder_is_refused_with_the_reason(driver_folder, spoil, exit_code, problem):
    spoil(driver_folder)
    with pytest.raises(errors.PyVgpuError, match=re.escape(problem)) as caught:
        find.find_driver(driver_folder.path)
    assert caught.value.exit_code == exit_code
    assert str(driver_folder.path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_folder_is_refused(tmp_path):
    with pytest.raises(find.DriverMissingError, match="there is no such folder"):
        find.find_driver(tmp_path / "nowhere")


def test_file_in_place_of_a_folder_is_refused(driver_folder):
    with pytest.raises(find.DriverError, match="must be the folder that holds libcuda"):
        find.find_driver(driver_folder.path / "libcuda.so.1")


@rights.as_root
@pytest.mark.parametrize("what", ["folder", "file"])
def test_unreadable_driver_is_refused(driver_folder, what):
    for folder in (driver_folder.path, *driver_folder.path.parents):
        if folder.owner() == "root" and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o755)
    locked = driver_folder.path if what == "folder" else driver_folder.path / "libcuda.so.1"
    find.find_driver(driver_folder.path)  # also loads the parser, which the child cannot
    locked.chmod(0)
    answer = forked.call(lambda: find.find_driver(driver_folder.path), uid=forked.OTHER_UID)
    assert isinstance(answer, find.DriverUnreadableError)
    assert "Permission denied" in str(answer)


def searched(*folders):
    return search.Searched(root.HOST, dict.fromkeys(folders, search.SearchStep.USUAL), "")


def test_search_takes_the_first_driver_for_this_machine(driver_folder, tmp_path):
    other = tmp_path / "lib32"
    other.mkdir()
    (other / "libcuda.so.1").write_bytes(elf_header(32, 3))
    found = find.first_originals(
        searched(tmp_path / "nowhere", tmp_path, other, driver_folder.path)
    )
    assert (found.folder, found.found_by) == (driver_folder.path, search.SearchStep.USUAL)


def test_search_does_not_skip_a_half_upgraded_driver(driver_folder, tmp_path, libraries):
    half = tmp_path / "half"
    half.mkdir()
    (half / "libcuda.so.581.1").write_bytes((libraries / "libcuda.so.1").read_bytes())
    with pytest.raises(find.DriverError, match=r"libcuda.so.581.1 but no libnvidia-ml"):
        find.first_originals(searched(half, driver_folder.path))


def test_missing_driver_names_the_searched_folders_and_the_remedy(tmp_path):
    other = tmp_path / "lib32"
    other.mkdir()
    (other / "libcuda.so.1").write_bytes(elf_header(32, 3))
    with pytest.raises(find.DriverMissingError) as caught:
        find.first_originals(searched(tmp_path / "nowhere", other))
    text = str(caught.value)
    assert str(tmp_path / "nowhere") in text
    assert f"{other} ({other}/libcuda.so.1: a 32-bit library" in text
    assert "--driver-libraries" in text
    assert "--simulate" in text
