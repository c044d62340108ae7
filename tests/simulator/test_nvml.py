import re
import subprocess
import sys

import pytest
from machine_room import NVML_PRELUDE, ask, environment, holder, run

from pyvgpu.simulation import simulator

MIB = 1 << 20
GIB = 1 << 30

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 1, 2, 3, 4
NOT_FOUND, INSUFFICIENT_SIZE, DRIVER_NOT_LOADED, TIMEOUT = 6, 7, 9, 10
GPU_IS_LOST, VERSION_MISMATCH = 15, 25

FIRST = "N.nvmlInit(); d = N.nvmlDeviceGetHandleByIndex(0)\n"


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    return simulator.open_machine("h100:2,t4", tmp_path)


def test_nvml_shows_every_device_of_the_machine(machine):
    seen = ask(
        machine,
        """
N.nvmlInit()
devices = [N.nvmlDeviceGetHandleByIndex(i) for i in range(N.nvmlDeviceGetCount())]
answer([[N.nvmlDeviceGetIndex(d), N.nvmlDeviceGetName(d), N.nvmlDeviceGetUUID(d),
         N.nvmlDeviceGetSerial(d), N.nvmlDeviceGetPciInfo(d).busId,
         N.nvmlDeviceGetCudaComputeCapability(d), N.nvmlDeviceGetMinorNumber(d)]
        for d in devices])
""",
    )
    assert seen == [
        [
            index,
            device.name,
            device.uuid,
            device.serial,
            f"0000{device.pci.upper()}",
            [int(part) for part in device.compute_capability.split(".")],
            index,
        ]
        for index, device in enumerate(machine.devices)
    ]
    assert [row[1] for row in seen] == [
        "pyvgpu simulated H100",
        "pyvgpu simulated H100",
        "pyvgpu simulated T4",
    ]


def test_cuda_visible_devices_means_nothing_to_nvml(machine):
    script = NVML_PRELUDE + "N.nvmlInit(); answer(N.nvmlDeviceGetCount())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**environment(machine), "CUDA_VISIBLE_DEVICES": "0"},
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"3\n"


def test_releases_are_the_machines(machine):
    assert ask(
        machine,
        FIRST + "answer([N.nvmlSystemGetDriverVersion(), N.nvmlSystemGetCudaDriverVersion()])",
    ) == ["999.1", 13000]


def test_device_is_found_by_each_of_its_names(machine):
    device = machine.devices[1]
    found = ask(
        machine,
        FIRST
        + """
uuid, serial, pci = sys.argv[1:]
answer([N.nvmlDeviceGetIndex(h) for h in (
    N.nvmlDeviceGetHandleByUUID(uuid), N.nvmlDeviceGetHandleBySerial(serial),
    N.nvmlDeviceGetHandleByPciBusId(pci), N.nvmlDeviceGetHandleByPciBusId("0000" + pci.upper()),
    N.nvmlDeviceGetHandleByPciBusId(pci.partition(":")[2]))])
""",
        device.uuid,
        device.serial,
        device.pci,
    )
    assert found == [1, 1, 1, 1, 1]


def test_device_that_is_not_there_is_refused(machine):
    assert (
        ask(
            machine,
            FIRST
            + """
answer([code(N.nvmlDeviceGetHandleByIndex, 3),
        code(N.nvmlDeviceGetHandleByUUID, "GPU-0"),
        code(N.nvmlDeviceGetHandleBySerial, "1"),
        code(N.nvmlDeviceGetHandleByPciBusId, "0000:ff:00.0"),
        code(N.nvmlDeviceGetHandleByPciBusId, "bus"),
        code(N.nvmlDeviceGetName, ctypes.cast(ctypes.c_void_p(4096), N.c_nvmlDevice_t)),
        code(N.nvmlDeviceGetName, None)])
""",
        )
        == [INVALID_ARGUMENT, NOT_FOUND, NOT_FOUND, NOT_FOUND] + [INVALID_ARGUMENT] * 3
    )


def test_v1_memory_info_counts_reserved_memory_as_used(machine):
    device = machine.devices[0]
    seen = ask(
        machine,
        FIRST
        + """
old, new = N.nvmlDeviceGetMemoryInfo(d), N.nvmlDeviceGetMemoryInfo(d, N.nvmlMemory_v2)
answer([[m.total, m.used, m.free] for m in (old, new)] + [new.reserved])
""",
    )
    total = device.memory_bytes + device.reserved_bytes
    assert total == 81559 * MIB
    assert seen == [
        [total, device.reserved_bytes, device.memory_bytes],
        [total, 0, device.memory_bytes],
        device.reserved_bytes,
    ]


def test_wrong_structure_version_is_refused(machine):
    assert (
        ask(machine, FIRST + "answer(code(N.nvmlDeviceGetMemoryInfo, d, 0x03000028))")
        == VERSION_MISMATCH
    )


def test_process_is_listed_with_its_context_and_its_memory(machine):
    question = (
        FIRST
        + """
e = N.nvmlDeviceGetHandleByIndex(1)
answer([[[p.pid, p.usedGpuMemory] for p in list(x)] for x in (
    N.nvmlDeviceGetComputeRunningProcesses(d), N.nvmlDeviceGetComputeRunningProcesses(e),
    N.nvmlDeviceGetGraphicsRunningProcesses(e), N.nvmlDeviceGetMPSComputeRunningProcesses(e))]
    + [N.nvmlDeviceGetMemoryInfo(e, N.nvmlMemory_v2).used])
"""
    )
    with holder(machine, device=1, size=GIB) as held:
        memory = machine.devices[1].context_bytes + GIB
        assert ask(machine, question) == [[], [[held.pid, memory]], [], [], memory]
    assert ask(machine, question) == [[], [], [], [], 0]


def test_memory_and_process_of_a_killed_process_come_back(machine):
    with holder(machine, size=GIB) as held:
        held.kill()
        seen = ask(
            machine,
            FIRST
            + """
for _ in range(3000):
    seen = [len(N.nvmlDeviceGetComputeRunningProcesses(d)),
            N.nvmlDeviceGetMemoryInfo(d, N.nvmlMemory_v2).used]
    if seen == [0, 0]:
        break
    time.sleep(0.01)
answer(seen)
""",
        )
    assert seen == [0, 0]


def test_every_version_of_a_process_list_asks_for_room(machine):
    with holder(machine) as one, holder(machine) as two:
        seen = ask(
            machine,
            FIRST
            + """
lists = []
for suffix, words in (("", 2), ("_v2", 3), ("_v3", 3)):
    function = getattr(N.nvmlLib, "nvmlDeviceGetComputeRunningProcesses" + suffix)
    array = (ctypes.c_uint64 * (3 * words))()
    count, steps = ctypes.c_uint(0), []
    for capacity in (0, 1, 3):
        count.value = capacity
        steps.append([function(d, ctypes.byref(count), array), count.value])
    pids = sorted(array[i * words] & 0xffffffff for i in range(2))
    memory = [array[i * words + 1] for i in range(2)]
    lists.append([steps, pids, memory])
answer(lists)
""",
        )
        context = machine.devices[0].context_bytes
        expected = [
            [[INSUFFICIENT_SIZE, 2], [INSUFFICIENT_SIZE, 2], [0, 2]],
            sorted([one.pid, two.pid]),
            [context, context],
        ]
        assert seen == [expected] * 3


def test_work_shows_as_load_of_its_device_and_its_process(machine):
    with holder(machine, kernel_ns=60_000_000_000) as held, holder(machine):
        busy, idle, samples, without, after = ask(
            machine,
            FIRST
            + """
e = N.nvmlDeviceGetHandleByIndex(1)
samples = N.nvmlDeviceGetProcessUtilization(d, 0)
answer([N.nvmlDeviceGetUtilizationRates(d).gpu, N.nvmlDeviceGetUtilizationRates(e).gpu,
        [[s.pid, s.smUtil] for s in samples], code(N.nvmlDeviceGetProcessUtilization, e, 0),
        code(N.nvmlDeviceGetProcessUtilization, d, samples[0].timeStamp + 60_000_000)])
""",
        )
    assert 0 < busy <= 100
    assert idle == 0
    assert [pid for pid, _ in samples] == [held.pid]
    assert 0 < samples[0][1] <= 100
    assert without == NOT_FOUND
    assert after == NOT_FOUND


def test_calls_need_initialisation_and_shutdowns_are_counted(machine):
    assert ask(
        machine,
        """
N.nvmlInit(); N.nvmlInit()
d = N.nvmlDeviceGetHandleByIndex(0)
name = N.nvmlLib.nvmlDeviceGetName
text = ctypes.create_string_buffer(96)
codes = []
for step in (N.nvmlLib.nvmlShutdown, N.nvmlLib.nvmlShutdown, N.nvmlLib.nvmlShutdown,
             N.nvmlLib.nvmlInit_v2):
    codes.append([step(), name(d, text, 96)])
answer(codes)
""",
    ) == [[0, 0], [0, UNINITIALIZED], [UNINITIALIZED, UNINITIALIZED], [0, 0]]


def test_child_of_a_fork_goes_on(machine):
    with holder(machine, size=GIB):
        assert (
            ask(
                machine,
                FIRST
                + """
used = N.nvmlDeviceGetMemoryInfo(d, N.nvmlMemory_v2).used
child = os.fork()
if not child:
    same = N.nvmlDeviceGetMemoryInfo(d, N.nvmlMemory_v2).used == used
    N.nvmlInit(); N.nvmlShutdown(); N.nvmlDeviceGetUtilizationRates(d)
    os._exit(0 if same else 1)
answer(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
            )
            == 0
        )


def test_threads_get_the_same_answers(machine):
    with holder(machine, size=GIB, kernel_ns=60_000_000_000):
        assert ask(
            machine,
            FIRST
            + """
seen = []
def read_all():
    for _ in range(50):
        N.nvmlInit()
        seen.append((N.nvmlDeviceGetMemoryInfo(d, N.nvmlMemory_v2).used,
                     len(N.nvmlDeviceGetComputeRunningProcesses(d)),
                     N.nvmlDeviceGetName(d)))
        N.nvmlDeviceGetUtilizationRates(d)
        N.nvmlShutdown()
threads = [threading.Thread(target=read_all) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
answer([len(seen), len(set(seen))])
""",
        ) == [400, 1]


def test_nothing_can_be_set(machine):
    assert ask(
        machine,
        FIRST
        + """
answer([code(N.nvmlDeviceSetPersistenceMode, d, 1),
        code(N.nvmlDeviceSetPowerManagementLimit, d, 1),
        code(N.nvmlDeviceSetGpuLockedClocks, d, 1, 2), code(N.nvmlDeviceSetComputeMode, d, 1),
        code(N.nvmlDeviceSetFanSpeed_v2, d, 0, 50)])
""",
    ) == [NO_PERMISSION] * 4 + [NOT_SUPPORTED]


def test_mig_is_off_where_the_board_has_it(machine):
    assert ask(
        machine,
        FIRST
        + """
t4 = N.nvmlDeviceGetHandleByIndex(2)
answer([N.nvmlDeviceGetMigMode(d), code(N.nvmlDeviceGetMigMode, t4),
        N.nvmlDeviceIsMigDeviceHandle(d).value, N.nvmlDeviceGetMaxMigDeviceCount(d)])
""",
    ) == [[0, 0], NOT_SUPPORTED, 0, 0]


def test_a_fault_puts_one_device_into_mig_mode(machine):
    simulator.set_faults(machine, "mig 0")
    assert ask(
        machine,
        FIRST
        + """
other = N.nvmlDeviceGetHandleByIndex(1)
answer([N.nvmlDeviceGetMigMode(d), N.nvmlDeviceGetMigMode(other),
        N.nvmlDeviceGetMaxMigDeviceCount(d), code(N.nvmlDeviceGetMemoryInfo, d),
        code(N.nvmlDeviceGetMemoryInfo, d, N.nvmlMemory_v2), code(N.nvmlDeviceGetName, d)])
""",
    ) == [[1, 1], [0, 0], 7, NO_PERMISSION, NO_PERMISSION, 0]


def test_mig_mode_is_left_again(machine):
    simulator.set_faults(machine, "mig 0")
    simulator.set_faults(machine)
    assert ask(machine, FIRST + "answer(N.nvmlDeviceGetMigMode(d))") == [0, 0]


def test_neighbours_share_a_switch_and_nodes_are_far(tmp_path):
    machine = simulator.open_machine("h100:6", tmp_path)
    single, node, system = 10, 40, 50
    levels, nearest, links = ask(
        machine,
        """
N.nvmlInit()
h = [N.nvmlDeviceGetHandleByIndex(i) for i in range(6)]
answer([[N.nvmlDeviceGetTopologyCommonAncestor(h[0], x) for x in h[1:]],
        [N.nvmlDeviceGetIndex(x) for x in N.nvmlDeviceGetTopologyNearestGpus(h[0], 40)],
        [N.nvmlDeviceGetNvLinkState(h[0], i) for i in range(18)]])
""",
    )
    assert levels == [single, node, node, system, system]
    assert nearest == [2, 3]
    assert links == [1] * 18


def test_links_are_up_between_boards_of_a_kind(machine):
    assert ask(
        machine,
        FIRST
        + """
t4 = N.nvmlDeviceGetHandleByIndex(2)
answer([N.nvmlDeviceGetNvLinkState(d, 0), code(N.nvmlDeviceGetNvLinkState, t4, 0),
        code(N.nvmlDeviceGetNvLinkState, d, 18), code(N.nvmlDeviceGetNvLinkState, d, 36),
        N.nvmlDeviceGetP2PStatus(d, t4, N.NVML_P2P_CAPS_INDEX_NVLINK)])
""",
    ) == [1, NOT_SUPPORTED, NOT_SUPPORTED, INVALID_ARGUMENT, 5]


def test_power_fields_are_the_devices_and_not_the_modules(machine):
    seen = ask(
        machine,
        FIRST
        + """
instant, limit = N.NVML_FI_DEV_POWER_INSTANT, N.NVML_FI_DEV_POWER_MAX_LIMIT
answer([[v.nvmlReturn, v.value.uiVal] for v in N.nvmlDeviceGetFieldValues(
    d, [(instant, 0), (limit, 0), (instant, 1), (limit, 2), (9999, 0)])])
""",
    )
    assert [code for code, _ in seen] == [0, 0, NOT_SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED]
    assert seen[0][1] == 70_000  # idle: a tenth of the limit
    assert seen[1][1] == 700_000


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        pytest.param("call nvmlDeviceGetName 1 999", 999, id="call"),
        pytest.param("lost 0", GPU_IS_LOST, id="lost"),
    ],
)
def test_injected_fault_happens(machine, fault, code):
    simulator.set_faults(machine, fault)
    assert ask(machine, FIRST + "answer(code(N.nvmlDeviceGetName, d))") == code


def test_other_devices_stay_when_one_is_lost(machine):
    simulator.set_faults(machine, "lost 0")
    assert ask(
        machine,
        FIRST + "answer([N.nvmlDeviceGetCount(), "
        "code(N.nvmlDeviceGetName, N.nvmlDeviceGetHandleByIndex(1))])",
    ) == [3, 0]


def test_xid_reaches_waiters_of_its_device(machine):
    script = (
        NVML_PRELUDE
        + FIRST
        + """
def register(*indexes):
    events = N.nvmlEventSetCreate()
    for index in indexes:
        N.nvmlDeviceRegisterEvents(N.nvmlDeviceGetHandleByIndex(index),
                                   N.nvmlEventTypeXidCriticalError, events)
    return events
both, other = register(0, 1), register(1)
late = N.nvmlEventSetCreate()
print("registered", flush=True)
sys.stdin.readline()
seen = []
for _ in range(2):
    event = N.nvmlEventSetWait_v2(both, 20000)
    seen.append([N.nvmlDeviceGetIndex(event.device), event.eventType, event.eventData])
N.nvmlDeviceRegisterEvents(d, N.nvmlEventTypeXidCriticalError, late)
answer([seen, code(N.nvmlEventSetWait_v2, both, 1), code(N.nvmlEventSetWait_v2, other, 20000),
        code(N.nvmlEventSetWait_v2, late, 1)])
"""
    )
    simulator.set_faults(machine, "xid 0 13")
    waiter = subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment(machine),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert waiter.stdout.readline() == "registered\n"
    simulator.set_faults(machine, "xid 0 79", "xid 1 48")
    text, _ = waiter.communicate("\n", timeout=60)
    assert text == f"[[[0, 8, 79], [1, 8, 48]], {TIMEOUT}, 0, {TIMEOUT}]\n"


def test_without_a_machine_one_line_says_what_to_set(machine):
    variables = environment(machine)
    del variables[simulator.MACHINE_VARIABLE]
    done = subprocess.run(
        [sys.executable, "-c", NVML_PRELUDE + "answer(code(N.nvmlInit))"],
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{DRIVER_NOT_LOADED}\n"
    assert re.fullmatch(r".*PYVGPU_SIMULATED_MACHINE.*\n", done.stderr)


def test_private_table_is_known_by_its_one_name(machine):
    assert ask(
        machine,
        """
table = ctypes.c_void_p()
get = ctypes.CDLL("libnvidia-ml.so.1").nvmlInternalGetExportTable
known = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4")
answer([get(ctypes.byref(table), known),
        ctypes.c_uint64.from_address(table.value or ctypes.addressof(table)).value,
        get(ctypes.byref(table), bytes(16))])
""",
    ) == [0, 2008, INVALID_ARGUMENT]


def test_each_result_has_words_of_its_own(machine):
    words = ask(
        machine,
        """
text = ctypes.CDLL("libnvidia-ml.so.1").nvmlErrorString
text.restype = ctypes.c_char_p
answer([text(i).decode() for i in (*range(31), 999)])
""",
    )
    assert len(set(words)) == 32


def test_nvitop_shows_process_and_memory(machine):
    with holder(machine, device=1, size=GIB) as held:
        text = run(machine, sys.executable, "-m", "nvitop", "--once", "--ascii")
    memory = machine.devices[1].context_bytes // MIB + 1024
    assert re.search(rf"\|\s+1\s+{held.pid} C\s+\S+\s+{memory}MiB", text)
    assert f"{memory}MiB / 79.65GiB" in text


def test_reading_nvml_makes_no_process_of_the_machine(machine):
    ask(machine, FIRST + "answer(len(N.nvmlDeviceGetComputeRunningProcesses(d)))")
    assert not simulator.in_use(machine.folder)
    with holder(machine):
        assert simulator.in_use(machine.folder)
