"""Program images: parsing, and errors for invalid ones."""

import cubin
import pytest
from cubin import Kernel, Variable
from shim_room import ask_bare

from pyvgpu.simulation import simulator

OK, INVALID_VALUE, INVALID_IMAGE, NO_BINARY, INVALID_PTX = 0, 1, 200, 209, 218
INVALID_HANDLE, NOT_FOUND, FILE_NOT_FOUND = 400, 500, 301

KERNELS = (
    Kernel("sim_copy", ((0, 8), (8, 8), (16, 8))),
    Kernel("mixed", ((0, 1), (8, 8), (16, 4), (20, 10)), 24, 512, 256),
    Kernel("bare"),
)
VARIABLES = (Variable("counter", 4, b"\7\0\0\0"), Variable("table", 8, b"\1\2\3\4"),
             Variable("zeros", 32))  # fmt: skip
CUBIN = cubin.cubin(KERNELS, VARIABLES)
PTX = cubin.PTX.encode()

IMAGES = {
    "cubin": CUBIN,
    "ptx": PTX,
    "fatbin of a cubin": cubin.fatbin(("elf", 90, CUBIN), ("ptx", 70, PTX)),
    "fatbin of ptx": cubin.fatbin(("elf", 75, cubin.cubin((), sm=75)), ("ptx", 70, PTX)),
    "fatbin packed": cubin.fatbin(("zstd", 90, b"?"), ("lz4", 70, PTX)),
}

LOADED = """
with open(sys.argv[1], "rb") as file:
    image = file.read()
context()
module = P()
def load(image):
    return cuda.cuModuleLoadData(byref(module), image)
def function(name):
    found = P()
    return cuda.cuModuleGetFunction(byref(found), module, name), found
def variable(name):
    address, size = U64(), SIZE()
    result = cuda.cuModuleGetGlobal_v2(byref(address), byref(size), module, name)
    if result:
        return result
    content = ctypes.create_string_buffer(size.value)
    check(cuda.cuMemcpyDtoH_v2(content, address, size))
    return content.raw.hex()
def parameters(handle):
    found, offset, size = [], SIZE(), SIZE()
    while not cuda.cuFuncGetParamInfo(handle, SIZE(len(found)), byref(offset), byref(size)):
        found.append([offset.value, size.value])
    return found
def attribute(handle, number):
    value = INT()
    check(cuda.cuFuncGetAttribute(byref(value), number, handle))
    return value.value
"""


@pytest.fixture(scope="module", name="machine")
def fixture_machine(tmp_path_factory):
    return simulator.open_machine("h100,t4", tmp_path_factory.mktemp("machines"))


@pytest.fixture(name="ask")
def fixture_ask(machine, tmp_path):
    def ask(image, source, *arguments):
        path = tmp_path / "image"
        path.write_bytes(image)
        return ask_bare(machine, LOADED + source, path, *arguments)

    return ask


@pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
def test_kernels_and_variables_are_found_in_every_format(ask, image):
    answer = ask(
        image,
        """
check(load(image))
result, mixed = function(b"mixed")
answer({"kernels": [function(name)[0] for name in (b"sim_copy", b"mixed", b"bare", b"nosuch")],
        "parameters": parameters(mixed), "none": parameters(function(b"bare")[1]),
        "threads": attribute(mixed, 0), "shared": attribute(mixed, 1),
        "variables": [variable(n) for n in (b"counter", b"table", b"zeros", b"nosuch")]})
""",
    )
    assert answer == {
        "kernels": [OK, OK, OK, NOT_FOUND],
        "parameters": [[0, 1], [8, 8], [16, 4], [20, 10]],
        "none": [],
        "threads": 256,
        "shared": 512,
        "variables": ["07000000", "0102030400000000", "00" * 32, NOT_FOUND],
    }


def test_an_image_is_loaded_from_a_file(ask):
    answer = ask(
        CUBIN,
        "check(cuda.cuModuleLoad(byref(module), sys.argv[1].encode()));"
        "answer([function(b'bare')[0], cuda.cuModuleLoad(byref(module), b'/nowhere')])",
    )
    assert answer == [OK, FILE_NOT_FOUND]


def test_the_wrapper_of_a_fat_binary_is_followed(ask):
    answer = ask(
        IMAGES["fatbin of a cubin"],
        """
inner = ctypes.create_string_buffer(image, len(image))
wrapper = (ctypes.c_uint64 * 3)(0x1466243B1, ctypes.addressof(inner), 0)
answer([cuda.cuModuleLoadFatBinary(byref(module), wrapper), function(b"bare")[0]])
""",
    )
    assert answer == [OK, OK]


@pytest.mark.parametrize(
    ("image", "result"),
    [
        pytest.param(b"", INVALID_IMAGE, id="nothing"),
        pytest.param(b"this is no image", INVALID_IMAGE, id="words"),
        pytest.param(b"\x7fELF", INVALID_IMAGE, id="the beginning of an ELF"),
        pytest.param(CUBIN[:200], INVALID_IMAGE, id="a short cubin"),
        pytest.param(b"\0" * 64, INVALID_IMAGE, id="zeros"),
        pytest.param(cubin.cubin(KERNELS, sm=75), NO_BINARY, id="another generation's cubin"),
        pytest.param(cubin.fatbin(("zstd", 90, b"?")), NO_BINARY, id="packed in another way"),
        pytest.param(cubin.fatbin(("elf", 75, CUBIN)), NO_BINARY, id="a fat binary without ours"),
        pytest.param(cubin.fatbin(), NO_BINARY, id="an empty fat binary"),
        pytest.param(PTX.replace(b".target", b".tar"), INVALID_PTX, id="PTX without a target"),
        pytest.param(PTX[: PTX.index(b"ret;")], INVALID_PTX, id="PTX that stops"),
        pytest.param(PTX + b"nonsense", INVALID_PTX, id="PTX with a word"),
        pytest.param(PTX.replace(b".u64 out", b".what out"), INVALID_PTX, id="an unknown type"),
    ],
)
def test_a_bad_image_is_refused_by_a_code(ask, image, result):
    assert ask(image, "answer([load(image + bytes(8)), module.value])") == [result, None]


def test_the_device_of_the_context_decides_what_suits(ask):
    answer = ask(
        cubin.cubin(KERNELS, sm=75),
        "first = load(image); context(1); answer([first, load(image), function(b'mixed')[0]])",
    )
    assert answer == [NO_BINARY, OK, OK]


FUZZ = """
import mmap, random
PAGE = mmap.PAGESIZE
room = (len(image) + PAGE - 1) // PAGE * PAGE
pages = mmap.mmap(-1, room + PAGE)
start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
libc = ctypes.CDLL(None, use_errno=True)
if libc.mprotect(P(start + room), SIZE(PAGE), 0):
    raise SystemExit("cannot guard the page")
dice = random.Random(5)
codes = {}
for turn in range(int(sys.argv[2])):
    broken = bytearray(image)
    if turn % 3 == 0:
        del broken[dice.randrange(len(broken)):]
    for _ in range(dice.randrange(6)):
        if broken:
            at = dice.randrange(len(broken)) if dice.random() < 0.5 else dice.randrange(
                min(len(broken), 700))
            broken[at] = dice.choice((0, 0xFF, dice.randrange(256)))
    at = room - len(broken)  # the byte after the image is unreadable
    pages[at:room] = bytes(broken)
    result = cuda.cuModuleLoadData(byref(module), P(start + at))
    codes[result] = codes.get(result, 0) + 1
    if not result:
        check(cuda.cuModuleUnload(module))
answer([sorted(codes), info()[1] - info()[0]])
"""


@pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
def test_a_broken_image_is_refused_and_never_a_crash(ask, machine, image):
    codes, held = ask(image, FUZZ, 1500)
    assert set(codes) <= {OK, 2, INVALID_IMAGE, NO_BINARY, INVALID_PTX}
    assert INVALID_IMAGE in codes
    assert held == machine.devices[0].context_bytes


def test_unloading_a_module_frees_its_memory(ask):
    answer = ask(
        cubin.cubin((), (Variable("large", 64 << 20), Variable("small", 4))),
        """
before = available()
check(load(image))
held = before - available()
check(cuda.cuModuleUnload(module))
answer([held, before - available(), cuda.cuModuleUnload(module)])
""",
    )
    assert answer == [(64 << 20) + 512, 0, INVALID_HANDLE]


def test_a_module_that_does_not_fit_is_out_of_memory(ask):
    answer = ask(
        cubin.cubin((), (Variable("one", 1 << 20), Variable("two", 1 << 40))),
        "before = available(); answer([load(image), before - available()])",
    )
    assert answer == [2, 0]


def test_a_module_goes_with_its_context(ask):
    answer = ask(
        CUBIN,
        """
check(load(image))
check(cuda.cuDevicePrimaryCtxReset_v2(0))
context()
answer([cuda.cuModuleUnload(module), function(b"bare")[0]])
""",
    )
    assert answer == [INVALID_HANDLE, INVALID_HANDLE]


def test_each_module_has_freshly_initialised_variables(ask):
    answer = ask(
        CUBIN,
        """
check(load(image))
address = U64()
check(cuda.cuModuleGetGlobal_v2(byref(address), None, module, b"counter"))
check(cuda.cuMemsetD8_v2(address, 9, SIZE(4)))
check(cuda.cuModuleGetGlobal_v2(byref(address), None, module, b"zeros"))
check(cuda.cuMemsetD8_v2(address, 9, SIZE(32)))
first = [variable(b"counter"), variable(b"zeros")]
check(cuda.cuModuleUnload(module))
check(load(image))
answer([*first, variable(b"counter"), variable(b"zeros")])
""",
    )
    assert answer == ["09" * 4, "09" * 32, "07000000", "00" * 32]


def test_a_library_needs_no_context_and_has_a_module_in_each(ask):
    answer = ask(
        PTX,
        """
check(cuda.cuCtxSetCurrent(None))
library, kernel, function_, made, count = P(), P(), P(), P(), UINT()
check(cuda.cuLibraryLoadData(byref(library), image, None, None, 0, None, None, 0))
check(cuda.cuLibraryGetKernel(byref(kernel), library, b"mixed"))
check(cuda.cuLibraryGetKernelCount(byref(count), library))
seen = [count.value, cuda.cuKernelGetFunction(byref(function_), kernel)]
addresses = []
for ordinal in (0, 1):
    context(ordinal)
    address, size = U64(), SIZE()
    check(cuda.cuLibraryGetGlobal(byref(address), byref(size), library, b"zeros"))
    addresses.append(address.value)
    check(cuda.cuKernelGetFunction(byref(function_), kernel))
    seen += [size.value, parameters(function_) == parameters(kernel)]
check(cuda.cuLibraryUnload(library))
answer([*seen, addresses[0] != addresses[1], cuda.cuLibraryUnload(library),
        cuda.cuLibraryGetKernel(byref(kernel), library, b"mixed")])
""",
    )
    assert answer == [3, 201, 32, True, 32, True, True, INVALID_HANDLE, INVALID_HANDLE]


def test_modules_and_libraries_functions_and_kernels_stand_for_each_other(ask):
    answer = ask(
        PTX,
        """
check(load(image))
kernel, library, name = P(), P(), ctypes.c_char_p()
check(cuda.cuLibraryGetKernel(byref(kernel), module, b"bare"))
check(cuda.cuLibraryLoadData(byref(library), image, None, None, 0, None, None, 0))
found = P()
check(cuda.cuModuleGetFunction(byref(found), library, b"mixed"))
check(cuda.cuKernelGetName(byref(name), found))
seen = [name.value.decode()]
check(cuda.cuFuncGetName(byref(name), kernel))
answer([*seen, name.value.decode()])
""",
    )
    assert answer == ["mixed", "bare"]


def test_functions_are_counted_and_listed(ask):
    answer = ask(
        CUBIN,
        """
check(load(image))
count, listed, names = UINT(), (P * 3)(), []
check(cuda.cuModuleGetFunctionCount(byref(count), module))
check(cuda.cuModuleEnumerateFunctions(listed, 3, module))
for handle in listed:
    name = ctypes.c_char_p()
    check(cuda.cuFuncGetName(byref(name), P(handle)))
    names.append(name.value.decode())
answer([count.value, names])
""",
    )
    assert answer == [3, ["bare", "mixed", "sim_copy"]]


def test_dynamic_shared_memory_can_be_raised_to_what_the_device_has(ask):
    answer = ask(
        CUBIN,
        """
check(load(image))
mixed = function(b"mixed")[1]
seen = [attribute(mixed, 8)]
seen += [cuda.cuFuncSetAttribute(mixed, 8, size) for size in (232448 - 512, 232448, -1)]
answer([*seen, attribute(mixed, 8), cuda.cuFuncSetAttribute(mixed, 0, 1)])
""",
    )
    assert answer == [49152 - 512, OK, INVALID_VALUE, INVALID_VALUE, 232448 - 512, INVALID_VALUE]


@pytest.mark.parametrize(
    ("block", "dynamic", "blocks"),
    [
        pytest.param(256, 0, 8, id="by threads"),
        pytest.param(32, 0, 32, id="by blocks"),
        pytest.param(256, 40000, 5, id="by shared memory"),
        pytest.param(512, 0, 0, id="more threads than the kernel allows"),
        pytest.param(256, 1 << 20, 0, id="more shared memory than there is"),
    ],
)
def test_occupancy_follows_from_the_sizes(ask, block, dynamic, blocks):
    answer = ask(
        CUBIN,
        "check(load(image)); n = INT(-1);"
        "check(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(byref(n), function(b'mixed')[1],"
        "int(sys.argv[2]), SIZE(int(sys.argv[3])))); answer(n.value)",
        block,
        dynamic,
    )
    assert answer == blocks


@pytest.mark.parametrize("count", [1, 2])
def test_linked_image_can_be_loaded(ask, count):
    answer = ask(
        CUBIN,
        """
state, made, size = P(), P(), SIZE()
check(cuda.cuLinkCreate_v2(0, None, None, byref(state)))
other = b".version 8.0\\n.target sm_70\\n.visible .entry added(.param .u64 a) { ret; }"
for kind, data in ((0, image), (1, other))[:int(sys.argv[2])]:
    check(cuda.cuLinkAddData_v2(state, kind, data, SIZE(len(data)), b"x", 0, None, None))
bad = cuda.cuLinkAddData_v2(state, 1, b".version", SIZE(8), b"x", 0, None, None)
check(cuda.cuLinkComplete(state, byref(made), byref(size)))
check(cuda.cuModuleLoadData(byref(module), made))
check(cuda.cuLinkDestroy(state))
answer([bad, function(b"added")[0], parameters(function(b"mixed")[1]), variable(b"counter")])
""",
        count,
    )
    assert answer == [
        INVALID_PTX,
        OK if count == 2 else NOT_FOUND,
        [[0, 1], [8, 8], [16, 4], [20, 10]],
        "07000000",
    ]


@pytest.mark.parametrize(
    ("call", "result"),
    [
        pytest.param("cuModuleLoadData(None, image)", INVALID_VALUE, id="nowhere to put it"),
        pytest.param("cuModuleLoadData(byref(P()), None)", INVALID_VALUE, id="no image"),
        pytest.param("cuModuleLoadData(byref(P()), P(64))", INVALID_IMAGE, id="wild address"),
        pytest.param("cuModuleUnload(None)", INVALID_HANDLE, id="unload nothing"),
        pytest.param(
            "cuModuleGetFunction(byref(P()), None, b'x')", INVALID_HANDLE, id="no module"
        ),
        pytest.param("cuModuleGetFunction(byref(P()), module, None)", INVALID_VALUE, id="no name"),
        pytest.param(
            "cuFuncGetAttribute(byref(INT()), 0, None)", INVALID_HANDLE, id="no function"
        ),
        pytest.param("cuLibraryUnload(None)", INVALID_HANDLE, id="no library"),
        pytest.param("cuLinkComplete(None, None, None)", INVALID_HANDLE, id="no link"),
    ],
)
def test_bad_calls_are_refused(ask, call, result):
    assert ask(CUBIN, f"check(load(image)); answer(cuda.{call})") == result
