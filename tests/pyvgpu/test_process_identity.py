"""Matching of processes and slots."""

import os

import headless

from pyvgpu import region
from pyvgpu.machine import process_identity

MAP = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
"""


def test_a_process_whose_main_thread_has_ended_keeps_its_slot(tmp_path):
    path = tmp_path / "usage"
    path.write_bytes(bytes(4096))
    with path.open("rb") as usage, headless.running(MAP, path) as pid:
        slots = [region.SlotUsage(3, pid, 0, "python3", 0, 0, (), ())]
        known = process_identity.SlotProcesses(usage.fileno())
        assert known.slot_of(pid, slots) == 3
        assert known.slot_of(os.getpid(), slots) is None
