"""The shim's account beside the device's, after each step of a program with all kinds of memory.

A step is a line that the program runs, with what it adds to the memory in use on the device. What
the shim has charged must be exactly that at every step: not less, so that the quota holds, and not
more, so that nothing is refused that fits.
"""

import json

import driver_memory
import pytest
from array_source import ARRAYS
from pool_source import OWN
from shim_room import GIB, MIB
from vmm_source import VMM

from pyvgpu.simulation import simulator

QUOTA = 4 * GIB
BLOCK = 2 * MIB

# Runs each line of standard input, and answers with its value.
STEPS = """
def pitch(width, height):
    pointer, row = U64(), SIZE()
    result = cuda.cuMemAllocPitch_v2(byref(pointer), byref(row), SIZE(width), SIZE(height), 4)
    return result, pointer
def managed(size):
    pointer = U64()
    return cuda.cuMemAllocManaged(byref(pointer), SIZE(size), 1), pointer
def new_context():
    made = P()
    return cuda.cuCtxCreate_v2(byref(made), 0, 0), made
def stream():
    made = P()
    check(cuda.cuStreamCreate(byref(made), 1))
    return made
def trim(pool, keep):
    return cuda.cuMemPoolTrimTo(pool, SIZE(keep))
def destroy_context(made):
    result = cuda.cuCtxDestroy_v2(made)
    return result or cuda.cuCtxSetCurrent(primary)
primary = context()
for line in sys.stdin:
    exec(line)
    answer(0)
"""

# The lines, each with the bytes by which it changes what the device holds; None: as the driver has
# it, for the account only has to agree.
LINEAR = [
    ("small = [alloc(size) for size in (1, 512, 4096, 65536, 65537, 300_000)]", None),
    ("check(free(small[3][1])); check(free(small[4][1]))", None),
    ("odd = free(small[3][1]); assert odd == 1, odd", 0),
    ("again = [alloc(65536), alloc(65537)]", None),
    ("for _, each in again + small[:3] + small[5:]: check(free(each))", None),
    ("many = [alloc(4096)[1] for _ in range(2048)]", 4 * BLOCK),
    ("for each in many[::2]: check(free(each))", 0),
    ("for each in many[1::2]: check(free(each))", -4 * BLOCK),
    ("result, wide = alloc(3 * MIB); check(result)", 2 * BLOCK),
    ("result, _ = alloc(1 << 60); assert result == 2, result", 0),
    ("check(free(wide))", -2 * BLOCK),
    ("result, rows = pitch(1, 8192); check(result)", 2 * BLOCK),
    ("check(free(rows))", -2 * BLOCK),
    ("result, shared = managed(40 * MIB); check(result)", 20 * BLOCK),
    ("check(free(shared))", -20 * BLOCK),
]

MAPPED = [
    ("parts = [create(size * MIB)[1] for size in (2, 4, 6)]; where = reserve(12 * MIB)", 12 * MIB),
    ("check(map(where, 2 * MIB, parts[0]))", 0),
    ("check(map(where + 2 * MIB, 4 * MIB, parts[1]))", 0),
    ("check(map(where + 6 * MIB, 6 * MIB, parts[2]))", 0),
    ("check(release(parts[0])); check(release(parts[2]))", 0),
    ("result, more = retain(where + 6 * MIB); check(result)", 0),
    ("check(unmap(where, 12 * MIB))", -2 * MIB),
    ("check(release(parts[1]))", -4 * MIB),
    ("check(map(where, 6 * MIB, more)); check(release(more))", 0),
    ("result = release(more); assert result, result", 0),
    (
        "check(unmap(where, 6 * MIB)); check(cuda.cuMemAddressFree(U64(where), SIZE(12 * MIB)))",
        -6 * MIB,
    ),
    ("result, _ = create(1 << 42); assert result == 2, result", 0),
    ("result, _ = create(12345); assert result == 1, result", 0),
]

SHAPED = [
    ("result, plain = flat(1024, 1024, FLOAT, 4); check(result)", 16 * MIB),
    ("result, deep = solid(256, 256, 64, FLOAT, 1, 0); check(result)", 16 * MIB),
    ("result, levels = mipmap(6, 1024, 1024, 0, FLOAT, 4, 0); check(result)", None),
    ("result, _ = solid(1 << 30, 1 << 30, 0, FLOAT, 4, 0); assert result, result", 0),
    ("check(destroy(plain)); check(destroy(deep))", -32 * MIB),
    ("check(destroy_mipmap(levels))", None),
]

POOLED = [
    ("pool = own_pool(); keep_all(pool)", 0),
    ("result, first = take_from(pool, 100 * MIB); check(result)", None),
    ("check(free_async(first, None))", 0),
    ("result, first = take_from(pool, 60 * MIB); check(result)", 0),
    ("check(trim(pool, 0))", None),
    ("other = stream(); check(cuda.cuMemFreeAsync(first, other))", 0),
    ("check(cuda.cuStreamSynchronize(other)); check(trim(pool, 0))", None),
    ("result, first = take_from(pool, 1 << 40); assert result == 2, result", 0),
    ("result, last = take(30 * MIB); check(result)", None),
    ("check(free(last)); check(cuda.cuCtxSynchronize())", None),
    ("result, linear = alloc(8 * MIB); check(result)", 8 * MIB),
    (
        "check(cuda.cuMemFreeAsync(linear, other)); cuda.cuStreamSynchronize(other); info()",
        -8 * MIB,
    ),
    ("result, first = take_from(pool, 32 * MIB); check(result)", None),
    ("check(cuda.cuMemPoolDestroy(pool))", 0),
    ("check(free_async(first, None)); check(cuda.cuCtxSynchronize()); info()", None),
]

ENDED = [
    ("result, second = new_context(); check(result)", None),
    ("small, large = [alloc(4096)[1] for _ in range(10)], alloc(50 * MIB)[1]", BLOCK + 50 * MIB),
    ("result, plain = flat(1024, 1024, FLOAT, 4); check(result)", 16 * MIB),
    ("part = create(10 * MIB)[1]", 10 * MIB),
    ("check(free(small[0]))", 0),
    ("check(destroy_context(second))", None),
    ("check(release(part))", -10 * MIB),
    ("small = [alloc(4096)[1] for _ in range(10)]; large = alloc(50 * MIB)[1]", BLOCK + 50 * MIB),
    ("check(cuda.cuDevicePrimaryCtxReset_v2(0))", None),
    ("primary = context(); result, large = alloc(50 * MIB); check(result)", None),
    ("check(free(large))", -50 * MIB),
]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(LINEAR, id="linear"),
        pytest.param(MAPPED, id="physical"),
        pytest.param(SHAPED, id="arrays"),
        pytest.param(POOLED, id="pools"),
        pytest.param(ENDED, id="contexts that end"),
    ],
)
def test_the_account_is_the_devices_at_each_step(make_room, tmp_path, steps):
    law = simulator.Law(small_blocks=True)
    machine = simulator.open_machine("h100", tmp_path / "machines", law=law)
    driver_memory.watch(machine)
    room = make_room(machine, vmemory=QUOTA)
    program = room.start(ARRAYS + VMM + OWN + STEPS, "")
    before = None
    for line, change in [("pass", None), *steps]:
        program.stdin.write(line + "\n")
        program.stdin.flush()
        assert json.loads(program.stdout.readline() or "1") == 0, line
        held = driver_memory.used_bytes(machine)
        assert (line, room.usage().charged[0]) == (line, held)
        assert change is None or (line, held - before) == (line, change)
        before = held
    program.communicate()
    assert program.returncode == 0
    assert driver_memory.used_bytes(machine) == 0
    assert driver_memory.peak_bytes(machine) <= QUOTA
