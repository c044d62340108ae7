"""MIG of the simulated driver: profiles, placements, instances, and programs on them."""

import json
import re
import sys

import pytest
from machine_room import ask, holder, run

from pyvgpu import errors
from pyvgpu.simulation import machines, mig, simulator

MIB = 1 << 20
INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, IN_USE, INSUFFICIENT_RESOURCES = 2, 3, 6, 19, 23

FIRST = """
N.nvmlInit(); d = N.nvmlDeviceGetHandleByIndex(0)
def cut(profile, start=None):
    if start is None:
        return N.nvmlDeviceCreateGpuInstance(d, profile)
    made = placement(start)
    return N.nvmlDeviceCreateGpuInstanceWithPlacement(d, profile, ctypes.byref(made))
def placement(start):
    made = N.c_nvmlGpuInstancePlacement_t()
    made.start, made.size = start, 0
    return made
def fill(instance, profile):
    return N.nvmlGpuInstanceCreateComputeInstance(instance, profile)
def place(instance):
    info = N.nvmlGpuInstanceGetInfo(instance)
    return [info.id, info.placement.start, info.placement.size]
def devices():
    found = []
    for index in range(N.nvmlDeviceGetMaxMigDeviceCount(d)):
        try:
            found.append(N.nvmlDeviceGetMigDeviceHandleByIndex(d, index))
        except N.NVMLError_NotFound:
            continue
    return found
def left(profile):
    return N.nvmlDeviceGetGpuInstanceRemainingCapacity(d, profile)
"""

CUDA = """
import ctypes, json, uuid
cuda = ctypes.CDLL("libcuda.so.1")
def check(result):
    if result:
        print(json.dumps(result))
        raise SystemExit
check(cuda.cuInit(0))
count, sms, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
raw, old, name = (ctypes.c_ubyte * 16)(), (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(99)
check(cuda.cuDeviceGetCount(ctypes.byref(count)))
check(cuda.cuDeviceGetName(name, 99, 0))
check(cuda.cuDeviceGetAttribute(ctypes.byref(sms), 16, 0))
check(cuda.cuDeviceTotalMem_v2(ctypes.byref(size), 0))
check(cuda.cuDeviceGetUuid_v2(raw, 0))
check(cuda.cuDeviceGetUuid(old, 0))
print(json.dumps([count.value, name.value.decode(), sms.value, size.value,
                  str(uuid.UUID(bytes=bytes(raw))), str(uuid.UUID(bytes=bytes(old)))]))
"""


HOLD = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert not cuda.cuInit(0)
assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxSetCurrent(context)
print(json.dumps([cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
                  for size in SIZES]))
"""


def cuda(machine):
    return json.loads(run(machine, sys.executable, "-c", CUDA))


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    return simulator.open_machine("h100:mig=3g.40gb+2g.20gb+1g.10gb,t4", tmp_path)


@pytest.fixture(name="empty")
def fixture_empty(tmp_path):
    return simulator.open_machine("h100:mig=none", tmp_path)


@pytest.mark.parametrize("model", mig.PROFILES)
def test_profiles_are_those_of_the_published_tables(tmp_path, model):
    machine = simulator.open_machine(model, tmp_path)
    seen = ask(
        machine,
        FIRST
        + """
found = []
for number in range(N.NVML_GPU_INSTANCE_PROFILE_COUNT):
    try:
        info = N.nvmlDeviceGetGpuInstanceProfileInfo(d, number, version=2)
    except N.NVMLError_NotSupported:
        continue
    found.append([info.name, info.id, info.memorySizeMB, info.multiprocessorCount,
                  info.instanceCount, info.sliceCount, left(info.id)])
answer([found, code(N.nvmlDeviceGetGpuInstanceProfileInfo, d, 99)])
""",
    )
    expected = [
        [f"MIG {each.name}", each.id, each.memory_mib, each.sms, each.most, each.slices]
        for each in sorted(mig.profiles(model), key=lambda each: each.number)
    ]
    assert [row[:6] for row in seen[0]] == expected
    assert all(row[6] == row[4] for row in seen[0]), "an empty device has room for the most"
    assert seen[1] == INVALID_ARGUMENT


def test_instances_of_the_specification_are_there(machine):
    state = simulator.mig_state(machine)
    seen = ask(
        machine,
        FIRST
        + """
def number(found):
    return getattr(found, "value", found)
def describe(mig):
    attributes = N.nvmlDeviceGetAttributes_v2(mig)
    memory = N.nvmlDeviceGetMemoryInfo(mig)
    return [N.nvmlDeviceGetUUID(mig), N.nvmlDeviceGetName(mig), N.nvmlDeviceGetIndex(mig),
            number(N.nvmlDeviceGetGpuInstanceId(mig)),
            number(N.nvmlDeviceGetComputeInstanceId(mig)),
            attributes.multiprocessorCount, attributes.memorySizeMB, memory.total,
            number(N.nvmlDeviceIsMigDeviceHandle(mig)),
            N.nvmlDeviceGetUUID(N.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig))]
answer([N.nvmlDeviceGetMigMode(d), [describe(mig) for mig in devices()],
        number(N.nvmlDeviceIsMigDeviceHandle(d)), code(N.nvmlDeviceGetGpuInstanceId, d),
        code(N.nvmlDeviceGetUtilizationRates, d),
        code(N.nvmlDeviceGetUtilizationRates, devices()[0]),
        code(N.nvmlDeviceGetMigMode, N.nvmlDeviceGetHandleByIndex(1))])
""",
    )
    parent = machine.devices[0]
    assert seen[0] == [1, 1]
    assert seen[1] == [
        [
            found.uuid,
            f"{parent.name} MIG {found.profile}",
            index,
            found.gpu_instance,
            found.compute_instance,
            found.sm_count,
            found.memory_bytes // MIB,
            found.memory_bytes,
            1,
            parent.uuid,
        ]
        for index, found in enumerate(state.instances)
    ]
    assert [found.profile for found in state.instances] == ["3g.40gb", "2g.20gb", "1g.10gb"]
    assert seen[2:] == [0, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED]


def test_device_is_found_by_both_forms_of_its_uuid(machine):
    found = simulator.mig_state(machine).instances[1]
    old = f"MIG-{machine.devices[0].uuid}/{found.gpu_instance}/{found.compute_instance}"
    assert ask(
        machine,
        FIRST
        + """
answer([N.nvmlDeviceGetUUID(N.nvmlDeviceGetHandleByUUID(uuid)) for uuid in sys.argv[1:]])
""",
        found.uuid,
        old,
    ) == [found.uuid, found.uuid]


def test_program_sees_one_instance_by_its_uuid(machine, monkeypatch):
    for found in simulator.mig_state(machine).instances:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", found.uuid)
        assert cuda(machine) == [
            1,
            f"{machine.devices[0].name} MIG {found.profile}",
            found.sm_count,
            found.memory_bytes,
            found.uuid.removeprefix("MIG-"),
            machine.devices[0].uuid.removeprefix("GPU-"),
        ]


def test_first_instance_hides_everything_else(machine, monkeypatch):
    first, second, _ = simulator.mig_state(machine).instances
    for asked, seen in (
        (f"{second.uuid},{first.uuid}", second),
        (f"{machine.devices[1].uuid},{second.uuid}", second),
        ("0", first),
        (second.uuid[:12], second),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", asked)
        assert cuda(machine)[:2] == [1, f"{machine.devices[0].name} MIG {seen.profile}"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", machine.devices[1].uuid)
    assert cuda(machine)[1] == machine.devices[1].name


def test_device_without_instances_has_nothing_for_programs(empty):
    assert cuda(empty) == 100


def test_memory_of_one_instance_is_not_another_s(machine, monkeypatch):
    first, second, _ = simulator.mig_state(machine).instances
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", second.uuid)
    context = machine.devices[0].context_bytes
    with holder(machine, 0, 1024 * MIB) as held:
        used = ask(
            machine,
            FIRST
            + """
def processes(handle):
    return [[p.pid, p.gpuInstanceId, p.computeInstanceId, p.usedGpuMemory]
            for p in N.nvmlDeviceGetComputeRunningProcesses(handle)]
answer([[N.nvmlDeviceGetMemoryInfo(h).used for h in devices()],
        N.nvmlDeviceGetMemoryInfo(d, version=N.nvmlMemory_v2).used,
        processes(devices()[0]), processes(devices()[1]), processes(d)])
""",
        )
        size = context + 1024 * MIB
        row = [held.pid, second.gpu_instance, second.compute_instance, size]
        assert used == [[0, size, 0], size, [], [row], [row]]
    assert first.memory_bytes > second.memory_bytes


def test_allocation_beyond_the_instance_is_refused(machine, monkeypatch):
    small = simulator.mig_state(machine).instances[2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", small.uuid)
    script = HOLD.replace("SIZES", repr([small.memory_bytes, 1 << 30]))
    assert json.loads(run(machine, sys.executable, "-c", script)) == [2, 0]


def test_placement_that_is_taken_is_refused(empty):
    assert ask(
        empty,
        FIRST
        + """
first = cut(9, 4)
results = [code(cut, 9, 4), code(cut, 9, 1), code(cut, 0), code(cut, 77)]
answer([place(first), results, place(cut(9)), code(cut, 19), left(19)])
""",
    ) == [
        [1, 4, 4],
        [INSUFFICIENT_RESOURCES, INVALID_ARGUMENT, INSUFFICIENT_RESOURCES, INVALID_ARGUMENT],
        [2, 0, 4],
        INSUFFICIENT_RESOURCES,
        0,
    ]


def test_driver_places_small_instances_where_they_spoil_least(empty):
    assert ask(empty, FIRST + "answer([place(cut(19)) for _ in range(7)])") == [
        [7 + index, start, 1] for index, start in enumerate((6, 4, 5, 0, 1, 2, 3))
    ]


def test_instances_are_refused_while_mig_is_off(tmp_path):
    machine = simulator.open_machine("h100", tmp_path)
    assert ask(
        machine,
        FIRST
        + """
results = [code(cut, 19), N.nvmlDeviceGetMaxMigDeviceCount(d), left(19)]
N.nvmlDeviceSetMigMode(d, 1)
cut(19)
answer([*results, N.nvmlDeviceGetMigMode(d), left(19)])
""",
    ) == [NOT_SUPPORTED, 0, 7, [1, 1], 6]


def test_instance_in_use_is_not_destroyed(machine, monkeypatch):
    found = simulator.mig_state(machine).instances[1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", found.uuid)
    script = (
        FIRST
        + """
instance = N.nvmlDeviceGetGpuInstanceById(d, int(sys.argv[1]))
compute = N.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
answer([code(N.nvmlComputeInstanceDestroy, compute), code(N.nvmlGpuInstanceDestroy, instance),
        code(N.nvmlComputeInstanceDestroy, compute), len(devices())])
"""
    )
    with holder(machine, 0):
        assert ask(machine, script, str(found.gpu_instance)) == [IN_USE, IN_USE, IN_USE, 3]
    assert ask(machine, script, str(found.gpu_instance)) == [0, 0, NOT_FOUND, 2]


def test_handle_of_a_destroyed_instance_is_invalid_and_its_uuid_never_returns(empty):
    assert ask(
        empty,
        FIRST
        + """
def make():
    instance = cut(14, 0)
    compute = fill(instance, 1)
    return instance, compute, N.nvmlComputeInstanceGetInfo_v2(compute).device
instance, compute, handle = make()
uuid = N.nvmlDeviceGetUUID(handle)
N.nvmlComputeInstanceDestroy(compute); N.nvmlGpuInstanceDestroy(instance)
gone = [code(N.nvmlDeviceGetUUID, handle), code(N.nvmlGpuInstanceGetInfo, instance)]
again = N.nvmlDeviceGetUUID(make()[2])
answer([gone, again == uuid, code(N.nvmlDeviceGetHandleByUUID, uuid.encode())])
""",
    ) == [[INVALID_ARGUMENT, NOT_FOUND], False, NOT_FOUND]


def test_compute_instances_of_one_instance_share_its_memory(empty, monkeypatch):
    ask(empty, FIRST + "g = cut(9); fill(g, 0); fill(g, 1); answer(code(fill, g, 0))")
    one, two = simulator.mig_state(empty).instances
    assert (one.profile, two.profile) == ("1c.3g.40gb", "2c.3g.40gb")
    assert (one.sm_count, two.sm_count) == (20, 40)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", two.uuid)
    with holder(empty, 0, 64 * MIB):
        size = empty.devices[0].context_bytes + 64 * MIB
        assert ask(
            empty,
            FIRST
            + """
answer([[N.nvmlDeviceGetMemoryInfo(h).used for h in devices()],
        [len(N.nvmlDeviceGetComputeRunningProcesses(h)) for h in devices()],
        N.nvmlDeviceGetMemoryInfo(d, version=N.nvmlMemory_v2).used])
""",
        ) == [[size, size], [0, 1], size]


def test_mode_stays_while_instances_are_there(machine):
    assert ask(
        machine,
        FIRST
        + """
status = ctypes.c_int(0)
result = N.nvmlLib.nvmlDeviceSetMigMode(d, 0, ctypes.byref(status))
answer([result, status.value, N.nvmlDeviceGetMigMode(d)])
""",
    ) == [0, IN_USE, [1, 1]]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param("t4:mig=1g.5gb", "the model t4 has no MIG", id="no MIG"),
        pytest.param("h100:mig=1g.5gb", "h100 has no profile '1g.5gb'; it has 1g.10gb", id="name"),
        pytest.param("h100:mig=", "h100 has no profile ''", id="nothing"),
        pytest.param(
            "h100:mig=4g.40gb+4g.40gb", "8 of 7 compute slices", id="more than the compute"
        ),
        pytest.param(
            "h100:mig=" + "+".join(["1g.20gb"] * 2 + ["1g.10gb"] * 5),
            "9 of 8 memory slices",
            id="more than the memory",
        ),
        pytest.param("h100:mig=1g.10gb+me+1g.10gb+me", "at most 1", id="twice the only one"),
    ],
)
def test_bad_layout_is_refused_with_what_would_be_valid(spec, said):
    with pytest.raises(errors.UsageError, match=re.escape(said)) as caught:
        machines.describe(spec)
    assert re.search(r"mig=|3g\.40gb", str(caught.value))


@pytest.mark.parametrize("model", mig.PROFILES)
def test_every_layout_that_is_planned_can_be_created(tmp_path, model):
    one, media, double, two, big3, big4, big7 = mig.profiles(model)
    layouts = (
        [big7], [big4, big3], [big3, two, one], [double] * 3 + [one], [media] + [one] * 6,
        [two] * 3 + [one],
    )  # fmt: skip
    plans = [mig.plan(model, "+".join(each.name for each in layout)) for layout in layouts]
    for placed in plans:
        taken = [s for each, start in placed for s in range(start, start + each.size)]
        assert len(set(taken)) == len(taken) <= 8
        assert all(start in each.starts for each, start in placed)
    machine = simulator.open_machine(f"{model}:mig=none", tmp_path)
    wanted = [[[each.id, start] for each, start in placed] for placed in plans]
    assert ask(
        machine,
        FIRST
        + """
counts = []
for layout in json.loads(sys.argv[1]):
    made = [cut(*each) for each in layout]
    counts.append(len(made))
    for instance in made:
        N.nvmlGpuInstanceDestroy(instance)
answer(counts)
""",
        json.dumps(wanted),
    ) == [len(layout) for layout in layouts]
