"""Linear memory under a quota: an allocation succeeds exactly if it fits."""

import pytest
from shim_room import GIB, MIB, ask_bare

from pyvgpu.simulation import simulator


def test_whole_quota_can_be_used_and_not_a_byte_more(room):
    answer = room.ask("""
context()
room = available()
first = alloc(room)
second = alloc(1)
left = available()
check(free(first[1]))
answer([room, first[0], second[0], left, available()])
""")
    room_bytes = 2 * GIB - room.reserve
    assert answer == [room_bytes, 0, 2, 0, room_bytes]


def test_quota_is_what_the_program_sees(room):
    answer = room.ask("""
context()
total = SIZE()
check(cuda.cuDeviceTotalMem_v2(byref(total), 0))
answer([info(), total.value])
""")
    assert answer == [[2 * GIB - room.reserve, 2 * GIB], 2 * GIB]


@pytest.mark.parametrize(
    ("asked", "charged"),
    [
        pytest.param(1, 2 * MIB, id="one byte"),
        pytest.param(MIB - 1, 2 * MIB, id="just under 1 MiB"),
        pytest.param(MIB, 2 * MIB, id="1 MiB"),
        pytest.param(2 * MIB, 2 * MIB, id="2 MiB"),
        pytest.param(2 * MIB + 1, 4 * MIB, id="a byte over 2 MiB"),
    ],
)
def test_charge_is_rounded_as_the_device_rounds(room, asked, charged):
    answer = room.ask(
        """
context()
before = available()
result, pointer = alloc(int(sys.argv[1]))
answer([result, before - available(), free(pointer), before - available()])
""",
        asked,
    )
    assert answer == [0, charged, 0, 0]


def test_managed_and_pitched_memory_count(room):
    answer = room.ask("""
context()
before = available()
managed, pitched, pitch = U64(), U64(), SIZE()
check(cuda.cuMemAllocManaged(byref(managed), SIZE(64 * MIB), UINT(1)))
after_managed = available()
check(cuda.cuMemAllocPitch_v2(byref(pitched), byref(pitch), SIZE(1000), SIZE(4096), UINT(4)))
after_pitched = available()
def rows(width, height):
    return cuda.cuMemAllocPitch_v2(byref(U64()), byref(SIZE()), SIZE(width), SIZE(height), UINT(4))
refused, enormous = rows(1 << 20, 4096), rows(1 << 40, 1 << 40)
check(free(managed)); check(free(pitched))
answer([before - after_managed, after_managed - after_pitched, pitch.value, refused, enormous,
        available() == before])
""")
    managed, pitched, pitch, refused, enormous, all_back = answer
    assert managed == 64 * MIB
    assert pitch >= 1000
    assert pitched == -(-pitch * 4096 // (2 * MIB)) * 2 * MIB
    assert (refused, enormous, all_back) == (2, 2, True)


# Four blocks of small allocations, of which all but the first of each are freed, and then these.
SURVIVORS = """
context()
before = available()
def taken():
    return (before - available()) // MIB
pointers = [alloc(512)[1] for _ in range(4 * 4096)]
seen = [taken()]
alone = {pointer.value >> 21: pointer for pointer in reversed(pointers)}
for pointer in pointers:
    if alone[pointer.value >> 21] is not pointer:
        check(free(pointer))
seen.append(taken())
last, *others = alone.values()
for pointer in others:
    check(cuda.cuMemFreeAsync(pointer, None))
check(cuda.cuCtxSynchronize())
seen.append(taken())
check(free(last))
answer([*seen, taken()])
"""


@pytest.mark.slow
def test_a_small_allocation_keeps_its_block_charged_as_the_device_keeps_it(make_room, tmp_path):
    law = simulator.Law(small_blocks=True)
    machine = simulator.open_machine("h100", root=tmp_path / "machines", law=law)
    assert ask_bare(machine, SURVIVORS) == [8, 8, 2, 0]
    assert make_room(machine, vmemory=2 * GIB).ask(SURVIVORS) == [8, 8, 2, 0]


PAIRS = """
context()
before = available()
pointers = [alloc(MIB)[1] for _ in range(64)]
seen = [(before - available()) // MIB, sum(not pointer.value % (2 * MIB) for pointer in pointers)]
for pointer in pointers:
    check(free(pointer))
answer([*seen, before - available()])
"""


def test_two_allocations_of_1_mib_share_a_block(make_room, tmp_path):
    law = simulator.Law(small_blocks=True)
    machine = simulator.open_machine("h100", root=tmp_path / "machines", law=law)
    assert ask_bare(machine, PAIRS) == [64, 32, 0]
    assert make_room(machine, vmemory=2 * GIB).ask(PAIRS) == [64, 32, 0]


@pytest.mark.parametrize(
    "end", ["cuDevicePrimaryCtxRelease_v2(0)", "cuDevicePrimaryCtxReset_v2(0)"]
)
def test_blocks_of_small_allocations_go_with_their_context(room, end):
    answer = room.ask(f"""
primary = context()
before = available()
for _ in range(3):
    for _ in range(100):
        check(alloc(4096)[0])
    first = alloc(4096)[1]
    check(cuda.{end})
    again = P()
    check(cuda.cuDevicePrimaryCtxRetain(byref(again), 0))
    check(cuda.cuCtxSetCurrent(again))
    one = alloc(4096)[1]
    taken = before - available()
    check(free(one))
answer([taken, before - available()])
""")
    assert answer == [2 * MIB, 0]


def test_block_shared_by_two_contexts_ends_with_its_last_allocation(room):
    """Contexts share blocks on the simulated device; if not, there are two blocks."""
    answer = room.ask("""
context()
primary, other = P(), P()
check(cuda.cuCtxGetCurrent(byref(primary)))
check(cuda.cuCtxCreate_v2(byref(other), 0, 0))
before = available()
theirs = [alloc(512)[1] for _ in range(2)]
check(cuda.cuCtxSetCurrent(primary))
mine = alloc(512)[1]
shared = mine.value >> 21 == theirs[0].value >> 21
both = before - available()
check(free(theirs[0]))
check(cuda.cuCtxDestroy_v2(other))
left = before - available()
check(free(mine))
answer([shared, both, left - (before - available())])
""")
    assert answer == [True, 2 * MIB, 2 * MIB]


def test_a_small_allocation_without_room_for_a_block_is_refused(room):
    answer = room.ask("""
context()
small = alloc(512)[1]
check(alloc(available() // (2 * MIB) * 2 * MIB)[0])
refused, left = alloc(512)[0], available()
check(free(small))
answer([refused, left < 2 * MIB, alloc(512)[0]])
""")
    assert answer == [2, True, 0]


def test_a_driver_that_keeps_a_small_allocation_keeps_its_block(room, machine):
    simulator.set_faults(machine, "call cuMemFree_v2 1 700")
    answer = room.ask("""
context()
before = available()
pointer = alloc(512)[1]
answer([free(pointer), before - available(), free(pointer), before - available()])
""")
    assert answer == [700, 2 * MIB, 0, 0]


def test_two_processes_share_one_quota(room):
    with room.start("""
context()
check(alloc(512 * MIB)[0])
answer("held")
sys.stdin.readline()
""") as holder:
        assert holder.stdout.readline() == '"held"\n'
        assert room.ask("context(); answer(available())") == (
            2 * GIB - 2 * room.reserve - 512 * MIB
        )
        charged = room.usage().charged[0]
        holder.kill()
    assert charged == room.reserve + 512 * MIB


def test_unallocated_pointers_get_the_drivers_result(room, machine):
    source = """
context()
_, pointer = alloc(4096)
answer([free(U64(12345)), free(U64(pointer.value + 512)), free(pointer), free(pointer),
        free(U64(0))])
"""
    assert room.ask(source) == ask_bare(machine, source)


@pytest.mark.parametrize("size", [0, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_absurd_sizes_get_an_answer_and_no_charge(room, size):
    answer = room.ask(
        """
context()
before = available()
result = alloc(int(sys.argv[1]))[0]
answer([result, available() == before])
""",
        size,
    )
    assert answer == [1 if size == 0 else 2, True]


def test_driver_failure_is_passed_on_and_refunded(room, machine):
    simulator.set_faults(machine, "call cuMemAlloc_v2 2 999")
    answer = room.ask("""
context()
before = available()
results = [alloc(64 * MIB)[0] for _ in range(3)]
answer([results, before - available()])
""")
    assert answer == [[0, 999, 0], 128 * MIB]


def test_a_free_that_the_driver_refuses_keeps_the_charge(room, machine):
    simulator.set_faults(machine, "call cuMemFree_v2 1 700")
    answer = room.ask("""
context()
_, pointer = alloc(64 * MIB)
before = available()
answer([free(pointer), before - available(), free(pointer), available() - before])
""")
    assert answer == [700, 0, 0, 64 * MIB]


def test_threads_of_one_process_lose_nothing(room):
    answer = room.ask("""
current = context()
before = available()
failures = []
def work(seed):
    check(cuda.cuCtxSetCurrent(current))
    held = []
    for step in range(2000):
        size = (seed * 7919 + step * 104729) % (8 * MIB) + 1
        if len(held) > 20 or (step % 3 == 2 and held):
            if free(held.pop(step % len(held))):
                failures.append("free")
        else:
            result, pointer = alloc(size)
            if result == 0:
                held.append(pointer)
            elif result != 2:
                failures.append(result)
    for pointer in held:
        check(free(pointer))
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
answer([failures, before - available()])
""")
    assert answer == [[], 0]


def test_limits_change_while_the_program_runs(room):
    with room.start("""
context()
check(alloc(512 * MIB)[0])
for line in sys.stdin:
    answer([info(), alloc(256 * MIB)[0]])
""") as program:

        def ask():
            program.stdin.write("\n")
            program.stdin.flush()
            import json

            return json.loads(program.stdout.readline())

        held = room.reserve + 512 * MIB
        room.set_vmemory(held + 100 * MIB)
        assert ask() == [[100 * MIB, held + 100 * MIB], 2]
        room.set_vmemory(room.reserve + 64 * MIB)
        assert ask() == [[0, room.reserve + 64 * MIB], 2]
        room.set_vmemory(4 * GIB)
        assert ask() == [[4 * GIB - held, 4 * GIB], 0]
        program.kill()
