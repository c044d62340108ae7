"""A C program under `pyvgpu run`: linked to the driver, with dlopen, or cuGetProcAddress."""

from pathlib import Path

import programs
import pytest
from programs import LIBCUDA, LIBNVIDIA_ML

SOURCES = Path(__file__).parent / "programs"

CUDA = """\
devices 1
total 2147483648
whole 2147483648
available 1602224128
{start}unchanged 1
wrong 0
taken 1543503872
refused 2
left 58720256
beyond 2
{full}returned 1
{end}"""

# A context takes 520 MiB; at the refusal the program holds 1472 MiB more.
NVML = {
    "start": "nvml start 1 2147483648 545259520\n",
    "full": "nvml full 1 2147483648 2088763392\n",
    "end": "nvml end 1 2147483648 0\n",
}


def client(name, how, *options):
    return programs.build(name, (SOURCES / "client.c", SOURCES / f"{how}.c"), *options)


@pytest.mark.parametrize(
    ("name", "how", "options"),
    [
        pytest.param("linked", "linked", [LIBCUDA], id="linked"),
        pytest.param("opened", "opened", ["-ldl"], id="dlopen"),
        pytest.param("asked", "opened", ["-ldl", "-DASK_THE_DRIVER"], id="cuGetProcAddress"),
    ],
)
def test_cuda_program_computes_correctly_within_its_quota(held, name, how, options):
    assert held(client(name, how, *options)) == CUDA.format(start="", full="", end="")


@pytest.mark.parametrize(
    ("name", "how", "libraries"),
    [
        pytest.param("cuda-first", "linked", [LIBCUDA, LIBNVIDIA_ML], id="libcuda first"),
        pytest.param("nvml-first", "linked", [LIBNVIDIA_ML, LIBCUDA], id="libnvidia-ml first"),
        pytest.param("nvml-only", "opened", [LIBNVIDIA_ML, "-ldl"], id="libcuda by dlopen"),
    ],
)
def test_cuda_and_nvml_report_the_same_memory_in_one_program(held, name, how, libraries):
    program = client(name, how, "-DWITH_NVML", "-Wl,--no-as-needed", *libraries)
    assert held(program) == CUDA.format(**NVML)
