"""The binary layout of a region's files, from csrc/core/region.h through cffi.

Files that other processes may write are never mapped, but read by pread, so that a tenant that
truncates one does no harm (no SIGBUS).
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu._region import ffi

if TYPE_CHECKING:
    from collections.abc import Mapping

SLOTS: int = ffi.integer_const("REGION_SLOTS")
DEVICES: int = ffi.integer_const("REGION_DEVICES")
SUPERVISOR_BYTE: int = ffi.integer_const("QUOTA_LOCK_SUPERVISOR")
SLOT_BYTE: int = ffi.integer_const("USAGE_LOCK_SLOT")
_BLOCK_SHIFT: int = ffi.integer_const("LEDGER_BLOCK_SHIFT")
BYTES: int = (1 << _BLOCK_SHIFT) - 1  # of a word; above it are marks:
BLOCK: int = 1 << _BLOCK_SHIFT  # one block of the bytes counts by its state
UNDECIDED: int = (1 << ffi.integer_const("LEDGER_PENDING_SHIFT")) - 1  # a charge, if greater
BLOCKS_SINCE = 5  # the layout that added the states
BLOCK_SLOTS: int = ffi.integer_const("BLOCK_SLOTS")  # the slots that have one

READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
MAKE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW

HEADER_BYTES: int = ffi.sizeof("struct region_header")
_LAYOUT = ffi.integer_const("REGION_LAYOUT")


@dataclasses.dataclass(frozen=True, slots=True)
class FileKind:
    """One of the two kinds of file; DataError if an open one is not of it, or too short."""

    name: str
    magic: int
    sizes: Mapping[int, int]  # by layout: the whole file, or the part before a newer field

    def layout_of(self, file: int) -> int:
        """Return the layout of the open *file*, after checking its header and size."""
        return self.check(file, self.read(file, HEADER_BYTES, 0))

    def check(self, file: int, head: bytes) -> int:
        """Like :meth:`layout_of`, for an open *file* that begins with *head*."""
        header = ffi.from_buffer("struct region_header *", head, require_writable=False)
        if header.magic != self.magic:
            raise errors.DataError(f"{self.name}: not a {self.name} file (wrong magic)")
        if header.layout not in self.sizes:
            raise errors.DataError(
                f"{self.name}: layout {header.layout}: this pyvgpu supports {min(self.sizes)} to "
                f"{max(self.sizes)}"
            )
        size = os.fstat(file).st_size
        if not header.size == self.sizes[header.layout] <= size:
            raise errors.DataError(f"{self.name}: is too short, it ends at {size} bytes")
        return int(header.layout)

    def read_id(self, file: int) -> bytes:
        """Return the region id in the open *file*, after checking its header and size."""
        self.layout_of(file)
        return self.read(file, 16, ffi.offsetof("struct region_header", "region_id"))

    def read_integers(self, file: int, field: str) -> tuple[int, ...]:
        """Return a *field* with a number for each device."""
        raw = self.read(file, 8 * DEVICES, ffi.offsetof(f"struct {self.name}_file", field))
        return tuple(memoryview(raw).cast("Q"))

    def read(self, file: int, size: int, offset: int) -> bytes:
        """Return *size* bytes from *offset*."""
        raw = os.pread(file, size, offset)
        if len(raw) != size:
            end = offset + len(raw)
            raise errors.DataError(f"{self.name}: is too short, it ends at {end} bytes")
        return raw

    def write_header(self, file: int, region_id: bytes) -> None:
        """Write the header of the newest layout to the open *file*."""
        header = ffi.new("struct region_header *")
        header.magic = self.magic
        header.layout = _LAYOUT
        header.size = self.sizes[_LAYOUT]
        header.region_id = region_id
        os.pwrite(file, bytes(ffi.buffer(header)), 0)


QUOTA = FileKind(
    "quota",
    ffi.integer_const("QUOTA_MAGIC"),
    {
        1: ffi.offsetof("struct quota_file", "extra_total"),
        2: ffi.sizeof("struct quota_file"),
        3: ffi.sizeof("struct quota_file"),
        4: ffi.sizeof("struct quota_file"),
        5: ffi.sizeof("struct quota_file"),
    },
)
USAGE = FileKind(
    "usage",
    ffi.integer_const("USAGE_MAGIC"),
    {
        1: ffi.offsetof("struct usage_file", "link_end"),
        2: ffi.offsetof("struct usage_file", "idle"),
        3: ffi.offsetof("struct usage_file", "progress"),
        4: ffi.offsetof("struct usage_file", "blocks"),
        5: ffi.sizeof("struct usage_file"),
    },
)
