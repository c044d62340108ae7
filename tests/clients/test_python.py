"""NVIDIA's Python libraries and numba under `pyvgpu run`."""

import json
import sys

import pytest
import python_clients

GIB = 1 << 30
# A quota of 2 GiB of which a context takes 520 MiB.
TOTAL, FREE = 2147483648, 1602224128
REFUSED = "CUDA_ERROR_OUT_OF_MEMORY"


def python(held, source, *arguments):
    return json.loads(held(sys.executable, "-W", "ignore", "-c", source, *arguments))


@pytest.mark.parametrize(
    ("size", "answers", "charged"),
    [
        pytest.param(736 << 20, ["CUDA_SUCCESS", "CUDA_SUCCESS"], 1472 << 20, id="both fit"),
        pytest.param(800 << 20, ["CUDA_SUCCESS", REFUSED], 800 << 20, id="one fits"),
        pytest.param(FREE + 1, [REFUSED, REFUSED], 0, id="past the quota"),
    ],
)
def test_cuda_bindings_copies_correctly_within_its_quota(held, size, answers, charged):
    assert python(held, python_clients.BINDINGS_MEMORY, size) == [
        [1, TOTAL, FREE, TOTAL],
        True,
        answers,
        charged,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["CUBIN", "PTX"])
def test_nvrtc_kernels_load_and_compute_correctly(held, kind):
    assert python(held, python_clients.BINDINGS_KERNELS, kind) == [
        [[0, 8], [8, 4], [12, 4]],
        True,
        [[1.5], [2.25], [3.75], [3.75]],
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "answer"),
    [
        pytest.param(GIB, "allocated", id="within the quota"),
        pytest.param(2 * GIB, REFUSED, id="past the quota"),
    ],
)
def test_numba_computes_correctly_within_its_quota(held, size, answer):
    assert python(held, python_clients.NUMBA, size) == [
        "pyvgpu simulated H100",
        TOTAL,
        FREE,
        True,
        answer,
    ]
