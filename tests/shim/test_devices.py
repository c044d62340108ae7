"""The quota's devices and no others, in CUDA and in NVML."""

import json

import pytest
from shim_room import GIB, ask_bare

from pyvgpu.simulation import simulator

SEEN = """
count = INT()
result = cuda.cuInit(0)
uuids = []
if result == 0:
    check(cuda.cuDeviceGetCount(byref(count)))
    for ordinal in range(count.value):
        raw = (ctypes.c_ubyte * 16)()
        check(cuda.cuDeviceGetUuid(raw, ordinal))
        uuids.append(bytes(raw).hex())
answer([result, uuids, os.environ.get("CUDA_VISIBLE_DEVICES")])
"""

NVML = """
import pynvml
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
"""


def raw(machine, *ordinals):
    return [machine.devices[i].uuid.removeprefix("GPU-").replace("-", "") for i in ordinals]


@pytest.fixture
def four(tmp_path):
    return simulator.open_machine("h100:4", root=tmp_path / "machines")


def rows(machine):
    last = machine.devices[3].uuid
    return {
        None: (0, [3, 1]),
        "0": (0, [3]),
        "1": (0, [1]),
        "1,0": (0, [1, 3]),
        "0,2": (0, [3]),
        "2": (100, []),
        "": (100, []),
        "-1": (100, []),
        "0,0": (100, []),
        last: (0, [3]),
        last[:10]: (0, [3]),
        machine.devices[0].uuid: (100, []),
    }


def test_cuda_sees_the_quotas_devices_in_the_requested_order(four, make_room):
    room = make_room(four, ordinals=(3, 1))
    for asked, (code, ordinals) in rows(four).items():
        env = {} if asked is None else {"CUDA_VISIBLE_DEVICES": asked}
        expected = [code, raw(four, *ordinals), asked]
        assert room.ask(SEEN, env=env) == expected, f"CUDA_VISIBLE_DEVICES={asked}"


def test_each_device_has_a_limit_of_its_own(four, make_room):
    room = make_room(four, ordinals=(2, 0), vmemory=1 * GIB)
    with room.start("""
results = []
for ordinal in (0, 1):
    context(ordinal)
    whole = available()
    results.append([alloc(whole)[0], alloc(512)[0], info()[1]])
answer(results)
sys.stdin.readline()
""") as program:
        assert json.loads(program.stdout.readline()) == [[0, 2, GIB], [0, 2, GIB]]
        assert room.usage().charged[:3] == (GIB, GIB, 0)
        program.kill()


def test_nvml_sees_the_quotas_devices_only(four, make_room):
    room = make_room(four, ordinals=(2, 0))
    answer = room.ask(
        NVML
        + """
def by(function, value):
    try:
        return pynvml.nvmlDeviceGetUUID(function(value))
    except pynvml.NVMLError as error:
        return error.value
uuids = json.loads(sys.argv[1])
busids = json.loads(sys.argv[2])
answer({
    "uuids": [pynvml.nvmlDeviceGetUUID(h) for h in handles],
    "indexes": [pynvml.nvmlDeviceGetIndex(h) for h in handles],
    "by uuid": [by(pynvml.nvmlDeviceGetHandleByUUID, u) for u in uuids],
    "by bus": [by(pynvml.nvmlDeviceGetHandleByPciBusId, b) for b in busids],
    "third": by(pynvml.nvmlDeviceGetHandleByIndex, 2),
    "memory": [(m.total, m.used, m.free) for m in map(pynvml.nvmlDeviceGetMemoryInfo, handles)],
})
""",
        json.dumps([d.uuid for d in four.devices]),
        json.dumps(
            ask_bare(
                four,
                NVML
                + """
answer([pynvml.nvmlDeviceGetPciInfo(h).busId for h in handles])
""",
            )
        ),
    )
    uuids = [each.uuid for each in four.devices]
    assert answer["uuids"] == [uuids[2], uuids[0]]
    assert answer["indexes"] == [0, 1]
    assert answer["by uuid"] == [uuids[0], 6, uuids[2], 6]
    assert answer["by bus"] == [uuids[0], 6, uuids[2], 6]
    assert answer["third"] == 2
    assert answer["memory"] == [[2 * GIB, 0, 2 * GIB]] * 2


def test_nvml_ignores_CUDA_VISIBLE_DEVICES(four, make_room):
    room = make_room(four, ordinals=(2, 0))
    count = room.ask(NVML + "answer(len(handles))", env={"CUDA_VISIBLE_DEVICES": "1"})
    assert count == 2


def test_nvml_memory_is_the_containers(room):
    answer = room.ask(
        NVML
        + """
context()
check(alloc(256 * MIB)[0])
one = pynvml.nvmlDeviceGetMemoryInfo(handles[0])
two = pynvml.nvmlDeviceGetMemoryInfo(handles[0], version=pynvml.nvmlMemory_v2)
answer([[m.total, m.used, m.free] for m in (one, two)] + [two.reserved])
"""
    )
    used = room.reserve + 256 * (1 << 20)
    assert answer == [[2 * GIB, used, 2 * GIB - used]] * 2 + [0]


def test_nvml_init_and_shutdown_are_counted(room):
    answer = room.ask("""
import pynvml
pynvml.nvmlInit(); pynvml.nvmlInit(); pynvml.nvmlShutdown()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
total = pynvml.nvmlDeviceGetMemoryInfo(handle).total
pynvml.nvmlShutdown()
try:
    pynvml.nvmlDeviceGetCount()
    code = 0
except pynvml.NVMLError as error:
    code = error.value
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
answer([total, code, pynvml.nvmlDeviceGetMemoryInfo(handle).total])
""")
    assert answer == [2 * GIB, 1, 2 * GIB]
