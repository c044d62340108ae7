"""Which ranges the simulated driver exports as a dma-buf, and its error for each other one."""

import driver_memory
import pytest
from shim_room import MIB, ask_bare
from vmm_source import VMM

from pyvgpu.simulation import simulator

INVALID_VALUE, NOT_SUPPORTED = 1, 801
SUPPORTED = 124  # CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED

PROGRAM = (
    VMM
    + """
context()
def ask(address, size, kind=1, flags=0, fd=None):
    fd = INT(-1) if fd is None else fd
    result = cuda.cuMemGetHandleForAddressRange(
        byref(fd) if fd else None, U64(address), SIZE(size), kind, U64(flags))
    return [result, fd.value if fd else -1]
linear = alloc(4 * MIB)[1].value
def mapped(*handles):
    base = reserve(2 * MIB * len(handles))
    for i, handle in enumerate(handles):
        if handle is not None:
            check(map(base + 2 * MIB * i, 2 * MIB, handle))
    return base
def physical(**options):
    result, handle = create(2 * MIB, on_device(**options))
    check(result)
    return handle
def on_host():
    pointer = P()
    check(cuda.cuMemHostAlloc(byref(pointer), SIZE(2 * MIB), 0))
    return pointer.value
def managed():
    pointer = U64()
    check(cuda.cuMemAllocManaged(byref(pointer), SIZE(2 * MIB), 1))
    return pointer.value
def pooled():
    pointer = U64()
    check(cuda.cuMemAllocAsync(byref(pointer), SIZE(2 * MIB), None))
    return pointer.value
"""
)


@pytest.fixture
def machine(tmp_path):
    return simulator.open_machine("h100:2", tmp_path, mode="free")


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        pytest.param("ask(linear, 4 * MIB)", 0, id="an allocation"),
        pytest.param("ask(linear + 4096, 8192)", 0, id="part of it"),
        pytest.param("ask(alloc(5000)[1].value, 8192)", 0, id="up to its last page"),
        pytest.param("ask(mapped(physical(), physical()) + 4096, 2 * MIB)", 0, id="mappings"),
        pytest.param("ask(linear + 512, 4096)", INVALID_VALUE, id="address within a page"),
        pytest.param("ask(linear, 5000)", INVALID_VALUE, id="size within a page"),
        pytest.param("ask(linear, 0)", INVALID_VALUE, id="no size"),
        pytest.param("ask(linear, 4 * MIB + 4096)", INVALID_VALUE, id="beyond its end"),
        pytest.param("ask(linear, 4096, kind=2)", INVALID_VALUE, id="another kind of handle"),
        pytest.param("ask(linear, 4096, flags=2)", INVALID_VALUE, id="another flag"),
        pytest.param("ask(linear, 4096, flags=1)", NOT_SUPPORTED, id="mapped by PCIe alone"),
        pytest.param("ask(linear, 4096, fd=0)", INVALID_VALUE, id="no result"),
        pytest.param("ask(0x1000, 4096)", INVALID_VALUE, id="no allocation"),
        pytest.param("ask(reserve(2 * MIB), 4096)", INVALID_VALUE, id="nothing mapped"),
        pytest.param(
            "ask(mapped(physical(), None), 4 * MIB)", INVALID_VALUE, id="not wholly mapped"
        ),
        pytest.param(
            "ask(mapped(physical(), physical(ordinal=1)), 4 * MIB)", INVALID_VALUE, id="devices"
        ),
        pytest.param(
            "ask(mapped(physical(), physical(handles=1)), 4 * MIB)", INVALID_VALUE, id="unlike"
        ),
        pytest.param("ask(on_host(), 4096)", NOT_SUPPORTED, id="host memory"),
        pytest.param("ask(managed(), 4096)", INVALID_VALUE, id="managed memory"),
        pytest.param("ask(pooled(), 4096)", INVALID_VALUE, id="a block of a pool"),
    ],
)
def test_a_range_is_exported_or_refused(machine, call, expected):
    result, fd = ask_bare(machine, f"{PROGRAM}answer({call})")
    assert (result, fd >= 0) == (expected, expected == 0)


def test_the_attribute_tells_whether_the_device_exports_ranges(tmp_path):
    source = f"""
{PROGRAM}
value = INT()
check(cuda.cuDeviceGetAttribute(byref(value), {SUPPORTED}, 0))
answer([value.value, ask(linear, 4096)[0]])
"""
    for has, expected in ((True, [1, 0]), (False, [0, NOT_SUPPORTED])):
        law = simulator.Law(dma_buf=has)
        assert ask_bare(simulator.open_machine("t4", tmp_path, law=law), source) == expected


def test_a_dma_buf_is_a_file_without_a_path_and_cannot_be_imported(machine):
    answer = ask_bare(
        machine,
        f"""
{PROGRAM}
_, fd = ask(linear, 4096)
handle, memory = U64(), P()
class Description(ctypes.Structure):
    _fields_ = [("type", INT), ("pad", INT), ("fd", INT), ("rest", INT * 3), ("size", U64),
                ("flags", UINT), ("reserved", UINT * 16)]
wanted = Description(type=1, fd=fd, size=4096)
answer([os.path.exists(os.readlink(f"/proc/self/fd/{{fd}}")),
        cuda.cuMemImportFromShareableHandle(byref(handle), P(fd), 1) != 0,
        cuda.cuImportExternalMemory(byref(memory), byref(wanted)) != 0])
""",
    )
    assert answer == [False, True, True]


def test_memory_counts_until_its_dma_buf_is_closed(machine):
    answer = ask_bare(
        machine,
        f"""
{PROGRAM}
free_before = available()
_, fd = ask(linear, 4096)
check(free(U64(linear)))
kept = available() == free_before
os.close(fd)
deadline = time.monotonic() + 60  # closed descriptors are looked for several times a second
while available() == free_before and time.monotonic() < deadline:
    time.sleep(0.01)
answer([kept, available() - free_before])
""",
    )
    assert answer == [True, 4 * MIB]
    assert driver_memory.used_bytes(machine) == 0


@pytest.mark.parametrize("call", ["ask(linear, 4096)", "0"])
def test_the_name_left_by_a_process_killed_during_an_export_is_removed(machine, call):
    ask_bare(machine, f"{PROGRAM}\nanswer(0)")
    (machine.folder / "dmabuf").hardlink_to(machine.folder / "state")
    answer = ask_bare(machine, f"{PROGRAM}\nmade = {call}\nanswer(made and made[0])")
    assert answer == 0
    assert not (machine.folder / "dmabuf").exists()
