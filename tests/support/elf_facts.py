"""What a built library or program requires of the dynamic loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elftools.elf import elffile

PRIVATE = (99,)  # GLIBC_PRIVATE: later than any version


def glibc_versions(library: elffile.ELFFile) -> set[tuple[int, ...]]:
    """Return every glibc symbol version that the library requires."""
    names = {
        each.name
        for needed, auxiliaries in library.get_section_by_name(".gnu.version_r").iter_versions()
        for each in auxiliaries
        if needed.name.startswith(("lib", "ld-linux"))
    }
    texts = {name.removeprefix("GLIBC_") for name in names}
    return {PRIVATE if t == "PRIVATE" else tuple(map(int, t.split("."))) for t in texts}


def needed(library: elffile.ELFFile) -> list[str]:
    """Return the DT_NEEDED libraries, in order."""
    return [tag.needed for tag in _dynamic(library).iter_tags("DT_NEEDED")]


def is_bound_at_once(library: elffile.ELFFile) -> bool:
    """Return whether the library is linked with full RELRO: BIND_NOW, relocations read-only."""
    relro = [s for s in library.iter_segments() if s["p_type"] == "PT_GNU_RELRO"]
    return bool(relro) and any(t["d_val"] & 1 for t in _dynamic(library).iter_tags("DT_FLAGS_1"))


def _dynamic(library: elffile.ELFFile) -> elffile.DynamicSection:
    return library.get_section_by_name(".dynamic")
