"""Code and its variables: no call reports their size, so the measured usage decides."""

import pytest
from shim_room import GIB, MIB

from pyvgpu import region

LOADS = """
import sys
PTX = b".version 8.0\\n.target sm_70\\n.address_size 64\\n.visible .entry nop() { ret; }\\n"
with open(sys.argv[1], "wb") as file:
    file.write(PTX)
PATH, NONE, MADE = sys.argv[1].encode(), UINT(0), byref(P())
def loads():
    return [
        cuda.cuModuleLoad(MADE, PATH),
        cuda.cuModuleLoadData(MADE, PTX),
        cuda.cuModuleLoadDataEx(MADE, PTX, NONE, None, None),
        cuda.cuModuleLoadFatBinary(MADE, PTX),
        cuda.cuLibraryLoadData(MADE, PTX, None, None, NONE, None, None, NONE),
        cuda.cuLibraryLoadFromFile(MADE, PATH, None, None, NONE, None, None, NONE),
    ]
context()
check(alloc(GIB)[0])
while True:
    answer(loads())
    if not sys.stdin.readline():
        break
"""


@pytest.fixture
def loads(room, tmp_path):
    """Return a function that loads code in every way, in one process; it returns the results."""
    with room.start(LOADS, tmp_path / "image.ptx") as process:
        first = process.stdout.readline()

        def again():
            print(file=process.stdin, flush=True)
            return process.stdout.readline()

        yield first, again
        process.stdin.close()


def test_measured_usage_over_quota_blocks_further_loads(room, loads):
    first, again = loads
    assert first == "[0, 0, 0, 0, 0, 0]\n"
    left = GIB - room.reserve
    region.publish_extra(room.quota, {(0, 0): left})
    assert again() == first
    region.publish_extra(room.quota, {(0, 0): left + MIB})
    assert again() == "[2, 2, 2, 2, 2, 2]\n"
    region.publish_extra(room.quota, {})
    assert again() == first


def test_lowered_quota_still_loads_code_already_charged(room, loads):
    first, again = loads
    room.set_vmemory(room.reserve + 64 * MIB)
    assert again() == first
