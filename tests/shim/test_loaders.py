"""Dynamic loading: other namespaces, scopes and symbol versions, other C libraries.

Each program is held to the quota or refused; none gets the driver without the shim.
"""

import subprocess

import audits
import debian
import hook_table
import pytest
from shim_room import GIB, MIB

NAMESPACES = """
libc = ctypes.CDLL(None)
libc.dlmopen.restype = P
def namespace():
    handle = libc.dlmopen(ctypes.c_long(-1), b"libcuda.so.1", os.RTLD_NOW)
    return ctypes.CDLL("libcuda.so.1", handle=handle) if handle else None
"""


def test_two_namespaces_of_one_process_share_the_quota(room):
    """The second is a shim and a driver of its own, with a context and a slot of their own."""
    answer = room.ask(
        NAMESPACES
        + """
context()
first, _ = alloc(400 * MIB)
cuda = namespace()
context()
results = [first, alloc(400 * MIB)[0], alloc(400 * MIB)[0]]
answer([results, available()])
"""
    )
    held = 2 * (400 * MIB + room.reserve)
    assert held + 400 * MIB > 2 * GIB
    assert answer == [[0, 0, 2], 2 * GIB - held]


def test_a_namespace_that_is_opened_later_is_charged_once_by_an_audit(room):
    source = """
context()
first, _ = alloc(100 * MIB)
answer(first); sys.stdin.readline()
cuda = namespace()
context()
answer(alloc(400 * MIB)[0]); sys.stdin.read()
"""
    with room.start(NAMESPACES + source) as program:
        assert program.stdout.readline() == "0\n"

        def go_on():
            program.stdin.write("\n")
            program.stdin.flush()
            assert program.stdout.readline() == "0\n"

        assert audits.audit(room, go_on) == (0, False)
        program.kill()


def test_namespace_gives_back_all_it_held_when_the_program_ends(room):
    room.ask(NAMESPACES + "cuda = namespace(); context(); answer(alloc(GIB)[0])")
    assert room.ask("context(); answer(available())") == 2 * GIB - room.reserve


@pytest.mark.parametrize("flags", ["os.RTLD_DEEPBIND", "os.RTLD_DEEPBIND | os.RTLD_GLOBAL"])
def test_library_that_is_bound_deeply_is_the_shim(room, flags):
    answer = room.ask(
        f"cuda = ctypes.CDLL('libcuda.so.1', mode=os.RTLD_NOW | {flags})\n"
        "context(); answer([alloc(GIB)[0], alloc(GIB)[0]])"
    )
    assert answer == [0, 2]


def test_linked_library_that_is_opened_deeply_is_held(room, tmp_path):
    source = tmp_path / "linked.c"
    source.write_text(
        "int cuMemAlloc_v2(unsigned long long *pointer, unsigned long size);\n"
        "int ask(unsigned long size);\n"
        "int ask(unsigned long size)\n"
        "{ unsigned long long pointer; return cuMemAlloc_v2(&pointer, size); }\n"
    )
    library = tmp_path / "linked.so"
    driver = f"-l:{room.driver.libcuda.name}"
    command = ["cc", "-shared", "-fPIC", source, "-o", library, f"-L{room.driver.folder}", driver]
    subprocess.run(command, check=True)
    answer = room.ask(
        f"linked = ctypes.CDLL('{library}', mode=os.RTLD_NOW | os.RTLD_DEEPBIND)\n"
        "context(); answer([linked.ask(SIZE(GIB)), linked.ask(SIZE(GIB))])"
    )
    assert answer == [0, 2]


def test_no_version_leads_past_a_hook(room):
    """A versioned look-up finds the shim's symbol or, as in the driver, none."""
    answer = room.ask(
        """
libc = ctypes.CDLL(None)
libc.dlvsym.restype = libc.dlsym.restype = P
libc.dlsym.argtypes = (P, ctypes.c_char_p)
libc.dlvsym.argtypes = (P, ctypes.c_char_p, ctypes.c_char_p)
nvml = ctypes.CDLL("libnvidia-ml.so.1")
wrong = []
for name in map(str.encode, sys.argv[1:]):
    own = libc.dlsym(cuda._handle, name)
    for handle in (cuda._handle, nvml._handle, None):
        for version in (b"GLIBC_2.2.5", b"GLIBC_2.17", b"libcuda.so.1"):
            if libc.dlvsym(handle, name, version) not in (None, own):
                wrong.append(name.decode())
answer(wrong)
""",
        *sorted(hook_table.symbols()),
    )
    assert answer == []


# Physical memory needs no context, which a driver in a statically linked program cannot have.
PROBE = r"""
#include <dlfcn.h>
#include <stdio.h>
struct { int kind, handles, place, ordinal; void *windows; char flags[8]; } memory = {1, 0, 1, 0};
int main(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = cuda ? dlsym(cuda, "cuInit") : 0;
    int (*create)(void *, unsigned long, void *, long) = cuda ? dlsym(cuda, "cuMemCreate") : 0;
    unsigned long handle;
    if (!cuda || init(0)) { puts("refused"); return 0; }
    printf("%d ", create(&handle, 3UL << 29, &memory, 0));
    printf("%d\n", create(&handle, 3UL << 29, &memory, 0));
    return 0;
}
"""
HELD_OR_REFUSED = ("0 2\n", "refused\n")


def run_probe(room, program):
    return subprocess.run(
        [program], env=room.environment(), capture_output=True, text=True, timeout=60
    )


def test_statically_linked_program_that_opens_the_driver_is_held(room, tmp_path):
    source, program = tmp_path / "probe.c", tmp_path / "probe"
    source.write_text(PROBE)
    subprocess.run(["cc", "-w", "-static", source, "-o", program], check=True, capture_output=True)
    assert run_probe(room, program).stdout == "0 2\n"


def test_program_of_another_C_library_is_held_or_refused(room, tmp_path):
    root = debian.unpacked("bookworm", "musl", "musl-dev", component="main")
    folder, libc = root / "usr/lib/x86_64-linux-musl", root / "lib/x86_64-linux-musl/libc.so"
    source, program = tmp_path / "probe.c", tmp_path / "probe"
    source.write_text(PROBE)
    options = ["-w", "-nostdinc", "-isystem", root / "usr/include/x86_64-linux-musl", "-nostdlib"]
    objects = [folder / "crt1.o", folder / "crti.o", source, libc, folder / "crtn.o"]
    loader = f"-Wl,--dynamic-linker={libc}"
    command = ["cc", *options, "-no-pie", *objects, loader, "-o", program]
    subprocess.run(command, check=True)
    assert run_probe(room, program).stdout in HELD_OR_REFUSED


ALLOCATORS = {
    "jemalloc": ("libjemalloc2", "libjemalloc.so.2"),
    "tcmalloc": ("libtcmalloc-minimal4", "libtcmalloc_minimal.so.4"),
}


@pytest.fixture(params=ALLOCATORS)
def allocator(request):
    package, library = ALLOCATORS[request.param]
    root = debian.unpacked("bookworm", package, component="main")
    return root / "usr/lib/x86_64-linux-gnu" / library


@pytest.mark.parametrize("order", ["{0}", "{0}:{1}", "{1}:{0}"], ids=["alone", "first", "last"])
def test_program_with_another_malloc_is_held(room, allocator, order):
    shim = room.tree / "lib64" / "libcuda.so.1"
    answer = room.ask(
        """
context()
kept = [alloc(MIB) for _ in range(500)]
results = [alloc(2 * GIB)[0]] + [free(pointer) for _, pointer in kept]
def work():
    check(cuda.cuCtxSetCurrent(P(0)) or cuda.cuCtxGetCurrent(byref(P())))
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
mapped = any(sys.argv[1] in line for line in open("/proc/self/maps"))
answer([sorted(set(results)), available(), mapped])
""",
        allocator.name.split(".")[0],
        env={"LD_PRELOAD": order.format(allocator, shim)},
    )
    assert answer == [[0, 2], 2 * GIB - room.reserve, True]
