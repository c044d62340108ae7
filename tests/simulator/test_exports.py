"""Exports of the simulated driver, and results of functions that it does not implement."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import headers
import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from machine_room import ask as ask_nvml
from shim_room import ask_bare

from pyvgpu import shim
from pyvgpu.simulation import simulator

SOURCE = Path(__file__).parents[2] / "csrc" / "simulator"
GLIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}


def _load_stubs():
    spec = importlib.util.spec_from_file_location("stubs", SOURCE / "stubs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


stubs = _load_stubs()


def _library(soname):
    (found,) = shim.simulator_libraries().glob(f"{soname[:-1]}*")
    return found.open("rb")


def _exports(soname):
    with _library(soname) as stream:
        elf = ELFFile(stream)
        symbols = elf.get_section_by_name(".dynsym").iter_symbols()
        return {s.name for s in symbols if s["st_shndx"] != "SHN_UNDEF" and s.name}


def _dynamic(soname):
    with _library(soname) as stream:
        section = ELFFile(stream).get_section_by_name(".dynamic")
        assert isinstance(section, DynamicSection)
        tags = list(section.iter_tags())
        return (
            next(t.soname for t in tags if t.entry.d_tag == "DT_SONAME"),
            {t.needed for t in tags if t.entry.d_tag == "DT_NEEDED"},
            any(t.entry.d_tag == "DT_SYMBOLIC" for t in tags)
            or any(t.entry.d_tag == "DT_FLAGS" and t.entry.d_val & 2 for t in tags),
        )


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    return simulator.open_machine("h100", tmp_path)


def test_every_name_of_the_cuda_headers_is_exported_and_one_of_our_own():
    text = headers.read_cuda(headers.folders())
    older = stubs.older_names((SOURCE / "older_names.txt").read_text())
    expected = headers.cuda_symbols(text) | {name for name in older if name.startswith("cu")}
    expected |= {"sim_transfer_takes"}  # for replays only
    assert _exports("libcuda.so.1") == expected


def test_every_name_of_nvml_h_is_exported_and_no_other():
    older = stubs.older_names((SOURCE / "older_names.txt").read_text())
    expected = headers.nvml_symbols(headers.read(headers.folders(), "nvml.h"))
    expected |= {name for name in older if name.startswith("nvml")} | {stubs.EXPORT_TABLE}
    assert _exports("libnvidia-ml.so.1") == expected


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("cuMemAlloc", id="the 32-bit entry"),
        pytest.param("cuMemAlloc_v2", id="the entry in use"),
        pytest.param("cuLaunchKernel_ptsz", id="per thread"),
        pytest.param("cuMemcpyHtoD_v2_ptds", id="per thread, synchronous"),
        pytest.param("cuGraphInstantiate_v2", id="no longer in the header's text"),
        pytest.param("cuGLCtxCreate_v2", id="graphics"),
        pytest.param("cuProfilerStart", id="of a header in another wheel"),
    ],
)
def test_names_that_a_program_may_poll_for_are_there(name):
    assert name in _exports("libcuda.so.1")


def test_a_function_that_lies_in_the_header_alone_is_not_exported():
    assert "cuGetProcAddress_v2_ptsz" not in _exports("libcuda.so.1")


@pytest.mark.parametrize("name", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_libraries_carry_the_drivers_name_need_only_glibc_and_bind_to_themselves(name):
    soname, needed, symbolic = _dynamic(name)
    assert soname == name
    assert needed <= GLIBC
    assert symbolic


def test_a_call_that_is_not_simulated_is_not_supported(machine):
    answer = ask_bare(
        machine,
        "context(); answer([cuda.cuMemAlloc(byref(UINT()), 4), cuda.cuGLInit(),"
        " cuda.cuCheckpointOperationComplete(None)])",
    )
    assert answer == [801, 801, 801]


def test_an_nvml_call_that_is_not_simulated_is_not_supported(machine):
    answer = ask_nvml(
        machine,
        "N.nvmlInit(); answer(ctypes.CDLL('libnvidia-ml.so.1').nvmlVgpuTypeGetMaxInstances())",
    )
    assert answer == 3


def test_private_tables_are_refused(machine):
    answer = ask_bare(
        machine,
        "check(cuda.cuInit(0)); table = P(1);"
        "answer([cuda.cuGetExportTable(byref(table), bytes(16)), table.value])",
    )
    assert answer == [500, None]


def test_a_version_without_a_symbol_stops_the_generator():
    typedefs = "PFN_cuThing_v2000) PFN_cuThing_v3020)"
    with pytest.raises(headers.HeaderError, match=r"cuThing: versions \[2000, 3020\]"):
        stubs.proc_address_table(typedefs, {"cuThing"})


def test_a_missing_header_is_named(tmp_path):
    done = subprocess.run(
        [sys.executable, SOURCE / "stubs.py", "--include", tmp_path, "--output", tmp_path / "out",
         "--older", SOURCE / "older_names.txt"],
        env={"PYTHONPATH": str(SOURCE.parent / "tools")},
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == f"stubs.py: cuda.h: not in {tmp_path}\n"
