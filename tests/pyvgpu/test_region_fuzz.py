"""Readers of damaged region files refuse them, or return what was written."""

import os
import struct
import tempfile
from pathlib import Path

import hypothesis
import old_region
import pytest
from hypothesis import strategies

from pyvgpu import device, errors, locks, quota, region
from pyvgpu._region import ffi
from pyvgpu.device import Device
from pyvgpu.share import Share

pytestmark = pytest.mark.slow

VMEMORY = 4 << 30
DEVICE = Device("GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", 0, "H100", 80 << 30, 512 << 20)
SLOT_BYTE = ffi.integer_const("USAGE_LOCK_SLOT")

# Where damage matters: headers, copies of the limits, the edges of what is counted.
QUOTA_SPOTS = (0, 8, 12, 32, 40, 44, 80, 976, 984, 1936, 133008)
USAGE_SPOTS = (0, 8, 12, 32, 40, 176, 704, 66240, 197304, 332480, 332544, 463600)

words = strategies.one_of(
    strategies.sampled_from([0, 1, 2, 3, 2**16, 2**31, 2**32 - 1, 2**52, 2**63, 2**64 - 1]),
    strategies.integers(0, 2**64 - 1),
)


def damages(size, spots):
    """Words written somewhere, and perhaps another length."""
    places = strategies.one_of(
        strategies.sampled_from([spot for spot in spots if spot < size]),
        strategies.integers(0, size - 1),
    )
    lengths = strategies.one_of(
        strategies.just(size),
        strategies.sampled_from([0, 1, 31, 32, 33, size - 1, size + 1, size + 4096]),
        strategies.integers(0, size),
    )
    return strategies.tuples(
        strategies.lists(strategies.tuples(places, words), max_size=6), lengths
    )


def whole_files():
    """Return quota and usage of the layout that is written today."""
    with tempfile.TemporaryDirectory() as folder:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        os.close(region.create(handle, "1.0", [Share(DEVICE, 30, VMEMORY, quota.TimePolicy.HARD)]))
        os.close(handle)
        return [(Path(folder) / name).read_bytes() for name in ("quota", "usage")]


QUOTA, USAGE = whole_files()
OLD_QUOTA = old_region.quota(device.uuid_bytes(DEVICE.uuid), VMEMORY, "1.0")
OLD_USAGE = old_region.usage({0: 1000, 1: 2000})


def damaged(content, damage):
    """Return an open file of *content* after *damage*."""
    writes, length = damage
    file = os.memfd_create("damaged", os.MFD_CLOEXEC)
    os.write(file, content)
    for place, word in writes:
        os.pwrite(file, struct.pack("<Q", word), place)
    os.ftruncate(file, length)
    return file


many = hypothesis.settings(max_examples=1500, derandomize=True)


@pytest.mark.parametrize("content", [QUOTA, OLD_QUOTA], ids=["layout 2", "layout 1"])
def test_damaged_quota_is_refused_or_says_what_was_written(content):
    @many
    @hypothesis.given(damages(len(content), QUOTA_SPOTS))
    def check(damage):
        file = damaged(content, damage)
        try:
            limits = region.read_limits(file)
            region.read_extra(file, 16)
        except errors.DataError:
            return
        finally:
            os.close(file)
        assert [(entry.uuid, entry.vmemory) for entry in limits.devices] == [
            (DEVICE.uuid, VMEMORY)
        ]

    check()


@pytest.mark.parametrize("content", [USAGE, OLD_USAGE], ids=["layout 2", "layout 1"])
def test_damaged_usage_is_refused_or_read(content):
    @many
    @hypothesis.given(damages(len(content), USAGE_SPOTS), strategies.booleans())
    def check(damage, alive):
        file = damaged(content, damage)
        reader = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if alive:
                locks.take(file, SLOT_BYTE + 1)
            usage = region.read_usage(reader)
            processes, figures = region.read_figures(reader, region.DEVICES)
            compute = region.read_compute(reader, region.DEVICES)
        except errors.DataError:
            return
        finally:
            os.close(reader)
            os.close(file)
        assert [slot.slot for slot in usage.slots] == ([1] if alive else [])
        assert all(held >= 0 for held in usage.charged + usage.orphaned)
        assert processes == len(usage.slots)
        assert [(figure.charged, figure.refused) for figure in figures] == list(
            zip(usage.charged, usage.refused, strict=True)
        )
        assert [(figure.busy_ns, figure.waited_ns, figure.waits) for figure in figures] == [
            (column.busy_ns, column.waited_ns, column.waits) for column in compute
        ]

    check()
