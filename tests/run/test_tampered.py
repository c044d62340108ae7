"""A run that overwrites its own ledger: its memory is still counted, and the run is marked."""

import subprocess

import pytest
import waiting
from runner import PYVGPU

from pyvgpu import region

from .conftest import reservation_folders

pytestmark = pytest.mark.slow

PROGRAM = """
import ctypes, os, sys
from ctypes import byref
MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0)
(usage,) = {line.split()[-1] for line in open("/proc/self/maps") if line.endswith("/usage\\n")}
with open(usage, "rb") as file:
    earlier = file.read()
cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
cuda.cuCtxSetCurrent(context)
print(cuda.cuMemAlloc_v2(byref(pointer), ctypes.c_size_t(700 * MIB)), flush=True)
sys.stdin.readline()
with open(usage, "r+b") as file:
    size = os.fstat(file.fileno()).st_size
    exec(sys.argv[1])
print("changed", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("file.seek(4096); file.write(bytes(size - 4096))", id="zeros"),
        pytest.param("file.seek(4096); file.write(os.urandom(size - 4096))", id="garbage"),
        pytest.param("file.write(bytes(64))", id="no header"),
        pytest.param("file.truncate(65536)", id="cut off"),
        pytest.param("file.write(earlier)", id="an earlier copy"),
    ],
)
def test_a_ledger_changed_by_its_run_is_restored_and_marked(runner, name, change):
    restores(runner, name, change)


def test_a_ledger_on_a_mig_device_is_restored_and_marked(runner, name):
    change = "file.seek(4096); file.write(bytes(size - 4096))"
    restores(runner, name, change, "--simulate", "h100:mig=3g.40gb+2g.20gb", "--device", "0:1")


def restores(runner, name, change, *options):
    """Start a run that makes *change*; fail unless its memory counts again, and it is marked."""
    options = (*options, "--name", name, "--vmemory", "2GiB")
    with runner.started(*options, "python3", "-c", PROGRAM, change) as ran:
        assert ran.stdout.readline() == "0\n"
        before = runner.listed(name)
        assert before["tampered"] is None
        ran.stdin.write("\n")
        ran.stdin.flush()
        assert ran.stdout.readline() == "changed\n"
        (folder,) = reservation_folders(name)
        waiting.wait_until(lambda: (folder / "tampered").exists())
        assert runner.listed(name)["tampered"]
        waiting.wait_until(lambda: counted(folder) >= before["held_bytes"])
        shown = subprocess.run(
            [PYVGPU, "ps"], env=runner.environment, capture_output=True, check=True, text=True
        ).stdout
        assert "# its ledger was changed by something other than the shim" in shown


LINKED = """
import subprocess
other = os.path.join(os.path.dirname(usage), "other")
os.rename(usage, other)
os.symlink(other, usage)
child = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
ran = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
os.unlink(usage)
os.rename(other, usage)
print(ran.stdout.strip(), "usage: Too many levels of symbolic links" in ran.stderr, flush=True)
"""


def test_a_ledger_behind_a_link_starts_no_process(runner, name):
    with runner.started(
        "--name", name, "--vmemory", "2GiB", "python3", "-c", PROGRAM, LINKED
    ) as ran:
        assert ran.stdout.readline() == "0\n"
        ran.stdin.write("\n")
        ran.stdin.flush()
        assert ran.stdout.readline() == "800 True\n"
        assert runner.listed(name)["held_bytes"] > 700 << 20


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param(
            "os.unlink(usage); open(usage, 'wb').write(earlier)", "was replaced", id="replaced"
        ),
        pytest.param("os.unlink(usage)", "was removed", id="removed"),
    ],
)
def test_another_file_in_place_of_the_ledger_marks_the_run(runner, name, change, text):
    options = ("--name", name, "--vmemory", "2GiB")
    with runner.started(*options, "python3", "-c", PROGRAM, change) as ran:
        assert ran.stdout.readline() == "0\n"
        ran.stdin.write("\n")
        ran.stdin.flush()
        assert ran.stdout.readline() == "changed\n"
        (folder,) = reservation_folders(name)
        waiting.wait_until(lambda: (folder / "tampered").exists())
        assert (folder / "tampered").read_text() == f"its usage file {text}"


def counted(folder):
    """Return the bytes that a shim of the run counts: charged, and measured beyond that."""
    with (folder / "usage").open("rb") as usage, (folder / "quota").open("rb") as quota:
        charged = sum(slot.charged[0] for slot in region.read_counted_slots(usage.fileno(), 1))
        return charged + region.read_extra_totals(quota.fileno(), 1)[0]
