"""The survey finds all files of a real driver where Debian's packages install them."""

import dataclasses

import debian
import pytest

from pyvgpu.volumes import installation, survey

pytestmark = pytest.mark.drivers

COMMON = (
    "libcuda1",
    "libegl-nvidia0",
    "libgles-nvidia2",
    "libglx-nvidia0",
    "libnvcuvid1",
    "libnvidia-allocator1",
    "libnvidia-cfg1",
    "libnvidia-eglcore",
    "libnvidia-encode1",
    "libnvidia-glcore",
    "libnvidia-ml1",
    "libnvidia-nvvm4",
    "libnvidia-opticalflow1",
    "libnvidia-ptxjitcompiler1",
    "nvidia-cuda-mps",
    "nvidia-egl-common",
    "nvidia-opencl-common",
    "nvidia-opencl-icd",
    "nvidia-smi",
    "nvidia-vdpau-driver",
    "nvidia-vulkan-common",
)
SUITES = {  # by driver branch: the Debian suite, and packages that only this branch has
    470: ("bullseye", ("libnvidia-cbl", "libnvidia-compiler", "libnvidia-ifr1")),
    535: ("bookworm", ("libcudadebugger1", "libnvidia-api1", "libnvidia-pkcs11-openssl3")),
    550: ("trixie", ("libcudadebugger1", "libnvidia-api1", "libnvidia-gpucomp")),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Unpacked:
    """The packages of a driver below a root, and the survey's result."""

    branch: int
    root: object
    found: installation.Installation

    @property
    def files(self):
        return {f"{file.folder}/{file.name}": file for file in self.found.volumes[0].files}


@pytest.fixture(scope="module", params=SUITES)
def unpacked(request):
    suite, more = SUITES[request.param]
    root = debian.unpacked(suite, *COMMON, *more)
    return Unpacked(request.param, root, survey.find_installation(root))


def test_release_belongs_to_the_branch(unpacked):
    assert unpacked.found.release.startswith(f"{unpacked.branch}.")
    assert unpacked.found.remarks == ()


def test_every_library_of_the_packages_is_found(unpacked):
    installed = {path.name for path in unpacked.root.rglob("*.so.*") if not path.is_symlink()}
    assert {
        path.split("/")[1] for path in unpacked.files if path.startswith("lib64/")
    } == installed
    assert len(installed) > 20


def test_every_symlink_of_the_packages_is_found(unpacked):
    links = {
        path.name: path.resolve().name
        for path in unpacked.root.rglob("lib*.so*")
        if path.is_symlink()
    }
    known = {link: file.name for file in unpacked.files.values() for link in file.links}
    assert links.items() <= known.items()


def test_every_library_is_in_the_catalogue(unpacked):
    assert [path for path, file in unpacked.files.items() if not file.capability] == []


def test_files_other_than_libraries_are_found(unpacked):
    assert {
        "bin/nvidia-cuda-mps-control",
        "bin/nvidia-cuda-mps-server",
        "bin/nvidia-smi",
        "etc/OpenCL/vendors/nvidia.icd",
        "share/glvnd/egl_vendor.d/10_nvidia.json",
        "share/vulkan/icd.d/nvidia_icd.json",
    } <= unpacked.files.keys()
