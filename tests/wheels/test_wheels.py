"""Wheels: complete, compatible with old glibc, and working without any other package."""

import io
import zipfile
from pathlib import Path

import bare
import elf_facts
import pytest
from elftools.elf import elffile

from pyvgpu.cli import manifests
from pyvgpu.cli.completion import SHELLS
from pyvgpu.cli.main import KUBECTL, PYVGPU

from .conftest import DIST

pytestmark = pytest.mark.wheels

PLAIN = Path(__file__).parents[2] / "deploy/plain"

# Static, without a libc.
BARE = ("pyvgpu/lib/sidecar/pyvgpu-exit", "pyvgpu/lib/hook/pyvgpu-created")
NATIVE = {
    "pyvgpu/lib/libcuda-control.so",
    "pyvgpu/lib/simulator/libcuda.so.999.1",
    "pyvgpu/lib/simulator/libnvidia-ml.so.999.1",
    "pyvgpu/lib/simulator/nvidia-cuda-mps-control",
    "pyvgpu/lib/arbiter/pyvgpu-arbiter",
    "pyvgpu/lib/demo/tenant",
    "pyvgpu/lib/replay/libvirtualclock.so",
    "pyvgpu/lib/replay/player",
    "pyvgpu/lib/replay/witness",
    *BARE,
    "pyvgpu/allocator/capacity.abi3.so",
    "pyvgpu/controller/scheduler/nodenames.abi3.so",
    "pyvgpu/region/words.abi3.so",
}
IN_RUN = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(total.value, cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), total))
"""


@pytest.fixture(params=["x86_64", "aarch64"])
def wheel(request, wheels):
    with zipfile.ZipFile(wheels[request.param]) as archive:
        archive.machine = request.param
        yield archive


@pytest.fixture
def binaries(wheel):
    files = {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    return {n: elffile.ELFFile(io.BytesIO(c)) for n, c in files.items() if c[:4] == b"\x7fELF"}


def test_native_files_are_complete_and_of_one_architecture(wheel, binaries):
    assert set(binaries) == NATIVE
    machine = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}[wheel.machine]
    assert {each["e_machine"] for each in binaries.values()} == {machine}
    assert "pyvgpu/_region.py" in wheel.namelist()
    assert {"pyvgpu/_api/dra_pb2.py", "pyvgpu/_api/dra_pb2_grpc.py"} <= set(wheel.namelist())
    assert "pyvgpu/controller/sidecar/marking.py" in wheel.namelist()
    assert "pyvgpu/lib/slurm/plugin.c" in wheel.namelist()
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert not tops & {"volumes", "controller", "deviceplugin"}


def test_nothing_is_newer_than_glibc_2_17_or_private(binaries):
    linked = {name: each for name, each in binaries.items() if name not in BARE}
    newest = {name: max(elf_facts.glibc_versions(each)) for name, each in linked.items()}
    assert {name: version for name, version in newest.items() if version > (2, 17)} == {}


@pytest.mark.parametrize("name", BARE)
def test_programs_without_a_libc_need_no_loader(binaries, name):
    kinds = {segment["p_type"] for segment in binaries[name].iter_segments()}
    assert not kinds & {"PT_INTERP", "PT_DYNAMIC"}


def test_shim_needs_the_drivers_libraries_first_and_is_bound_at_once(binaries):
    shim = binaries["pyvgpu/lib/libcuda-control.so"]
    assert elf_facts.needed(shim)[:4] == [
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        "libcuda-origin.so.1",
        "libnvidia-ml-origin.so.1",
    ]
    assert elf_facts.is_bound_at_once(shim)


def test_man_page_is_where_man_finds_it(wheel):
    (page,) = (
        name for name in wheel.namelist() if name.endswith(".data/data/share/man/man1/pyvgpu.1")
    )
    assert b".SS pyvgpu run\n" in wheel.read(page)
    version = wheel.filename.split("/")[-1].split("-")[1]
    assert wheel.read(page).decode().startswith(f'.TH PYVGPU 1 "" "pyvgpu {version}" ')


def test_wheels_have_the_version_of_the_sdist(wheel, installed):
    (archive,) = DIST.glob("pyvgpu-[0-9]*.tar.gz")
    version = archive.name.removeprefix("pyvgpu-").removesuffix(".tar.gz")
    assert f"pyvgpu-{version}.dist-info/METADATA" in wheel.namelist()
    assert installed.run("pyvgpu", "--version").startswith(f"pyvgpu {version}\n")


def test_installed_wheel_holds_a_program_to_its_quota(installed):
    options = ("--simulate", "t4", "--vmemory", "1GiB")
    said = installed.run("pyvgpu", "run", *options, "--", "python", "-c", IN_RUN)
    assert said.split() == [str(1 << 30), "2"]


def test_installed_wheel_without_extras_has_help_completion_and_the_manual(installed):
    for program, found in (("pyvgpu", PYVGPU), ("kubectl-vgpu", KUBECTL)):
        for name, _, _ in found.commands:
            assert installed.run(program, name, "--help").startswith(f"usage: {found.name} {name}")
    for shell in SHELLS:
        assert "simulate-schedule" in installed.run("pyvgpu", "completion", shell)
    assert installed.run("pyvgpu", "manual").count(".SS pyvgpu ") == len(PYVGPU.commands)


def test_installed_wheel_names_the_extra_of_each_command_that_needs_one(installed, tmp_path):
    (tmp_path / "pod.yaml").write_text(bare.POD)
    for (main, name), (arguments, extra) in bare.NEEDS.items():
        program = {"main": "pyvgpu", "kubectl_main": "kubectl-vgpu"}[main]
        given = [
            tmp_path / argument if argument == "pod.yaml" else argument for argument in arguments
        ]
        code, line = installed.refused(program, name, *given)
        assert (code, line.count("\n")) == (69, 1), line
        assert f"pip install 'pyvgpu[{extra}]'" in line


def test_installed_wheel_prints_the_manifests(installed):
    for name in manifests.SETS:
        said = installed.run("pyvgpu", "manifests", name)
        assert said == (PLAIN / f"{name}.yaml").read_text()
    chart = Path(installed.run("pyvgpu", "manifests", "--chart").strip())
    assert chart.is_relative_to(installed.programs.parent)
    assert {"Chart.yaml", "values.yaml", "templates"} <= {path.name for path in chart.iterdir()}
    command = installed.run("pyvgpu", "manifests", "second", "--helm")
    assert command.startswith(f"helm template pyvgpu {chart} --namespace pyvgpu ")
