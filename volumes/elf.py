"""What a mirror must know of an ELF file; says nothing of where the file came from."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from elftools.elf.dynamic import DynamicTag

_MAGIC = b"\x7fELF"


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


def read_elf(path: Path) -> Elf:
    """Read *path*; ElfError if it is no sound ELF file, OSError if it cannot be read."""
    from elftools.elf.dynamic import DynamicSegment
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as stream:
        _check_magic(path, stream)
        with _damage(path):
            elf = ELFFile(stream)
            dynamic = (part for part in elf.iter_segments() if isinstance(part, DynamicSegment))
            tags = [tag for part in dynamic for tag in part.iter_tags()]
            return Elf(
                bits=elf.elfclass,
                machine=str(elf["e_machine"]),
                kind=str(elf["e_type"]),
                soname=next(iter(_texts(tags, "soname")), None),
                needed=tuple(_texts(tags, "needed")),
            )


def _texts(tags: list[DynamicTag], kind: str) -> list[str]:
    """Return the strings of all tags of one kind; the parser keeps them as attributes."""
    wanted = f"DT_{kind.upper()}"
    return [str(getattr(tag, kind)) for tag in tags if tag.entry.d_tag == wanted]


def exported_functions(path: Path) -> frozenset[str]:
    """Return the names of the functions that the library *path* defines for others."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    with path.open("rb") as stream:
        _check_magic(path, stream)
        with _damage(path):
            table = ELFFile(stream).get_section_by_name(".dynsym")
            return frozenset(
                symbol.name
                for symbol in (
                    table.iter_symbols() if isinstance(table, SymbolTableSection) else ()
                )
                if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["type"] == "STT_FUNC"
            )


def needed_versions(path: Path) -> frozenset[str]:
    """Return the symbol versions that *path* wants of others, such as ``GLIBC_2.17``."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection

    with path.open("rb") as stream:
        _check_magic(path, stream)
        with _damage(path):
            section = ELFFile(stream).get_section_by_name(".gnu.version_r")
            if not isinstance(section, GNUVerNeedSection):
                return frozenset()
            return frozenset(
                version.name for _, versions in section.iter_versions() for version in versions
            )


def _check_magic(path: Path, stream: BinaryIO) -> None:
    start = stream.read(len(_MAGIC))
    if start != _MAGIC:
        raise ElfError(f"{path}: not an ELF library (it starts with {start!r})")
    stream.seek(0)


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Turn what the parser raises inside into an ElfError.

    The parser meets a damaged file with whatever its code happens to stumble over, from its
    own ELFError to ValueError and seeks that the kernel refuses; hence so wide a net.
    """
    try:
        yield
    except Exception as exc:
        raise ElfError(f"{path}: a damaged ELF file ({exc})") from exc
