"""Every function of every CUDA and NVML header and driver is hooked or reviewed."""

import re

import complete
import headers
import hook_table
import pytest
import wheels

from pyvgpu.volumes import elf

pytestmark = pytest.mark.drivers

RUNTIME = "nvidia-cuda-runtime"
WHEELS = [
    f"{RUNTIME}-cu11==11.8.*",
    *(f"{RUNTIME}-cu12==12.{minor}.*" for minor in (0, 1, 2, 3, 4, 5, 6, 8, 9)),
    *(f"{RUNTIME}==13.{minor}.*" for minor in range(6)),
]
NVML = "nvidia-nvml-dev"
NVML_WHEELS = [f"{NVML}-cu11==11.8.*", f"{NVML}-cu12==12.*", f"{NVML}==13.*"]


@pytest.mark.parametrize("requirement", WHEELS)
def test_cuda_tables_agree_with_the_header(requirement):
    (header,) = wheels.unpacked(requirement).rglob("cuda.h")
    declared = headers.cuda_symbols(headers.read_cuda([header.parent]))
    assert len(declared) > 500
    assert complete.disagreements(declared) == []


@pytest.mark.parametrize("requirement", NVML_WHEELS)
def test_nvml_tables_agree_with_the_header(requirement):
    (header,) = wheels.unpacked(requirement).rglob("nvml.h")
    declared = headers.nvml_symbols(headers.read([header.parent], "nvml.h"))
    assert len(declared) > 250
    assert complete.disagreements(declared, "nvml") == []


def test_every_export_of_libcuda_is_hooked_or_reviewed(place):
    exported = {n for n in elf.exported_functions(place.driver.libcuda) if re.match("cu[A-Z]", n)}
    assert len(exported) > 400
    known = hook_table.symbols() | dict(hook_table.reviewed()).keys()
    assert exported - known == set()


def test_every_export_of_libnvidia_ml_is_hooked_or_reviewed(place):
    library = place.driver.libnvidia_ml
    exported = {n for n in elf.exported_functions(library) if re.match("nvml[A-Z]", n)}
    assert len(exported) > 200
    known = hook_table.symbols() | dict(hook_table.reviewed("nvml")).keys()
    assert exported - known == set()
