"""Memory mapped into arrays stays charged while an array has it, even without its handle."""

import pytest
from array_source import ARRAYS
from vmm_source import VMM

from pyvgpu.simulation import simulator

SPARSE = (
    VMM
    + ARRAYS
    + """
class Tile(ctypes.Structure):  # CUarrayMapInfo, of a part of a level
    _fields_ = [("mipmapped", INT), ("array", P), ("tail", INT), ("gap", INT),
                ("level", UINT), ("layer", UINT), ("offset", UINT * 3), ("extent", UINT * 3),
                ("operation", INT), ("handle_type", INT), ("handle", U64),
                ("memory_offset", U64), ("devices", UINT), ("flags", UINT), ("rest", UINT * 2)]
assert ctypes.sizeof(Tile) == 96
MAP, UNMAP = 1, 2
def operate(operation, array, handle, x, stream=None):
    tile = Tile(array=array, offset=(x, 0, 0), extent=(256, 256, 1), operation=operation,
                handle=handle, devices=1)
    return cuda.cuMemMapArrayAsync(byref(tile), 1, stream)
def put(array, handle, x=0, stream=None):
    return operate(MAP, array, handle, x, stream)
def take(array, x=0, stream=None):
    return operate(UNMAP, array, 0, x, stream)
def memory():
    result, handle = create(G, on_device(usage=1))
    check(result)
    return handle
def make(flags=SPARSE):
    result, array = solid(1024, 1024, 0, FLOAT, 1, flags)
    check(result)
    return array
def wait():
    check(cuda.cuCtxSynchronize())
    return 0
G = 4 * MIB
primary = context()
before = available()
def held():
    return (before - available()) / G
"""
)


@pytest.mark.parametrize("flags", ["SPARSE", "DEFERRED"])
def test_an_array_that_is_mapped_later_takes_nothing(room, flags):
    answer = room.ask(
        SPARSE
        + f"""
a = make({flags})
levels = mipmap(3, 1024, 1024, 0, FLOAT, 1, {flags})
answer([held(), levels[0], held(), destroy(a), destroy_mipmap(levels[1]), held()])
"""
    )
    assert answer == [0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("flags", ["SPARSE", "DEFERRED"])
@pytest.mark.parametrize(
    ("steps", "held"),
    [
        pytest.param("take(a); wait()", [1, 0], id="unmapped"),
        pytest.param("destroy(a)", [0], id="array destroyed"),
        pytest.param("put(a, n); wait(); release(n); take(a); wait()", [2, 1, 1, 1, 0], id="over"),
    ],
)
def test_memory_is_held_by_its_tile(room, flags, steps, held):
    """Wait for the stream to reach the end of a mapping; until then either result is right."""
    answer = room.ask(
        SPARSE
        + f"""
a, m = make({flags}), memory()
check(put(a, m) or release(m))
n = memory() if "n)" in sys.argv[1] else None
steps = sys.argv[1].split(";")
answer([[eval(step), held()] for step in steps])
""",
        steps,
    )
    assert [result for result, _ in answer] == [0] * len(held)
    settled = [
        i
        for i, step in enumerate(steps.split(";"))
        if not step.strip().startswith(("take", "put"))
    ]
    assert [answer[i][1] for i in settled] == [held[i] for i in settled]


def test_a_handle_that_was_released_is_not_mapped(room):
    answer = room.ask(
        SPARSE
        + """
a, n, address = make(), memory(), reserve(G)
check(map(address, G, n) or release(n))
answer([put(a, n), wait(), held(), unmap(address, G), held()])
"""
    )
    assert answer == [1, 0, 1, 0, 0]


def test_different_parts_do_not_end_a_mapping(room):
    answer = room.ask(
        SPARSE
        + """
a, m, n = make(), memory(), memory()
check(put(a, m) or put(a, n, 256) or release(m) or release(n))
answer([take(a) or wait(), held(), take(a, 512) or wait(), held(), take(a, 256) or wait(),
        held()])
"""
    )
    assert answer == [0, 1, 0, 1, 0, 0]


def test_memory_is_held_until_the_stream_comes_to_the_end_of_its_tile(room):
    answer = room.ask(
        SPARSE
        + """
a, m, stream, gate = make(), memory(), P(), threading.Event()
check(cuda.cuStreamCreate(byref(stream), UINT(1)))
check(put(a, m, 0, stream) or release(m))
wait_there = ctypes.CFUNCTYPE(None, P)(lambda _: gate.wait())
check(cuda.cuLaunchHostFunc(stream, wait_there, None))
queued = take(a, 0, stream)
during = held()
gate.set()
check(cuda.cuStreamSynchronize(stream))
answer([queued, during, held()])
"""
    )
    assert answer == [0, 1, 0]


def test_another_stream_does_not_end_a_tile(room):
    """The order of the two streams is unknown: so the array keeps the memory."""
    answer = room.ask(
        SPARSE
        + """
a, m, stream = make(), memory(), P()
check(cuda.cuStreamCreate(byref(stream), UINT(1)))
check(put(a, m) or release(m) or wait())
answer([take(a, 0, stream) or wait(), held(), destroy(a), held()])
"""
    )
    assert answer == [0, 1, 0, 0]


@pytest.mark.parametrize("end", ["cuCtxDestroy_v2(made)", "cuDevicePrimaryCtxReset_v2(0)"])
def test_tiles_go_with_the_context_of_their_array(room, end):
    answer = room.ask(
        SPARSE
        + f"""
made = P()
if "Destroy" in {end!r}:
    check(cuda.cuCtxCreate_v2(byref(made), UINT(0), 0))
a, m = make(), memory()
check(put(a, m) or release(m) or wait())
check(cuda.{end})
context()
answer(held())
"""
    )
    assert answer == 0


def test_mapping_refused_by_the_driver_is_not_held(room, machine):
    simulator.set_faults(machine, "call cuMemMapArrayAsync 1 999")
    answer = room.ask(
        SPARSE
        + """
a, m = make(), memory()
answer([put(a, m), put(a, U64(12345)) != 0, release(m), held()])
"""
    )
    assert answer == [999, True, 0, 0]
