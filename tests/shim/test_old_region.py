"""The current shim with region files of layout 1."""

import json

import old_region
import pytest
from shim_room import GIB, MIB

from pyvgpu import device, names

VMEMORY = 2 * GIB
RESERVE = 512 * MIB  # of old_region


@pytest.fixture
def old_room(make_room, machine):
    """Return a room whose region has files of layout 1, with nothing charged."""
    room = make_room(machine)
    uuid = device.uuid_bytes(room.devices[0].uuid)
    files = {
        names.QUOTA_FILE: (old_region.quota(uuid, VMEMORY, room.driver.release), 0o444),
        names.USAGE_FILE: (old_region.usage({}), 0o644),
    }
    for name, (content, mode) in files.items():
        path = room.folder / name
        path.unlink()
        path.write_bytes(content)
        path.chmod(mode)
    return room


def test_quota_is_enforced_and_shown(old_room):
    source = """
context()
total = info()[1]
refused, pointer = alloc(1537 * MIB)
fits, pointer = alloc(1536 * MIB)
left = available()
answer([total, refused, fits, left, free(pointer), available()])
"""
    left = VMEMORY - RESERVE
    assert old_room.ask(source) == [VMEMORY, 2, 0, left - 1536 * MIB, 0, left]


def test_memory_of_dead_processes_is_free_again(old_room):
    holder = old_room.start("context(); alloc(1024 * MIB); answer(0); sys.stdin.read()")
    assert json.loads(holder.stdout.readline()) == 0
    source = "context(); answer([alloc(512 * MIB)[0], alloc(512 * MIB)[0]])"
    assert (
        old_room.ask(
            "cuda.cuInit(0); made = P(); answer(cuda.cuDevicePrimaryCtxRetain(byref(made), 0))"
        )
        == 0
    )
    assert old_room.ask("context(); answer(alloc(512 * MIB)[0])") == 2
    holder.kill()
    holder.communicate()
    assert old_room.ask(source) == [0, 0]


def test_memory_cannot_be_exported_without_link_records(old_room):
    source = """
context()
pointer = alloc(2 * MIB)[1]
handle = (ctypes.c_char * 64)()
answer([cuda.cuIpcGetMemHandle(handle, pointer), free(pointer), available()])
"""
    assert old_room.ask(source) == [2, 0, VMEMORY - RESERVE]


def test_old_file_is_not_extended(old_room):
    old_room.ask("context(); alloc(2 * MIB); answer(0)")
    assert (old_room.folder / names.USAGE_FILE).stat().st_size == old_region.USAGE_SIZE
