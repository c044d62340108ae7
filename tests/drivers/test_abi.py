"""Mirrors of real drivers are complete: the loader finds all needed libraries in them.

The tests read the needed libraries of every library of a volume, and start programs linked against
the driver's libraries with the real loader; they call no driver function.
"""

import os
import shutil
import subprocess
from pathlib import Path

import debian
import pytest

from pyvgpu import names
from pyvgpu import shim as built
from pyvgpu.volumes import elf, node_mirror, survey

pytestmark = pytest.mark.drivers

_COMMON = (
    "libcuda1",
    "libnvidia-cfg1",
    "libnvidia-ml1",
    "libnvidia-ptxjitcompiler1",
    "nvidia-opencl-icd",
    "nvidia-smi",
    "libnvidia-encode1",
    "libnvcuvid1",
)
_NEWER = (*_COMMON, "libcudadebugger1", "libnvidia-allocator1", "libnvidia-nvvm4")
PACKAGES = {  # by driver branch
    470: ("bullseye", *_COMMON, "libnvidia-compiler"),
    535: ("bookworm", *_NEWER),
    550: ("trixie", *_NEWER, "libnvidia-gpucomp"),
}
# Libraries outside the driver: the C library, and libgcc for the debugger's library only.
GLIBC = {"ld-linux-x86-64.so.2", "libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0"}
GLIBC |= {"librt.so.1", "libutil.so.1"}
BESIDES = {"libcudadebugger": {"libgcc_s.so.1"}}
FOLDERS = ("lib64", "origin")  # where a library finds its needed libraries
# Libraries that programs link against.
LINKED = (
    names.LIBCUDA,
    names.LIBNVIDIA_ML,
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-opencl.so.1",
)


@pytest.fixture(scope="module", params=PACKAGES)
def mirrored(request, tmp_path_factory):
    """A node that mirrors the driver of a branch from where Debian installs it."""
    found = survey.find_installation(debian.unpacked(*PACKAGES[request.param]))
    kept = node_mirror.NodeMirror(tmp_path_factory.mktemp(found.release), built.shim_library())
    kept.mirror(found)
    return kept


@pytest.fixture(params=["shared", "exclusive"])
def volume(request, mirrored):
    return mirrored.current() / request.param


def libraries(volume):
    return sorted(p for p in volume.glob("*/*.so*") if not p.is_symlink())


def foreign(library):
    """Return the libraries outside the driver that *library* may need."""
    return GLIBC | BESIDES.get(library.name.partition(".")[0], set())


def test_libraries_need_only_the_volume_and_the_c_library(volume):
    found = libraries(volume)
    assert len(found) >= 8
    missing = {
        (path.name, needed)
        for path in found
        for needed in elf.read_elf(path).needed
        if not any((volume / folder / needed).exists() for folder in FOLDERS)
    }
    assert {each for each in missing if each[1] not in foreign(Path(each[0]))} == set()


def test_loader_resolves_all_names_inside_the_volume(volume):
    for path in libraries(volume):
        done = subprocess.run(
            ["ldd", path], env=environment(volume), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        for line in done.stdout.splitlines():
            name, arrow, where = line.strip().partition(" => ")
            if arrow and name not in foreign(path):
                assert Path(where.partition(" (")[0]).is_relative_to(volume), line


def test_shared_volume_has_the_shim_in_front_of_the_driver(mirrored):
    shared = mirrored.current() / "shared"
    shim = (shared / "lib64" / names.LIBCUDA).stat()
    for name in names.SHIM_NAMES:
        assert (shared / "lib64" / name).stat().st_ino == shim.st_ino
    assert elf.read_elf(shared / "lib64" / names.LIBCUDA).soname == names.SHIM_FILE
    for private, own in (
        (names.LIBCUDA_ORIGIN, names.LIBCUDA),
        (names.LIBNVIDIA_ML_ORIGIN, names.LIBNVIDIA_ML),
    ):
        original = (shared / "origin" / private).resolve()
        assert original.is_relative_to(shared / "origin")
        assert elf.read_elf(original).soname == own


def test_exclusive_volume_has_the_driver_itself(mirrored):
    exclusive = mirrored.current() / "exclusive"
    for name in (names.LIBCUDA, names.LIBNVIDIA_ML):
        assert elf.read_elf(exclusive / "lib64" / name).soname == name


@pytest.mark.parametrize("soname", LINKED)
def test_program_linked_against_a_driver_library_starts(volume, soname, tmp_path):
    if "nvvm" in soname and "/470." in str(volume):
        assert not list(volume.glob("*/libnvidia-nvvm*"))  # this driver has none
        return
    compiler = shutil.which("cc") or "gcc"
    stub, program = tmp_path / "stub.so", tmp_path / "program"
    subprocess.run(
        [compiler, "-shared", "-x", "c", "/dev/null", f"-Wl,-soname,{soname}", "-o", stub],
        check=True,
    )
    subprocess.run(
        [compiler, "-x", "c", "-", "-x", "none", "-Wl,--no-as-needed", stub, "-o", program],
        input="int main(void) { return 0; }\n",
        text=True,
        check=True,
    )
    assert soname in elf.read_elf(program).needed
    done = subprocess.run([program], env=environment(volume), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def environment(volume):
    return {"LD_LIBRARY_PATH": str(volume / "lib64"), "PATH": os.environ["PATH"]}
