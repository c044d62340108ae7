"""Visible devices of a process, and their properties."""

import uuid

import pytest
from shim_room import ask_bare

from pyvgpu.simulation import simulator

OK, INVALID_VALUE, NOT_INITIALIZED, NO_DEVICE, INVALID_DEVICE = 0, 1, 3, 100, 101

SEEN = """
if len(sys.argv) > 1:
    os.environ["CUDA_VISIBLE_DEVICES"] = sys.argv[1]
result, count, seen = cuda.cuInit(0), INT(), []
if not result:
    check(cuda.cuDeviceGetCount(byref(count)))
    for ordinal in range(count.value):
        number = INT()
        check(cuda.cuDeviceGetAttribute(byref(number), 33, ordinal))
        seen.append(number.value)
answer([result, seen])
"""


@pytest.fixture(scope="module", name="machine")
def fixture_machine(tmp_path_factory):
    return simulator.open_machine("h100:2,t4", tmp_path_factory.mktemp("machines"))


def buses(machine):
    return [int(device.pci.split(":")[1], 16) for device in machine.devices]


def test_without_the_variable_every_device_is_seen_in_order(machine):
    assert ask_bare(machine, SEEN) == [OK, buses(machine)]


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        pytest.param("0", [0], id="one"),
        pytest.param("2,0", [2, 0], id="in the order of the list"),
        pytest.param(" 1 , 2 ", [1, 2], id="spaces"),
        pytest.param("1,3,0", [1], id="ends at one that is not there"),
        pytest.param("1,-1,0", [1], id="ends at a negative one"),
        pytest.param("1,x,0", [1], id="ends at a word"),
        pytest.param("1,,0", [1], id="ends at nothing"),
        pytest.param("1x", [], id="a number and more"),
        pytest.param("", [], id="empty"),
        pytest.param("-1", [], id="the usual way to say none"),
        pytest.param("0,1,0", [], id="twice the same"),
        pytest.param("GPU-", [], id="several begin so"),
        pytest.param("GPU-zzz", [], id="none begins so"),
        pytest.param("MIG-0", [], id="no MIG here"),
    ],
)
def test_the_variable_chooses_by_index(machine, visible, seen):
    expected = [buses(machine)[index] for index in seen]
    assert ask_bare(machine, SEEN, visible) == [OK if seen else NO_DEVICE, expected]


def test_the_variable_chooses_by_uuid_and_by_its_beginning(machine):
    whole, beginning = machine.devices[2].uuid, machine.devices[0].uuid[:14]
    assert ask_bare(machine, SEEN, f"{whole},{beginning}") == [
        OK,
        [buses(machine)[2], buses(machine)[0]],
    ]
    assert ask_bare(machine, SEEN, f"{whole},2") == [NO_DEVICE, []]


def test_first_cuinit_fixes_the_visible_devices(machine):
    answer = ask_bare(
        machine,
        "os.environ['CUDA_VISIBLE_DEVICES'] = '2'; first = cuda.cuInit(0);"
        "os.environ['CUDA_VISIBLE_DEVICES'] = '0,1,2'; second = cuda.cuInit(0);"
        "n = INT(); check(cuda.cuDeviceGetCount(byref(n))); answer([first, second, n.value])",
    )
    assert answer == [OK, OK, 1]


def test_no_machine_is_no_device_and_one_line_says_what_to_set(machine):
    answer = ask_bare(
        machine,
        """
import subprocess
kept = {k: v for k, v in os.environ.items() if k != "PYVGPU_SIMULATED_MACHINE"}
program = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
done = subprocess.run([sys.executable, "-c", program], env=kept, capture_output=True, text=True)
answer([done.stdout, done.stderr.splitlines()])
""",
    )
    assert answer[0] == "100\n"
    assert len(answer[1]) == 1
    assert "PYVGPU_SIMULATED_MACHINE" in answer[1][0]


def test_cuinit_takes_no_flags(machine):
    assert ask_bare(machine, "answer([cuda.cuInit(1), cuda.cuInit(0)])") == [INVALID_VALUE, OK]


def test_before_cuinit_only_the_version_is_available(machine):
    answer = ask_bare(
        machine,
        "n = INT(); answer([cuda.cuDeviceGetCount(byref(n)), cuda.cuCtxGetCurrent(byref(P())),"
        "cuda.cuDriverGetVersion(byref(n)), n.value])",
    )
    assert answer == [NOT_INITIALIZED, NOT_INITIALIZED, OK, 13000]


def test_fault_can_be_injected_into_cuinit(tmp_path):
    machine = simulator.open_machine("h100", tmp_path)
    simulator.set_faults(machine, "call cuInit 2 999")
    assert ask_bare(machine, "answer([cuda.cuInit(0) for _ in range(3)])") == [OK, 999, OK]


def test_calls_can_be_recorded(tmp_path):
    machine = simulator.open_machine("h100", tmp_path)
    simulator.set_faults(machine, "record")
    ask_bare(machine, "n = INT(); answer([cuda.cuInit(0), cuda.cuDeviceGetCount(byref(n))])")
    assert (machine.folder / "calls").read_text() == "cuInit\ncuDeviceGetCount\n"


def test_identity_is_the_machines(machine):
    answer = ask_bare(
        machine,
        """
check(cuda.cuInit(0))
found = []
for ordinal in range(3):
    name, bus, old, new = (ctypes.create_string_buffer(n) for n in (100, 20, 16, 16))
    by_bus = INT(-1)
    check(cuda.cuDeviceGetName(name, 100, ordinal))
    check(cuda.cuDeviceGetPCIBusId(bus, 20, ordinal))
    check(cuda.cuDeviceGetUuid(old, ordinal))
    check(cuda.cuDeviceGetUuid_v2(new, ordinal))
    check(cuda.cuDeviceGetByPCIBusId(byref(by_bus), bus))
    found.append([name.value.decode(), bus.value.decode(), old.raw.hex(), new.raw.hex(),
                  by_bus.value])
answer(found)
""",
    )
    assert answer == [
        [
            device.name,
            device.pci.upper(),
            uuid.UUID(device.uuid[4:]).hex,
            uuid.UUID(device.uuid[4:]).hex,
            ordinal,
        ]
        for ordinal, device in enumerate(machine.devices)
    ]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        pytest.param("{pci}", OK, id="whole"),
        pytest.param("{short}", OK, id="without domain"),
        pytest.param("0000:ff:1f.0", INVALID_DEVICE, id="nothing there"),
        pytest.param("gpu0", INVALID_VALUE, id="no address"),
        pytest.param("{pci}x", INVALID_VALUE, id="more than an address"),
    ],
)
def test_a_device_is_found_by_its_pci_address(machine, text, result):
    pci = machine.devices[1].pci
    address = text.format(pci=pci, short=pci.partition(":")[2])
    answer = ask_bare(
        machine,
        "check(cuda.cuInit(0)); d = INT(-1);"
        "answer([cuda.cuDeviceGetByPCIBusId(byref(d), sys.argv[1].encode()), d.value])",
        address,
    )
    assert answer == [result, 1 if result == OK else -1]


def test_every_attribute_succeeds(machine):
    answer = ask_bare(
        machine,
        "check(cuda.cuInit(0)); v = INT();"
        "answer(sorted({cuda.cuDeviceGetAttribute(byref(v), n, 0) for n in range(1, 401)}))",
    )
    assert answer == [OK]


@pytest.mark.parametrize(
    ("attribute", "h100", "t4"),
    [
        pytest.param(1, 1024, 1024, id="threads of a block"),
        pytest.param(8, 49152, 49152, id="shared memory of a block"),
        pytest.param(10, 32, 32, id="warp"),
        pytest.param(16, 132, 40, id="SMs"),
        pytest.param(37, 5120, 256, id="memory bus"),
        pytest.param(39, 2048, 1024, id="threads of an SM"),
        pytest.param(41, 1, 1, id="unified addresses"),
        pytest.param(75, 9, 7, id="capability, major"),
        pytest.param(76, 0, 5, id="capability, minor"),
        pytest.param(97, 232448, 65536, id="shared memory of a block that asks for it"),
        pytest.param(102, 1, 1, id="virtual memory management"),
        pytest.param(115, 1, 1, id="pools"),
        pytest.param(120, 1, 0, id="clusters"),
    ],
)
def test_attributes_that_matter_are_the_models(machine, attribute, h100, t4):
    answer = ask_bare(
        machine,
        "check(cuda.cuInit(0)); a, b = INT(), INT(); n = int(sys.argv[1]);"
        "check(cuda.cuDeviceGetAttribute(byref(a), n, 0));"
        "check(cuda.cuDeviceGetAttribute(byref(b), n, 2)); answer([a.value, b.value])",
        attribute,
    )
    assert answer == [h100, t4]


@pytest.mark.parametrize(
    ("call", "result"),
    [
        pytest.param("cuDeviceGet(byref(INT()), 3)", INVALID_DEVICE, id="ordinal too high"),
        pytest.param("cuDeviceGet(byref(INT()), -1)", INVALID_DEVICE, id="negative ordinal"),
        pytest.param("cuDeviceGet(None, 0)", INVALID_VALUE, id="nowhere to put it"),
        pytest.param("cuDeviceGetName(None, 10, 0)", INVALID_VALUE, id="no name"),
        pytest.param("cuDeviceGetUuid_v2(None, 0)", INVALID_VALUE, id="no UUID"),
        pytest.param("cuDeviceGetAttribute(None, 1, 0)", INVALID_VALUE, id="no value"),
        pytest.param("cuDeviceGetAttribute(byref(INT()), 1, 9)", INVALID_DEVICE, id="no device"),
        pytest.param("cuDeviceGetLuid(bytes(8), byref(UINT()), 0)", 801, id="LUID"),
    ],
)
def test_invalid_queries_are_refused(machine, call, result):
    assert ask_bare(machine, f"check(cuda.cuInit(0)); answer(cuda.{call})") == result


def test_errors_have_names_and_words(machine):
    answer = ask_bare(
        machine,
        """
found = []
for code in (0, 2, 100, 12345):
    name, words = ctypes.c_char_p(), ctypes.c_char_p()
    results = [cuda.cuGetErrorName(code, byref(name)), cuda.cuGetErrorString(code, byref(words))]
    texts = [(text.value or b"-").decode() for text in (name, words)]
    found.append(results + texts)
answer(found)
""",
    )
    assert answer == [
        [0, 0, "CUDA_SUCCESS", "no error"],
        [0, 0, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"],
        [0, 0, "CUDA_ERROR_NO_DEVICE", "no device"],
        [1, 1, "-", "-"],
    ]
