"""Arrays and mipmapped arrays: charged the size that the driver reports, or an upper bound."""

import driver_memory
import pytest
from array_source import ARRAYS
from shim_room import GIB, MIB, ask_bare

from pyvgpu.simulation import simulator

CHANGED = [
    pytest.param("flat(1024, 1024, FLOAT, 1)", 4 * MIB, id="two dimensions"),
    pytest.param("flat(1024, 1024, HALF, 4)", 8 * MIB, id="channels"),
    pytest.param("flat(1 << 20, 0, FLOAT, 4)", 16 * MIB, id="one dimension"),
    pytest.param("solid(256, 256, 256, UINT8, 1, 0)", 16 * MIB, id="three dimensions"),
    pytest.param("solid(1024, 1024, 8, FLOAT, 1, LAYERED)", 32 * MIB, id="layers"),
    pytest.param("solid(1024, 1024, 6, FLOAT, 1, CUBEMAP)", 24 * MIB, id="cube"),
]
"""Figures are those of the texels alone: no array takes less."""


@pytest.mark.parametrize(("made", "texels"), CHANGED)
def test_array_is_charged_its_device_memory(room, machine, made, texels):
    """Not less, and at most the maximum padding of rows and blocks more."""
    source = (
        ARRAYS
        + f"""
context()
before = available()
result, array = {made}
held = before - available()
answer([result, held, destroy(array), before - available()])
"""
    )
    result, charged, destroyed, left = room.ask(source)
    bare = ask_bare(machine, source)
    assert (result, destroyed, left) == (0, 0, 0)
    assert max(texels, bare[1]) <= charged <= 8 * texels


def test_all_levels_of_a_mipmapped_array_count(room):
    answer = room.ask(
        ARRAYS
        + """
context()
before = available()
result, array = mipmap(11, 1024, 1024, 0, FLOAT, 1, 0)
held = before - available()
level = P()
check(cuda.cuMipmappedArrayGetLevel(byref(level), array, 3))
answer([result, 4 * MIB < held <= 8 * MIB, destroy(level) != 0, destroy(array) != 0,
        before - available() == held, destroy_mipmap(array), before - available()])
"""
    )
    assert answer == [0, True, True, True, True, 0, 0]


@pytest.mark.parametrize(
    "made",
    [
        "flat(16384, 16384, FLOAT, 4)",
        "solid(16384, 16384, 0, FLOAT, 4, 0)",
        "solid(1024, 1024, 1024, FLOAT, 1, 0)",
        "mipmap(14, 16384, 16384, 0, FLOAT, 2, 0)",
    ],
)
def test_array_over_quota_is_out_of_memory(room, made):
    answer = room.ask(
        ARRAYS
        + f"""
context()
before = available()
answer([{made}[0], before - available(), flat(64, 64, FLOAT, 1)[0]])
"""
    )
    assert answer == [2, 0, 0]


@pytest.mark.parametrize(
    "made",
    [
        "flat(0, 64, FLOAT, 1)",
        "flat(64, 64, FLOAT, 3)",
        "flat(64, 64, FLOAT, 0)",
        "flat(64, 64, 77, 1)",
        "flat((1 << 64) - 1, (1 << 64) - 1, FLOAT, 4)",
        "solid(1 << 40, 1 << 40, 1 << 40, FLOAT, 1, 0)",
        "mipmap(1, 0, 64, 0, FLOAT, 1, 0)",
        "mipmap(0, 64, 64, 0, FLOAT, 1, 0)",
    ],
)
def test_invalid_descriptor_gets_the_drivers_result(room, machine, made):
    source = ARRAYS + f"context(); before = available(); answer([{made}[0], before - available()])"
    assert room.ask(source) == ask_bare(machine, source)


def test_arrays_without_a_context_get_the_drivers_result(room, machine):
    source = (
        ARRAYS
        + """
check(cuda.cuInit(0))
answer([flat(64, 64, FLOAT, 1)[0], mipmap(2, 64, 64, 0, FLOAT, 1, 0)[0], destroy(None)])
"""
    )
    assert room.ask(source) == ask_bare(machine, source)


@pytest.mark.parametrize("end", ["cuCtxDestroy_v2(made)", "cuDevicePrimaryCtxReset_v2(0)"])
def test_arrays_end_with_their_context(room, end):
    answer = room.ask(
        ARRAYS
        + f"""
primary = context()
before = available()
made = P()
if "Destroy" in {end!r}:
    check(cuda.cuCtxCreate_v2(byref(made), UINT(0), 0))
results = [flat(1024, 1024, FLOAT, 1)[0], mipmap(11, 1024, 1024, 0, FLOAT, 1, 0)[0]]
held = before - available()
check(cuda.{end})
context()
answer([results, held > 8 * MIB, before - available()])
"""
    )
    assert answer == [[0, 0], True, 0]


@pytest.mark.parametrize(
    ("fault", "made", "destroy"),
    [
        ("cuArrayCreate_v2", "flat(1024, 1024, FLOAT, 1)", "destroy"),
        ("cuArray3DCreate_v2", "solid(1024, 1024, 0, FLOAT, 1, 0)", "destroy"),
        ("cuMipmappedArrayCreate", "mipmap(2, 1024, 1024, 0, FLOAT, 1, 0)", "destroy_mipmap"),
        ("cuArrayDestroy", "flat(1024, 1024, FLOAT, 1)", "destroy"),
        ("cuMipmappedArrayDestroy", "mipmap(2, 1024, 1024, 0, FLOAT, 1, 0)", "destroy_mipmap"),
    ],
)
def test_driver_error_leaves_the_charge_exact(room, machine, fault, made, destroy):
    """The driver refuses every call, including those for the sparse twin, or only the last one."""
    simulator.set_faults(machine, f"call {fault} * 999")
    refused, left, allowed, again, held = room.ask(
        ARRAYS
        + f"""
context()
before = available()
refused, array = {made}
if refused == 0:
    refused = {destroy}(array)
left = before - available()
open({str(machine.folder / "faults")!r}, "w").close()
while (allowed := {made}[0] if not array else {destroy}(array)) == 999:
    time.sleep(0.01)  # the driver polls the faults file
answer([refused, left, allowed, bool(array), before - available()])
"""
    )
    assert (refused, allowed) == (999, 0)
    assert (left > 0, held > 0) == (again, not again)


def test_threads_lose_no_array(room):
    answer = room.ask(
        ARRAYS
        + """
current = context()
before = available()
failures = []
def work(seed):
    check(cuda.cuCtxSetCurrent(current))
    for step in range(400):
        extent = 64 * (1 + (seed * 31 + step * 17) % 15)
        result, array = flat(extent, extent, FLOAT, 2)
        again, pyramid = mipmap(3, extent, extent, 0, HALF, 4, 0)
        if result or again or destroy(array) or destroy_mipmap(pyramid):
            failures.append([result, again])
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
answer([failures, before - available()])
"""
    )
    assert answer == [[], 0]


@pytest.mark.slow
def test_the_device_never_held_more_than_the_quota(room, machine):
    driver_memory.watch(machine)
    answer = room.ask(
        ARRAYS
        + """
context()
results = []
while not results or results[-1] == 0:
    results.append(flat(4096, 1000, FLOAT, 1)[0])
while results[-1] == 0 or len(results) < 200:
    results.append(flat(64, 64, FLOAT, 1)[0])
answer(sorted(set(results)))
"""
    )
    assert answer == [0, 2]
    assert driver_memory.peak_bytes(machine) <= 2 * GIB
