"""Package upgrades under running programs: each keeps the shim that it started with."""

import hashlib
import re
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.wheels

UPGRADES = 20
SHIM = "pyvgpu/lib/libcuda-control.so"
PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
lines = open("/proc/self/maps").read().splitlines()
(shim,) = {line.split()[-1] for line in lines if line.endswith("/lib64/libcuda.so.1")}
print(shim, flush=True)
for size in sys.stdin:
    result = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(size)))
    print(result or cuda.cuMemFree_v2(pointer), flush=True)
"""
FITS, TOO_MUCH = 1 << 20, 1 << 30


def repacked(wheel: Path, number: int, folder: Path) -> Path:
    """Return a copy of *wheel* with another version number and different shim contents."""
    version = re.match(r"pyvgpu-([^-]+)-", wheel.name)[1]
    other = f"{version}+{number}"
    copy = folder / wheel.name.replace(version, other)
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(copy, "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            entry.filename = entry.filename.replace(f"-{version}.dist-info", f"-{other}.dist-info")
            if entry.filename == SHIM:
                content += b"%d" % number
            elif entry.filename.endswith((".dist-info/METADATA", ".dist-info/RECORD")):
                content = content.replace(version.encode(), other.encode())
            new.writestr(entry, content)
    return copy


class Program:
    """A program under `pyvgpu run` that allocates on request."""

    def __init__(self, installed):
        options = ("--simulate", "t4", "--vmemory", "1GiB")
        self.process = installed.start("pyvgpu", "run", *options, "--", "python", "-c", PROGRAM)
        self._shim = Path(self.process.stdout.readline().strip())
        self.began_with = self.digest()

    def digest(self):
        return hashlib.sha256(self._shim.read_bytes()).hexdigest()

    def allocate(self, size):
        self.process.stdin.write(f"{size}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


def test_programs_go_on_with_their_shim_through_twenty_upgrades(installed, wheels, tmp_path):
    wheel = wheels[sysconfig.get_platform().removeprefix("linux-")]
    programs = [Program(installed)]
    for number in range(1, UPGRADES + 1):
        installed.install(repacked(wheel, number, tmp_path))
        if number % 5 == 0:
            programs.append(Program(installed))
        for program in programs:
            assert [program.allocate(FITS), program.allocate(TOO_MUCH)] == [0, 2]
            assert program.digest() == program.began_with
    assert len({program.began_with for program in programs}) == len(programs)
    for program in programs:
        program.process.communicate(timeout=60)
        assert program.process.returncode == 0
