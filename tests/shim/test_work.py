"""Every source of work is charged: each form of launch, copy and memset; graphs; devices."""

import os

import hook_table
import pytest
import shim_room
import transfer_source
import work_source

from pyvgpu import names, region
from pyvgpu._region import ffi
from pyvgpu.simulation import simulator

MILLISECOND = 1_000_000
CHUNK_NS = 2 * MILLISECOND  # bought at once at most
BUSY = ffi.offsetof("struct usage_file", "compute") + ffi.offsetof(
    "struct usage_compute", "busy_ns"
)

# Not supported by the simulated driver: 32-bit and legacy forms, and lists.
# tests/shim/test_arguments.py calls them.
NOT_SIMULATED = {
    *("cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync"),
    *(f"cuMem{do}BatchAsync" for do in ("cpy", "cpy3D")),
    *("cuMemcpyBatchAsync_v2", "cuMemcpy3DBatchAsync_v2", "cuMemBatchDecompressAsync"),
    *("cuMemcpyWithAttributesAsync", "cuMemcpy3DWithAttributesAsync"),
}
# One call each, with BYTES or a kernel of 1 ms.
LAUNCHES = (
    work_source.LAUNCHES
    + transfer_source.TRANSFERS
    + """
def multi(form=""):
    class Launch(ctypes.Structure):
        _fields_ = [("function", P), ("shape", UINT * 6), ("shared", UINT), ("stream", P),
                    ("arguments", P)]
    one = Launch(function, (UINT * 6)(*[1] * 6), 0, stream, ctypes.addressof(arguments))
    return cuda.cuLaunchCooperativeKernelMultiDevice(byref(one), 1, 0)
def all_forms():
    prepare(stream)
    for name, call in (("cuLaunchKernel", plain), ("cuLaunchKernelEx", extended),
                       ("cuLaunchCooperativeKernel", cooperative)):
        CALLS[name], CALLS[name + "_ptsz"] = (call, ()), (call, ("_ptsz",))
    CALLS["cuLaunchCooperativeKernelMultiDevice"] = (multi, ())
    executable = instantiate(capture(lambda: check(plain())))
    CALLS["cuGraphLaunch"] = (cuda.cuGraphLaunch, (executable, stream))
    CALLS["cuGraphLaunch_ptsz"] = (cuda.cuGraphLaunch_ptsz, (executable, stream))
"""
)

# A context, and commands, as a program has them from Vulkan.
GRAPHICS = f"""
class Shared(ctypes.Structure):
    _fields_ = [("kind", INT), ("data", P)]
class Pointers(ctypes.Structure):
    _fields_ = [("affinities", P), ("count", INT), ("shared", P)]
class Commands(ctypes.Structure):
    _fields_ = [("shared", P)]
usage = os.open(sys.argv[1], os.O_RDONLY)
def busy():
    return int.from_bytes(os.pread(usage, 8, {BUSY}), "little")
status, graphics = INT(), P()
blob, buffer = Shared(2, 1), Shared(2, 1)
into_commands = Commands(ctypes.addressof(buffer))
parameters = Pointers(None, 0, ctypes.addressof(blob))
check(cuda.cuInit(0))
check(cuda.cuCtxCreate_v4(byref(graphics), byref(parameters), 0, 0))
plain_context, context = context, lambda: None
begin()
"""


def old(symbol):
    """Whether a form has addresses of 32 bits, which no memory has."""
    return (
        symbol.startswith(("cuMemcpy", "cuMemset"))
        and not symbol.endswith(("_v2", "_ptds", "_ptsz"))
        and f"{symbol}_v2" in hook_table.symbols()
    )


def stem(symbol):
    return symbol.removesuffix("_ptsz").removesuffix("_ptds")


@pytest.fixture
def most(make_room, machine):
    """Return a quota of most of the device's time."""
    return make_room(machine, vcore=90)


def busy_ns(room, device=0):
    """Return the GPU time that was charged."""
    file = os.open(room.folder / names.USAGE_FILE, os.O_RDONLY)
    try:
        return region.read_compute(file, device + 1)[device].busy_ns
    finally:
        os.close(file)


@pytest.mark.slow
def test_every_form_of_launch_copy_and_set_is_paid(most):
    """Each is called until it was charged more than the rest of an earlier purchase."""
    paid = most.ask(
        LAUNCHES
        + f"""
usage = os.open(sys.argv[1], os.O_RDONLY)
def busy():
    return int.from_bytes(os.pread(usage, 8, {BUSY}), "little")
def is_paid(call, arguments):
    check(cuda.cuCtxSynchronize())  # refunds the estimate of the previous one
    before = busy()
    for turn in range(40_000):
        check(call(*arguments))
        if turn % 20 == 0 and busy() > before + 2 * {CHUNK_NS}:
            return True
    return False
begin()
all_forms()
answer({{symbol: is_paid(*call) for symbol, call in CALLS.items()}})
""",
        most.folder / names.USAGE_FILE,
    )
    assert [symbol for symbol, was in paid.items() if not was] == []
    wanted = {
        hook.symbol
        for hook in hook_table.cuda()
        if (
            hook.area in ("launch", "copy", "fill")
            or "GraphLaunch" in hook.symbol
            or "Prefetch" in hook.symbol
        )
        and not old(hook.symbol)
        and stem(hook.symbol) not in NOT_SIMULATED
    }
    assert set(paid) == wanted, "a new hook needs a row"


@pytest.mark.slow
def test_no_form_changes_the_results(make_room, machine):
    """All of them one after the other on known bytes, with a share at which all are throttled."""
    source = (
        LAUNCHES
        + """
import hashlib, random
begin()
all_forms()
def built_in(name, *values):
    kernel, module = P(), P()
    image = IMAGE.replace(b"sim_spin(.param .u64 ns)", name.encode() + b"()")
    check(cuda.cuModuleLoadData(byref(module), image))
    check(cuda.cuModuleGetFunction(byref(kernel), module, name.encode()))
    places = (P * len(values))(*map(ctypes.addressof, values))
    kept.append(values)
    CALLS[name] = (cuda.cuLaunchKernel, (kernel, 4, 1, 1, 64, 1, 1, 0, stream, places, None))
kept = []
built_in("sim_fill", to, UINT(0x3f800000), U64(1000))
built_in("sim_add", to, to, of, U64(BYTES // 4))
built_in("sim_copy", of, to, U64(BYTES - 64))
chance, host, seen = random.Random(5), ctypes.create_string_buffer(BYTES), hashlib.sha256()
for pointer in (to, of):
    check(cuda.cuMemcpyHtoD_v2(pointer, chance.randbytes(BYTES), SIZE(BYTES)))
ctypes.memmove(pinned, chance.randbytes(BYTES), BYTES)
order = sorted(CALLS) * 3
chance.shuffle(order)
for symbol in order:
    call, arguments_ = CALLS[symbol]
    check(call(*arguments_))
    wait()
    for pointer in (to, of, pinned):
        check(cuda.cuMemcpyDtoH_v2(host, U64(pointer.value), SIZE(BYTES)))
        seen.update(host.raw)
answer(seen.hexdigest())
"""
    )
    bare = shim_room.ask_bare(machine, source)
    for vcore in (3, 60, 100):
        assert make_room(machine, vcore=vcore).ask(source) == bare


@pytest.mark.parametrize(("on", "form"), [(1, ""), (2, ""), (None, "_ptsz")])
def test_default_streams_of_all_kinds_are_paid(most, on, form):
    """Legacy by its name, the thread's by its name, the thread's by the form of the call."""
    answer = most.ask(
        LAUNCHES
        + f"""
begin()
stream = P({on})
answer([plain({form!r}) for _ in range(40)])
wait()
"""
    )
    assert answer == [0] * 40
    assert 38 * MILLISECOND < busy_ns(most) < 60 * MILLISECOND


def test_child_graphs_are_paid_with_their_parent(most):
    answer = most.ask(
        LAUNCHES
        + """
begin()
spin_ns.value = 500_000
parent, node = P(), P()
child = capture(lambda: [check(plain()) for _ in range(2)])
check(cuda.cuGraphCreate(byref(parent), 0))
for _ in range(2):
    check(cuda.cuGraphAddChildGraphNode(byref(node), parent, None, SIZE(0), child))
executable = instantiate(parent)
answer([cuda.cuGraphLaunch(executable, stream) for _ in range(20)])
wait()
"""
    )
    assert answer == [0] * 20
    assert 38 * MILLISECOND < busy_ns(most) < 60 * MILLISECOND


def test_executable_that_is_updated_is_paid_by_what_it_takes_then(most):
    answer = most.ask(
        LAUNCHES
        + """
begin()
info = (U64 * 8)()
def launch(times):
    return [cuda.cuGraphLaunch(executable, stream) for _ in range(times)]
executable = instantiate(capture(lambda: check(plain())))
results = launch(20)
spin_ns.value = 4_000_000
longer = capture(lambda: check(plain()))
wait()
results.append(cuda.cuGraphExecUpdate_v2(executable, longer, info))
results += launch(20)
wait()
answer(results)
"""
    )
    assert answer == [0] * 41
    assert 90 * MILLISECOND < busy_ns(most) < 140 * MILLISECOND


@pytest.mark.parametrize("form", ["", "_ptsz"])
@pytest.mark.parametrize("begin", ["Capture", "Capture_v2", "CaptureToGraph", "RecaptureToGraph"])
def test_capture_of_every_form_is_only_recorded(most, begin, form):
    rest = {
        "Capture": "",
        "Capture_v2": ", 2",
        "CaptureToGraph": ", into, None, None, SIZE(0), 2",
        "RecaptureToGraph": ", 2, there, None, None",
    }[begin]
    answer = most.ask(
        LAUNCHES
        + f"""
begin()
into, graph, nodes = P(), P(), SIZE()
check(cuda.cuGraphCreate(byref(into), 0))
there = capture(lambda: [check(plain()) for _ in range(100)])
check(cuda.cuStreamBegin{begin}{form}(stream{rest}))
results = [plain({form!r}) for _ in range(100)]
check(cuda.cuStreamEndCapture{form}(stream, byref(graph)))
check(cuda.cuGraphGetNodes(graph, None, byref(nodes)))
answer([sum(results), nodes.value])
"""
    )
    assert answer == [0, 100]
    assert busy_ns(most) <= CHUNK_NS


@pytest.mark.parametrize(
    "then",
    [
        pytest.param("pass", id="goes on"),
        pytest.param("check(cuda.cuStreamDestroy_v2(stream))", id="stream destroyed"),
        pytest.param("check(cuda.cuCtxDestroy_v2(other))", id="context destroyed"),
        pytest.param("check(cuda.cuStreamEndCapture(stream, byref(P())))", id="ended"),
    ],
)
def test_work_in_the_legacy_stream_is_paid_beside_a_capture(most, then):
    """It is measured even if the program never synchronizes with the legacy stream itself."""
    answer = most.ask(
        LAUNCHES
        + f"""
begin()
other, event = P(), P()
check(cuda.cuCtxCreate_v2(byref(other), 0, 0))
check(cuda.cuStreamCreate(byref(stream), UINT(1)))
check(cuda.cuStreamBeginCapture_v2(stream, 2))
{then}
context()
check(cuda.cuEventCreate(byref(event), 2))
legacy, results = P(1), []
for _ in range(20):
    results.append(plain(on=legacy))
    check(cuda.cuEventRecord(event, legacy))
    check(cuda.cuEventSynchronize(event))
answer(results)
"""
    )
    assert answer == [0] * 20
    assert 18 * MILLISECOND < busy_ns(most) < 40 * MILLISECOND


@pytest.mark.parametrize("form", ["", "_ptsz"])
def test_capture_into_graphics_commands_is_only_recorded(most, form):
    """Also if no call reveals the capture; and after it launches are charged."""
    answer = most.ask(
        LAUNCHES
        + GRAPHICS
        + f"""
result = cuda.cuStreamBeginCaptureToCig{form}(stream, None)
check(cuda.cuStreamBeginCaptureToCig{form}(stream, byref(into_commands)))
check(cuda.cuStreamIsCapturing(stream, byref(status)))
recorded = [plain({form!r}) for _ in range(100)]
check(cuda.cuStreamEndCaptureToCig{form}(stream))
before = busy()
done = [plain({form!r}) for _ in range(20)]
wait()
answer([result, status.value, sum(recorded), before, sum(done), busy() - before])
""",
        most.folder / names.USAGE_FILE,
    )
    refused, status, recorded, before, done, after = answer
    assert (refused, status, recorded, done) == (1, 0, 0, 0)
    assert before <= CHUNK_NS
    assert 18 * MILLISECOND < after + before < 40 * MILLISECOND


def test_graphics_capture_whose_stream_or_context_ends_leaves_no_stream_unpaid(most):
    answer = most.ask(
        LAUNCHES
        + GRAPHICS
        + """
for turn in range(100):
    check(cuda.cuStreamBeginCaptureToCig(stream, byref(into_commands)))
    check(cuda.cuStreamDestroy_v2(stream))
    check(cuda.cuStreamCreate(byref(stream), UINT(1)))
check(cuda.cuStreamBeginCaptureToCig(stream, byref(into_commands)))
check(cuda.cuCtxDestroy_v2(graphics))
context = plain_context
begin()
done = [plain() for _ in range(20)]
wait()
answer([sum(done), busy()])
""",
        most.folder / names.USAGE_FILE,
    )
    assert answer[0] == 0
    assert 18 * MILLISECOND < answer[1] < 40 * MILLISECOND


@pytest.fixture
def two(tmp_path):
    return simulator.open_machine("h100:2", root=tmp_path / "machines")


def test_each_device_is_paid_for_its_own_work(make_room, two):
    room = make_room(two, vcore=50, ordinals=(0, 1))
    answer = room.ask(
        LAUNCHES
        + """
def on(ordinal, times):
    begin() if ordinal == 0 else context(ordinal)
    module, here, own = P(), P(), P()
    check(cuda.cuModuleLoadData(byref(module), IMAGE))
    check(cuda.cuModuleGetFunction(byref(here), module, b"sim_spin"))
    check(cuda.cuStreamCreate(byref(own), UINT(1)))
    call = cuda.cuLaunchKernel
    results = [call(here, 1, 1, 1, 1, 1, 1, 0, own, arguments, None) for _ in range(times)]
    wait()
    return results
answer(on(0, 20) + on(1, 60))
"""
    )
    assert answer == [0] * 80
    assert 18 * MILLISECOND < busy_ns(room, 0) < 35 * MILLISECOND
    assert 58 * MILLISECOND < busy_ns(room, 1) < 80 * MILLISECOND


def test_a_cooperative_launch_over_devices_is_paid_on_each(make_room, two):
    room = make_room(two, vcore=50, ordinals=(0, 1))
    answer = room.ask(
        LAUNCHES
        + """
class Launch(ctypes.Structure):
    _fields_ = [("function", P), ("shape", UINT * 6), ("shared", UINT), ("stream", P),
                ("arguments", P)]
def launch_on(ordinal):
    context(ordinal)
    module, here, own = P(), P(), P()
    check(cuda.cuModuleLoadData(byref(module), IMAGE))
    check(cuda.cuModuleGetFunction(byref(here), module, b"sim_spin"))
    check(cuda.cuStreamCreate(byref(own), UINT(1)))
    return Launch(here, (UINT * 6)(*[1] * 6), 0, own, ctypes.addressof(arguments))
both = (Launch * 2)(launch_on(0), launch_on(1))
call = cuda.cuLaunchCooperativeKernelMultiDevice
results = [call(both, 2, 0) for _ in range(40)]
for ordinal in (0, 1):
    context(ordinal)
    wait()
answer(results)
"""
    )
    assert answer == [0] * 40
    for device in (0, 1):
        assert 38 * MILLISECOND < busy_ns(room, device) < 60 * MILLISECOND
