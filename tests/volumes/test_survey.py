import os
import platform
import re
import struct
import subprocess
from pathlib import Path

import caches
import forked
import pytest
import rights

from pyvgpu import errors
from pyvgpu.deviceplugin.gpu_manager import volume_conf
from pyvgpu.volumes import catalogue, find, survey

RELEASE = "580.65.06"
OLDER = "570.86.15"
LIB = f"/usr/lib/{platform.machine()}-linux-gnu"
FLAGS = {"x86_64": caches.X86_64, "aarch64": caches.AARCH64}[platform.machine()]


class Machine:
    """The root of a machine with installed files; paths in it are absolute."""

    def __init__(self, path, libraries):
        self.path = path
        self._libraries = libraries
        path.mkdir()

    def at(self, place):
        path = self.path / place.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def put(self, place, content=b"\n"):
        self.at(place).write_bytes(content)

    def link(self, place, target):
        self.at(place).symlink_to(target)

    def library(self, place, soname=None, needed=(), note=None):
        """Install a library with *soname* and *needed*, and perhaps an ABI note."""
        target = self.at(place)
        lines = ['.section .note.GNU-stack,"",@progbits']
        if note:
            lines += ['.section .note.ABI-tag,"a",@note', ".long 4,16,1", '.asciz "GNU"']
            lines += [f".long 0,{','.join(map(str, note))}"]
        stubs = []
        for name in needed:
            stub = self._libraries / f"needed-{name}"
            if not stub.exists():
                _compile(stub, ["-x", "c", "/dev/null", f"-Wl,-soname,{name}"])
            stubs.append(stub)
        flags = [f"-Wl,-soname,{soname}"] if soname else []
        _compile(
            target,
            ["-x", "assembler", "-", "-x", "none", *flags, "-Wl,--no-as-needed", *stubs],
            "\n".join(lines) + "\n",
        )

    def original(self, place, soname):
        """Install libcuda or NVML; many tests need them, so nothing is compiled."""
        self.put(place, (self._libraries / soname).read_bytes())

    def driver(self, folder=LIB, release=RELEASE, siblings=("libnvidia-ptxjitcompiler",)):
        for stem in ("libcuda", "libnvidia-ml", *siblings):
            soname = f"{stem}.so.1"
            source = (
                soname
                if soname in ("libcuda.so.1", "libnvidia-ml.so.1")
                else "libnvidia-ptxjitcompiler.so.1"
            )
            self.original(f"{folder}/{stem}.so.{release}", source)
            self.link(f"{folder}/{soname}", f"{stem}.so.{release}")
        return self

    def cache(self, *paths, flags=FLAGS):
        lines = [caches.Line(Path(path).name, path, flags) for path in paths]
        self.put("/etc/ld.so.cache", caches.new(lines))

    def find(self, volumes=None):
        return survey.find_installation(self.path, volumes)

    def files(self, volumes=None):
        """Return the place of each file in a volume and its path on the machine."""
        found = self.find(volumes)
        return {
            f"{file.folder}/{file.name}": f"/{file.path.relative_to(self.path)}"
            for file in found.volumes[0].files
        }


def _compile(target, arguments, text=None):
    command = ["cc", "-shared", "-nostdlib", *arguments, "-o", target]
    subprocess.run(command, input=text, text=True, check=True)


@pytest.fixture
def machine(tmp_path, libraries):
    return Machine(tmp_path / "machine", libraries)


def core(folder, release=RELEASE):
    return {
        f"lib64/{stem}.so.{release}": f"{folder}/{stem}.so.{release}"
        for stem in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")
    }


# Locations of drivers.


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param("/usr/lib64", id="Fedora"),
        pytest.param("/usr/lib", id="Arch"),
        pytest.param("/home/kubernetes/bin/nvidia/lib64", id="GKE"),
        pytest.param("/run/nvidia/driver/usr/lib64", id="driver container"),
        pytest.param(f"{LIB}/nvidia/current", id="Debian without its alternatives"),
    ],
)
def test_driver_is_found_in_the_folders_of_distributions(machine, folder):
    assert machine.driver(folder).files() == core(folder)


def test_driver_is_found_in_the_folder_that_the_cache_names(machine):
    machine.driver("/opt/odd").cache("/opt/odd/libcuda.so.1")
    assert machine.files() == core("/opt/odd")
    assert machine.find().found_by == "by the loader's cache"


def test_driver_is_found_in_the_folder_that_the_configuration_names(machine):
    machine.driver("/opt/odd").put("/etc/ld.so.conf", b"include /etc/ld.so.conf.d/*.conf\n")
    machine.put("/etc/ld.so.conf.d/odd.conf", b"/opt/odd\n")
    assert machine.files() == core("/opt/odd")
    assert machine.find().found_by == "by the loader's configuration"


def test_debians_alternatives_lead_to_the_driver_in_use(machine):
    tesla = f"{LIB}/nvidia/tesla"
    machine.driver(tesla, siblings=()).driver(f"{LIB}/nvidia/current", OLDER)
    for stem in ("libcuda", "libnvidia-ml"):
        alternative = f"/etc/alternatives/nvidia--{stem}.so.1"
        machine.link(f"{LIB}/{stem}.so.1", alternative)
        machine.link(alternative, f"{tesla}/{stem}.so.1")
    machine.library(f"{LIB}/libnvidia-eglcore.so.{RELEASE}")
    assert machine.files() == {
        f"lib64/libcuda.so.{RELEASE}": f"{tesla}/libcuda.so.{RELEASE}",
        f"lib64/libnvidia-ml.so.{RELEASE}": f"{tesla}/libnvidia-ml.so.{RELEASE}",
        f"lib64/libnvidia-eglcore.so.{RELEASE}": f"{LIB}/libnvidia-eglcore.so.{RELEASE}",
    }
    (remark,) = machine.find().remarks
    assert f"release {OLDER}" in remark
    assert f"the current one is {RELEASE}" in remark


def test_driver_of_nixos_is_found_through_its_store(machine):
    store = "/nix/store/abc-nvidia-x11-580.65.06"
    machine.driver(f"{store}/lib").put(f"{store}/share/glvnd/egl_vendor.d/10_nvidia.json")
    machine.link("/run/opengl-driver", "/nix/store/xyz-graphics-drivers")
    for stem in ("libcuda", "libnvidia-ml"):
        machine.link(
            f"/nix/store/xyz-graphics-drivers/lib/{stem}.so.1", f"{store}/lib/{stem}.so.1"
        )
    machine.link("/nix/store/xyz-graphics-drivers/share", f"{store}/share")
    vendor = "share/glvnd/egl_vendor.d/10_nvidia.json"
    assert machine.files() == {**core(f"{store}/lib"), vendor: f"{store}/{vendor}"}


def test_release_of_a_wsl_driver_is_read_from_nvml(machine, libraries):
    wsl, windows = "/usr/lib/wsl/lib", "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_0"
    machine.original(f"{wsl}/libcuda.so.1.1", "libcuda.so.1")
    machine.link(f"{wsl}/libcuda.so.1", "libcuda.so.1.1")
    nvml = (libraries / "libnvidia-ml.so.1").read_bytes()
    machine.put(f"{wsl}/libnvidia-ml.so.1", nvml + b"\0" + b"13.580.65.06\0" + b"580.65.06\0")
    machine.library(f"{wsl}/libdxcore.so")
    machine.library(f"{windows}/libnvidia-ptxjitcompiler.so.1", "libnvidia-ptxjitcompiler.so.1")
    assert machine.find().release == "580.65.06"
    assert machine.files() == {
        "lib64/libcuda.so.580.65.06": f"{wsl}/libcuda.so.1.1",
        "lib64/libnvidia-ml.so.580.65.06": f"{wsl}/libnvidia-ml.so.1",
        "lib64/libdxcore.so": f"{wsl}/libdxcore.so",
        "lib64/libnvidia-ptxjitcompiler.so.1": f"{windows}/libnvidia-ptxjitcompiler.so.1",
    }


def test_driver_without_a_release_anywhere_is_refused(machine):
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        machine.original(f"/usr/lib/wsl/lib/{name}", name)
    with pytest.raises(find.DriverError, match="neither its name nor its contents have"):
        machine.find()


# Choice of the current driver.


def test_of_two_releases_the_one_in_the_cache_is_current_with_a_remark(machine):
    machine.driver("/usr/lib64", OLDER).driver("/opt/new").cache("/opt/new/libcuda.so.1")
    found = machine.find()
    assert found.release == RELEASE
    assert found.remarks == (
        f"release {OLDER} ({machine.path}/usr/lib64/libcuda.so.{OLDER}) is left out: the current "
        f"one is {RELEASE} ({machine.path}/opt/new/libcuda.so.{RELEASE})",
    )


def test_of_two_releases_in_a_folder_the_target_of_the_link_is_current(machine):
    machine.driver()
    for stem in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"):
        machine.original(f"{LIB}/{stem}.so.{OLDER}", f"{stem}.so.1")
    found = machine.find()
    assert found.release == RELEASE
    assert not any(OLDER in file.name for file in found.volumes[0].files)
    assert len(found.remarks) == 1


def test_missing_library_is_not_taken_from_another_release(machine):
    machine.driver("/usr/lib64", OLDER).driver("/opt/new").cache("/opt/new/libcuda.so.1")
    machine.library(f"/usr/lib64/libnvidia-nvvm.so.{OLDER}", "libnvidia-nvvm.so.4")
    machine.link("/usr/lib64/libnvidia-nvvm.so.4", f"libnvidia-nvvm.so.{OLDER}")
    assert machine.files() == core("/opt/new")


def test_cache_determines_the_current_libcuda_from_any_line(machine):
    machine.driver("/usr/lib64", OLDER).driver("/opt/new")
    machine.cache("/usr/lib64/libnvidia-ptxjitcompiler.so.1", "/opt/new/libcuda.so.1")
    assert machine.find().release == RELEASE


def test_driver_of_the_host_precedes_that_of_a_driver_container(machine):
    machine.driver("/usr/lib64").driver("/run/nvidia/driver/usr/lib64", OLDER)
    found = machine.find()
    assert (found.root, found.release) == (machine.path, RELEASE)
    assert OLDER in found.remarks[0]


def test_links_of_a_driver_container_resolve_in_its_root(machine):
    inner = Machine(machine.at("/run/nvidia/driver"), machine._libraries)
    inner.driver("/opt/odd").link("/usr/lib64/libcuda.so.1", "/opt/odd/libcuda.so.1")
    inner.link("/usr/lib64/libnvidia-ml.so.1", "/opt/odd/libnvidia-ml.so.1")
    found = machine.find()
    assert found.root == inner.path
    assert found.volumes[0].files[0].path == inner.path / f"opt/odd/libcuda.so.{RELEASE}"


def test_damaged_cache_is_ignored_with_a_remark(machine):
    machine.driver().put("/etc/ld.so.cache", caches.new([caches.Line("a", "/a")])[:50])
    (remark,) = machine.find().remarks
    assert re.match(
        f"searched without the loader's cache, {machine.path}/etc/ld.so.cache .truncated", remark
    )


def test_cache_of_another_machine_names_folders_without_harm(machine):
    machine.driver().cache("/../../../../etc/libcuda.so.1", "/gone/libcuda.so.1", "libcuda.so.1")
    assert machine.files() == core(LIB)


def test_missing_driver_names_the_searched_folders(machine):
    machine.put("/etc/ld.so.conf", b"/opt/odd\n")
    with pytest.raises(find.DriverMissingError) as caught:
        machine.find()
    for place in (
        "/etc/ld.so.cache (missing)",
        "/usr/lib64",
        "/opt/odd",
        "/usr/lib/wsl/lib",
        "/run/opengl-driver/lib",
        "/run/nvidia/driver/etc/ld.so.cache (missing)",
        "/run/nvidia/driver/usr/lib64",
    ):
        assert f"{machine.path}{place}" in caught.value.searched
    message = str(caught.value)
    assert "--driver-root" in message
    shown = [place for place in caught.value.searched if f"{place}," in message]
    assert shown == [*caught.value.searched[:4], *(x for x in shown[4:] if "(missing)" in x)]
    rest = len(caught.value.searched) - len(shown)
    assert message.endswith(f"{rest} other folders (`pyvgpu doctor` lists them)")


# Choice of libraries.


def test_libraries_added_by_newer_drivers_are_included(machine):
    machine.driver().library(f"{LIB}/libnvidia-next.so.{RELEASE}", "libnvidia-next.so.9")
    file = next(f for f in machine.find().volumes[0].files if "next" in f.name)
    assert (file.folder, file.links, file.capability) == ("lib64", ("libnvidia-next.so.9",), "")


def test_libraries_have_their_capability_and_other_names(machine):
    machine.driver(siblings=("libnvidia-encode",)).link(f"{LIB}/libcuda.so", "libcuda.so.1")
    machine.library(f"{LIB}/libGLX_nvidia.so.{RELEASE}", "libGLX_nvidia.so.0")
    found = {file.name: file for file in machine.find().volumes[0].files}
    assert found[f"libcuda.so.{RELEASE}"].links == ("libcuda.so.1", "libcuda.so")
    assert found[f"libcuda.so.{RELEASE}"].capability == "compute"
    assert found[f"libnvidia-encode.so.{RELEASE}"].capability == "video"
    assert found[f"libGLX_nvidia.so.{RELEASE}"].links == (
        "libGLX_nvidia.so.0",
        "libGLX_indirect.so.0",
    )


@pytest.mark.parametrize("order", ["folder first", "folder last"])
def test_of_two_alike_the_first_of_the_search_is_taken(machine, order):
    machine.driver()
    places = [f"{LIB}/libnvidia-api.so.1", "/opt/odd/libnvidia-api.so.1.2"]
    for place in places:
        machine.library(place, "libnvidia-api.so.1")
    if order == "folder last":
        places.reverse()
        machine.cache("/opt/odd/libnvidia-api.so.1.2")
    taken = [place for name, place in machine.files().items() if "api" in name]
    assert taken == [f"{LIB}/libnvidia-api.so.1"]


def test_glvnd_is_included_and_mesa_left_out(machine):
    machine.driver()
    machine.library(f"{LIB}/libGL.so.1.7.0", "libGL.so.1", ["libGLdispatch.so.0"])
    machine.library(f"{LIB}/libEGL.so.1.0.0", "libEGL.so.1", ["libgbm.so.1"])
    machine.library(f"{LIB}/libGLESv2.so.2", "libGLESv2.so.2", [f"libnvidia-glcore.so.{RELEASE}"])
    machine.library(f"{LIB}/libGLdispatch.so.0", "libGLdispatch.so.0")
    machine.link(f"{LIB}/libGL.so.1", "libGL.so.1.7.0")
    found = machine.find()
    names = [file.name for file in found.volumes[0].files if "GL" in file.name]
    assert names == ["libGL.so.1.7.0", "libGLESv2.so.2", "libGLdispatch.so.0"]
    assert found.remarks == (
        f"left out {machine.path}{LIB}/libEGL.so.1.0.0: neither NVIDIA's nor GLVND's",
    )


@pytest.mark.parametrize("order", ["plain first", "tls first"])
def test_of_two_tls_libraries_the_one_for_threads_is_taken(machine, order):
    machine.driver()
    folders = [f"{LIB}/", f"{LIB}/tls/"]
    if order == "tls first":
        folders.reverse()
    name = f"libnvidia-tls.so.{RELEASE}"
    machine.library(folders[0] + name, name, note=(2, 2, 5))
    machine.library(folders[1] + name, name, note=(2, 3, 99))
    assert machine.files()[f"lib64/{name}"] == folders[1] + name
    assert "without thread-local storage" in machine.find().remarks[0]


def header(bits, machine):
    """A header of an ELF library without content."""
    ident = b"\x7fELF" + bytes((bits // 32, 1, 1)) + bytes(9)
    size, form = (64, "<HHIQQQIHHHHHH") if bits == 64 else (52, "<HHIIIIIHHHHHH")
    entry = 56 if bits == 64 else 32
    return ident + struct.pack(form, 3, machine, 1, 0, 0, 0, 0, size, entry, 0, 64, 0, 0)


def test_32_bit_libraries_have_a_folder_of_their_own(machine):
    half = {"x86_64": 3, "aarch64": 40}[platform.machine()]
    machine.driver().put(f"/usr/lib/i386-linux-gnu/libcuda.so.{RELEASE}", header(32, half))
    place = f"/usr/lib/i386-linux-gnu/libcuda.so.{RELEASE}"
    assert machine.files() == {**core(LIB), f"lib/libcuda.so.{RELEASE}": place}


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        pytest.param("libx.so.580.65.06", b"", "not an ELF library", id="empty"),
        pytest.param("libx.so.580.65.06", b"#!/bin/sh", "not an ELF library", id="script"),
        pytest.param("libx.so.580.65.06", b"\x7fELF\x02", "a damaged ELF file", id="cut"),
        pytest.param("libx.so.580.65.06", header(64, 21), "64-bit library for EM_PPC64", id="PPC"),
        pytest.param("lib\nx.so.580.65.06", header(64, 62), "file of this name", id="newline"),
        pytest.param("lib\udcff.so.580.65.06", header(64, 62), "file of this name", id="no UTF-8"),
    ],
)
def test_invalid_library_is_left_out_with_a_remark(machine, name, content, problem):
    machine.driver().put(f"{LIB}/{name}", content)
    found = machine.find()
    assert machine.files() == core(LIB)
    (remark,) = found.remarks
    assert problem in remark
    assert remark.isprintable()


def test_soname_that_is_not_a_file_name_is_not_linked(machine):
    machine.driver().library(f"{LIB}/libx.so.{RELEASE}", "../../etc/passwd")
    file = next(file for file in machine.find().volumes[0].files if file.name.startswith("libx"))
    assert file.links == ()


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        pytest.param("nowhere", "a dangling symbolic link", id="dangling"),
        pytest.param(
            "../../../../../../../../etc/hostname", "a dangling symbolic link", id="out of it"
        ),
        pytest.param("/proc/self/environ", "a dangling symbolic link", id="absolute"),
    ],
)
def test_link_out_of_the_root_is_dangling(machine, target, problem):
    machine.driver().link(f"{LIB}/libx.so.{RELEASE}", target)
    assert machine.files() == core(LIB)
    assert problem in machine.find().remarks[0]


def test_pipe_among_the_libraries_does_not_block(machine):
    machine.driver()
    os.mkfifo(machine.at(f"{LIB}/libx.so.{RELEASE}"))
    assert "must be a regular file" in machine.find().remarks[0]


def test_installed_shim_is_left_out(machine):
    machine.driver().library(f"{LIB}/libx.so.{RELEASE}", catalogue.SHIM_SONAME)
    assert machine.files() == core(LIB)


@rights.as_root
def test_unreadable_library_ends_the_search(machine):
    machine.driver()
    for folder in (machine.path, *machine.path.parents):
        if folder.owner() == "root" and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o755)
    machine.find()  # also loads the parser, which the child cannot
    machine.at(f"{LIB}/libnvidia-ptxjitcompiler.so.{RELEASE}").chmod(0)
    answer = forked.call(machine.find, uid=forked.OTHER_UID)
    assert isinstance(answer, find.DriverUnreadableError)
    assert "libnvidia-ptxjitcompiler" in str(answer)


# Files that are not libraries.


def test_programs_firmware_and_data_belong_to_the_driver(machine):
    machine.driver()
    program = header(64, {"x86_64": 62, "aarch64": 183}[platform.machine()])
    machine.put("/usr/lib/nvidia/current/nvidia-smi", program)
    machine.link("/usr/bin/nvidia-smi", "/etc/alternatives/nvidia--nvidia-smi")
    machine.link("/etc/alternatives/nvidia--nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
    machine.put("/usr/bin/nvidia-debugdump", b"#!/bin/sh\n")
    firmware = f"/lib/firmware/nvidia/{RELEASE}/gsp_ga10x.bin"
    machine.put(firmware)
    machine.put(f"/lib/firmware/nvidia/{OLDER}/gsp_ga10x.bin")
    machine.put("/usr/share/vulkan/icd.d/nvidia_icd.json")
    machine.put("/usr/share/vulkan/icd.d/radeon_icd.json")
    machine.put("/etc/vulkan/icd.d/nvidia_icd.json")
    machine.put("/etc/OpenCL/vendors/nvidia.icd")
    machine.put("/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json")
    assert machine.files() == {
        **core(LIB),
        "bin/nvidia-smi": "/usr/lib/nvidia/current/nvidia-smi",
        f"firmware/nvidia/{RELEASE}/gsp_ga10x.bin": firmware,
        "etc/vulkan/icd.d/nvidia_icd.json": "/etc/vulkan/icd.d/nvidia_icd.json",
        "etc/OpenCL/vendors/nvidia.icd": "/etc/OpenCL/vendors/nvidia.icd",
        "share/egl/egl_external_platform.d/15_nvidia_gbm.json": (
            "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json"
        ),
    }
    (remark,) = machine.find().remarks
    assert "nvidia-debugdump: not an ELF" in remark


# Volumes of gpu-manager's configuration.


def volume(name, libraries=(), binaries=()):
    document = {"name": name, "base": "/etc/gpu-manager/vdriver", "components": {}}
    document["components"] = {"libraries": list(libraries), "binaries": list(binaries)}
    return volume_conf.parse({"volume": [document]})


def test_volume_has_only_the_files_it_names(machine):
    machine.driver(siblings=("libnvidia-ptxjitcompiler", "libnvidia-encode"))
    machine.put("/usr/share/vulkan/icd.d/nvidia_icd.json")
    assert machine.files(volume("origin", ["libcuda.so", "libnvidia-encode.so"])) == {
        f"lib64/{stem}.so.{RELEASE}": f"{LIB}/{stem}.so.{RELEASE}"
        for stem in ("libcuda", "libnvidia-encode")
    }


def test_volume_with_the_shim_always_has_the_originals(machine):
    (found,) = machine.driver().find(volume("nvidia", ["libcuda.so"])).volumes
    assert found.shared
    assert [file.name for file in found.files] == [
        f"libcuda.so.{RELEASE}",
        f"libnvidia-ml.so.{RELEASE}",
    ]


def test_volume_may_name_files_outside_the_catalogue(machine):
    machine.driver().library("/opt/odd/libodd.so.3", "libodd.so.3")
    machine.put("/etc/ld.so.conf", b"/opt/odd\n")
    machine.put("/opt/bin/odd", header(64, {"x86_64": 62, "aarch64": 183}[platform.machine()]))
    found = machine.files(volume("origin", ["libodd"], ["odd"]))
    assert found == {"lib64/libodd.so.3": "/opt/odd/libodd.so.3", "bin/odd": "/opt/bin/odd"}


def test_root_that_is_not_a_folder_is_refused(tmp_path):
    with pytest.raises(errors.UnavailableError, match="not a folder that can be searched"):
        survey.find_installation(tmp_path / "nowhere")
