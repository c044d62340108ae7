"""cuGetProcAddress; the rows are the results of NVIDIA's library 550.163.01."""

import pytest
from shim_room import ask_bare

from pyvgpu.simulation import simulator

FOUND, NOT_FOUND, TOO_OLD = 0, 1, 2
DEFAULT, LEGACY, PER_THREAD, BOTH = 0, 1, 2, 3

LOOKUP = """
name, version, flags, symbol = (
    sys.argv[1].encode(), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
found, status = P(0xdead), INT(77)
result = cuda.cuGetProcAddress_v2(name, byref(found), version, U64(flags), byref(status))
expected = ctypes.cast(getattr(cuda, symbol), P).value if symbol else None
answer([result, status.value, found.value == expected])
"""


@pytest.fixture(scope="module", name="machine")
def fixture_machine(tmp_path_factory):
    return simulator.open_machine("h100", tmp_path_factory.mktemp("machines"))


@pytest.mark.parametrize(
    ("name", "version", "flags", "symbol", "status"),
    [
        pytest.param("cuMemAlloc", 2000, 0, "cuMemAlloc", FOUND, id="32 bits before 3.2"),
        pytest.param("cuMemAlloc", 3020, 0, "cuMemAlloc_v2", FOUND, id="64 bits from 3.2"),
        pytest.param("cuMemAlloc", 1000, 0, "", TOO_OLD, id="before it was introduced"),
        pytest.param("cuMemAlloc", -1, 0, "cuMemAlloc_v2", FOUND, id="versions are unsigned"),
        pytest.param("cuMemAlloc", 99999, 0, "cuMemAlloc_v2", FOUND, id="newer than the driver"),
        pytest.param("cuMemAlloc", 12000, BOTH, "cuMemAlloc_v2", FOUND, id="both flags"),
        pytest.param("cuMemAlloc_v2", 12000, 0, "", NOT_FOUND, id="not a base name"),
        pytest.param("cuMemcpy_ptds", 12000, 0, "", NOT_FOUND, id="a suffix is no base name"),
        pytest.param("nosuch", 12000, 0, "", NOT_FOUND, id="no such name"),
        pytest.param("", 12000, 0, "", NOT_FOUND, id="no name"),
        pytest.param(
            "cuMemcpyHtoD", 7000, PER_THREAD, "cuMemcpyHtoD_v2_ptds", FOUND, id="per thread"
        ),
        pytest.param("cuMemcpyHtoD", 7000, LEGACY, "cuMemcpyHtoD_v2", FOUND, id="legacy"),
        pytest.param("cuMemcpyHtoD", 7000, DEFAULT, "cuMemcpyHtoD_v2", FOUND, id="by default"),
        pytest.param("cuMemcpyHtoD", 6000, PER_THREAD, "", TOO_OLD, id="per thread before 7.0"),
        pytest.param("cuInit", 12000, PER_THREAD, "cuInit", FOUND, id="has no form per thread"),
        pytest.param("cuGetProcAddress", 11030, 0, "cuGetProcAddress", FOUND, id="4 arguments"),
        pytest.param("cuGetProcAddress", 11080, 0, "cuGetProcAddress", FOUND, id="still 4"),
        pytest.param("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2", FOUND, id="5 arguments"),
        pytest.param("cuGraphInstantiate", 10000, 0, "cuGraphInstantiate", FOUND, id="graph 10"),
        pytest.param(
            "cuGraphInstantiate", 12000, 0, "cuGraphInstantiate_v2", FOUND, id="graph from 11"
        ),
        pytest.param("cuCtxCreate", 11040, 0, "cuCtxCreate_v3", FOUND, id="context of 11.4"),
        pytest.param("cuCtxCreate", 12050, 0, "cuCtxCreate_v4", FOUND, id="context of 12.5"),
        pytest.param("cuMemAdvise", 12010, 0, "cuMemAdvise", FOUND, id="advice before 12.2"),
        pytest.param("cuMemAdvise", 12020, 0, "cuMemAdvise_v2", FOUND, id="advice from 12.2"),
        pytest.param("cuEventElapsedTime", 12080, 0, "cuEventElapsedTime_v2", FOUND, id="12.8"),
        pytest.param("cuProfilerStart", 12000, 0, "cuProfilerStart", FOUND, id="profiler"),
        pytest.param(
            "cuStreamGetCaptureInfo", 11030, PER_THREAD, "cuStreamGetCaptureInfo_v2_ptsz", FOUND,
            id="a version and per thread",
        ),
    ],
)  # fmt: skip
def test_a_base_name_gives_the_entry_of_its_version(machine, name, version, flags, symbol, status):
    found = ask_bare(machine, LOOKUP, name, version, flags, symbol)
    assert found == [0, status, True]


def test_the_first_form_misses_with_an_error_and_leaves_the_pointer(machine):
    answer = ask_bare(
        machine,
        "p = P(0xdead); first = cuda.cuGetProcAddress(b'nosuch', byref(p), 12000, U64(0));"
        "left = p.value;"
        "second = cuda.cuGetProcAddress(b'cuInit', byref(p), 12000, U64(0));"
        "answer([first, left, second, p.value == ctypes.cast(cuda.cuInit, P).value])",
    )
    assert answer == [500, 0xDEAD, 0, True]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("None, byref(P()), 12000, U64(0), byref(INT())", id="no name"),
        pytest.param("b'cuInit', None, 12000, U64(0), byref(INT())", id="nowhere to put it"),
        pytest.param("b'cuInit', byref(P()), 12000, U64(4), byref(INT())", id="unknown flag"),
    ],
)
def test_bad_arguments_are_refused(machine, call):
    assert ask_bare(machine, f"answer(cuda.cuGetProcAddress_v2({call}))") == 1


def test_a_driver_has_no_names_that_came_after_it(tmp_path):
    machine = simulator.open_machine("h100", tmp_path)
    conf = machine.folder / "machine.conf"
    conf.write_text(conf.read_text().replace("cuda_version=13000", "cuda_version=12040"))
    assert ask_bare(machine, LOOKUP, "cuCtxCreate", 13000, 0, "cuCtxCreate_v3") == [0, 0, True]
    assert ask_bare(machine, LOOKUP, "cuStreamGetDevice", 13000, 0, "") == [0, NOT_FOUND, True]
