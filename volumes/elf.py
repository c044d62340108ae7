"""Reader for the properties of ELF files that a mirror needs."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import stat
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.volumes import root

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from elftools.elf.dynamic import DynamicTag

_MAGIC = b"\x7fELF"

# Limits for reading one file. NVIDIA's need some thousand reads, up to 8,000 for the fields of Elf
# and 30,000 for the names of all functions, and less than 1 MiB.
_MOST_READS = 100_000
_MOST_BYTES = 16 << 20


class ElfError(errors.DataError):
    """A file is not an ELF file, or a damaged one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Elf:
    """The identity of one ELF file."""

    bits: int  # 32 or 64
    machine: str  # such as EM_X86_64
    kind: str  # ET_DYN for a library
    soname: str | None
    needed: tuple[str, ...]  # DT_NEEDED, in order
    kernel: tuple[int, ...] = ()  # the oldest kernel of its ABI note, such as (2, 3, 99)


def read_elf(path: Path) -> Elf:
    """Read *path*; ElfError if it is not a valid ELF file, OSError if it cannot be read."""
    from elftools.elf.dynamic import DynamicSegment
    from elftools.elf.elffile import ELFFile
    from elftools.elf.segments import NoteSegment

    with _opened(path) as stream, _damage(path):
        elf = ELFFile(stream)
        parts = list(elf.iter_segments())
        tags = [
            tag for part in parts if isinstance(part, DynamicSegment) for tag in part.iter_tags()
        ]
        notes = (
            note for part in parts if isinstance(part, NoteSegment) for note in part.iter_notes()
        )
        return Elf(
            bits=elf.elfclass,
            machine=str(elf["e_machine"]),
            kind=str(elf["e_type"]),
            soname=next(iter(_texts(tags, "soname")), None) or None,
            needed=tuple(_texts(tags, "needed")),
            kernel=_kernel(notes),
        )


def _texts(tags: list[DynamicTag], kind: str) -> list[str]:
    """Return the strings of all tags of one kind; the parser keeps them as attributes."""
    wanted = f"DT_{kind.upper()}"
    return [str(getattr(tag, kind)) for tag in tags if tag.entry.d_tag == wanted]


def _kernel(notes: Iterable[Any]) -> tuple[int, ...]:
    """Return the kernel version of the ABI note; empty if there is none."""
    for note in notes:
        if note["n_type"] == "NT_GNU_ABI_TAG" and note["n_name"] == "GNU":
            tag = note["n_desc"]
            return tag["abi_major"], tag["abi_minor"], tag["abi_tiny"]
    return ()


def exported_functions(path: Path) -> frozenset[str]:
    """Return the names of the functions that the library *path* exports."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    with _opened(path) as stream, _damage(path):
        table = ELFFile(stream).get_section_by_name(".dynsym")
        return frozenset(
            symbol.name
            for symbol in (table.iter_symbols() if isinstance(table, SymbolTableSection) else ())
            if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["type"] == "STT_FUNC"
        )


def needed_versions(path: Path) -> frozenset[str]:
    """Return the symbol versions that *path* requires, such as ``GLIBC_2.17``."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection

    with _opened(path) as stream, _damage(path):
        section = ELFFile(stream).get_section_by_name(".gnu.version_r")
        if not isinstance(section, GNUVerNeedSection):
            return frozenset()
        return frozenset(
            version.name for _, versions in section.iter_versions() for version in versions
        )


class _Sparing(io.BufferedReader):
    """An open file with a limited number of reads, because the parser trusts the file's sizes."""

    def __init__(self, raw: io.FileIO) -> None:
        super().__init__(raw)
        self._reads = _MOST_READS
        self._bytes = _MOST_BYTES

    def read(self, size: int | None = -1) -> bytes:
        """Read *size* bytes; EOFError if the file needs more reads than a valid one."""
        self._reads -= 1
        self._bytes -= size or 0
        if size is None or size < 0 or self._reads < 0 or self._bytes < 0:
            raise EOFError("its headers need too many reads")
        return super().read(size)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Sparing]:
    """Open *path*, which must be a regular file (a pipe would block) and ELF."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with _Sparing(io.FileIO(descriptor)) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ElfError(f"{root.shown(path)}: must be a regular file")
        start = file.read(len(_MAGIC))
        if start != _MAGIC:
            raise ElfError(f"{root.shown(path)}: not an ELF library (it starts with {start!r})")
        file.seek(0)
        yield file


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Turn exceptions of the parser into an ElfError.

    For a damaged file the parser raises anything from its own ELFError to ValueError and OSError
    of invalid seeks; hence the broad except clause.
    """
    try:
        yield
    except Exception as exc:
        reason = " ".join(str(exc).split())
        raise ElfError(f"{root.shown(path)}: a damaged ELF file ({reason})") from exc
