import itertools
import re

from pyvgpu.volumes import catalogue


def test_each_library_is_listed_once():
    tables = (catalogue.RELEASED, catalogue.OWN_VERSION)
    stems = [stem for table in tables for stems in table.values() for stem in stems]
    assert len(stems) == len(set(stems))


def test_names_of_libraries_have_no_version():
    for table in (catalogue.RELEASED, catalogue.OWN_VERSION):
        for stem in itertools.chain.from_iterable(table.values()):
            assert re.fullmatch(r"lib[A-Za-z0-9_-]+", stem)


def test_each_program_is_listed_once():
    programs = list(itertools.chain.from_iterable(catalogue.BINARIES.values()))
    assert len(programs) == len(set(programs))


def test_libraries_that_the_shim_replaces_belong_to_the_driver():
    released = set(itertools.chain.from_iterable(catalogue.RELEASED.values()))
    assert {stem for stem, _, _ in catalogue.REPLACED} <= released


def test_libraries_that_mesa_has_too_have_a_version_of_their_own():
    own = set(itertools.chain.from_iterable(catalogue.OWN_VERSION.values()))
    assert set(catalogue.MESA_TOO) <= own
    assert catalogue.TLS in catalogue.RELEASED[catalogue.Capability.GRAPHICS]


def test_patterns_of_data_stay_below_their_folder():
    for pattern in itertools.chain.from_iterable(catalogue.DATA.values()):
        assert not pattern.startswith("/")
        assert ".." not in pattern
        assert pattern.format(release="1.2")


def test_folders_are_absolute():
    folders = (
        *catalogue.USUAL_FOLDERS,
        *catalogue.MORE_FOLDERS,
        *catalogue.BINARY_FOLDERS,
        *catalogue.SHARE_FOLDERS,
        *catalogue.FIRMWARE_FOLDERS,
        *catalogue.DRIVER_ROOTS,
    )
    assert all(str(folder).startswith("/") for folder in folders)
    assert len(set(folders)) == len(folders)


def test_catalogue_has_the_files_of_gpu_managers_configuration():
    """It names libraries by the beginning of a name, including those of old drivers."""
    named = (
        "libnvidia-ml libcuda libnvidia-ptxjitcompiler libnvidia-fatbinaryloader libnvidia-opencl "
        "libnvidia-compiler libvdpau_nvidia libnvidia-encode libnvcuvid libnvidia-fbc "
        "libnvidia-ifr libGL libGLX libOpenGL libGLESv1_CM libGLESv2 libEGL libGLdispatch "
        "libGLX_nvidia libEGL_nvidia libGLESv2_nvidia libGLESv1_CM_nvidia libnvidia-eglcore "
        "libnvidia-egl-wayland libnvidia-glcore libnvidia-tls libnvidia-glsi "
        "libnvidia-opticalflow libnvidia-gpucomp"
    )
    known = {
        stem
        for table in (catalogue.RELEASED, catalogue.OWN_VERSION)
        for stems in table.values()
        for stem in stems
    }
    assert set(named.split()) <= known
