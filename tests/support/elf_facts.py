"""What the loader will want of a built library or program."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elftools.elf import elffile

PRIVATE = (99,)  # what glibc keeps for itself: later than any version


def glibc_versions(library: elffile.ELFFile) -> set[tuple[int, ...]]:
    """Return every version of glibc's that a symbol is asked for in."""
    names = {
        each.name
        for needed, auxiliaries in library.get_section_by_name(".gnu.version_r").iter_versions()
        for each in auxiliaries
        if needed.name.startswith(("lib", "ld-linux"))
    }
    texts = {name.removeprefix("GLIBC_") for name in names}
    return {PRIVATE if t == "PRIVATE" else tuple(map(int, t.split("."))) for t in texts}


def needed(library: elffile.ELFFile) -> list[str]:
    """Return the libraries that are needed, in their order."""
    return [tag.needed for tag in _dynamic(library).iter_tags("DT_NEEDED")]


def is_bound_at_once(library: elffile.ELFFile) -> bool:
    """Tell whether what the loader wrote is read-only before any code runs (full RELRO)."""
    relro = [s for s in library.iter_segments() if s["p_type"] == "PT_GNU_RELRO"]
    return bool(relro) and any(t["d_val"] & 1 for t in _dynamic(library).iter_tags("DT_FLAGS_1"))


def _dynamic(library: elffile.ELFFile) -> elffile.DynamicSection:
    return library.get_section_by_name(".dynamic")
