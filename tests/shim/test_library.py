"""The shim's ELF file: exports, dependencies, and properties that it must not have."""

import subprocess

import elf_facts
import hook_table
import pytest
from elftools.elf import elffile

from pyvgpu import shim

WEAK = ("_ITM_", "__gmon_start__", "__cxa_finalize")  # the compiler's own; absent in most programs


@pytest.fixture(scope="module")
def library():
    with shim.shim_library().open("rb") as file:
        yield elffile.ELFFile(file)


def test_hooks_and_nothing_else_are_exported(library):
    symbols = library.get_section_by_name(".dynsym").iter_symbols()
    exported = {s.name for s in symbols if s["st_shndx"] != "SHN_UNDEF" and s.name}
    assert exported == hook_table.symbols()


def test_libraries_are_needed_in_the_order_that_keeps_originals_apart(library):
    dynamic = library.get_section_by_name(".dynamic")
    assert elf_facts.needed(library)[:4] == [
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        "libcuda-origin.so.1",
        "libnvidia-ml-origin.so.1",
    ]
    assert [tag.soname for tag in dynamic.iter_tags("DT_SONAME")] == ["libcuda-control.so"]
    assert [tag.runpath for tag in dynamic.iter_tags("DT_RUNPATH")] == [
        "$ORIGIN:$ORIGIN/../origin:/usr/local/pyvgpu/origin"
    ]


def test_no_symbol_is_newer_than_glibc_2_17_or_private(library):
    assert max(elf_facts.glibc_versions(library)) <= (2, 17)


def test_every_undefined_symbol_has_its_version(library):
    """A symbol without a version would bind to any symbol of that name in the program."""
    versions = library.get_section_by_name(".gnu.version")
    undefined = {
        symbol.name: versions.get_symbol(place)["ndx"]
        for place, symbol in enumerate(library.get_section_by_name(".dynsym").iter_symbols())
        if symbol.name and symbol["st_shndx"] == "SHN_UNDEF"
    }
    plain = {name for name, version in undefined.items() if not isinstance(version, int)}
    assert {name for name in plain if not name.startswith(WEAK)} == set()


def test_tables_of_the_loader_are_read_only_when_code_runs(library):
    assert elf_facts.is_bound_at_once(library)


def test_there_is_no_constructor(library):
    """The only entry is the compiler's frame_dummy."""
    assert library.get_section_by_name(".init_array")["sh_size"] == 8
    disassembly = subprocess.run(
        ["nm", shim.shim_library()], capture_output=True, text=True, check=True
    ).stdout
    assert "frame_dummy" in disassembly or disassembly == ""


def test_no_executable_stack_and_no_text_relocation(library):
    stack = [s for s in library.iter_segments() if s["p_type"] == "PT_GNU_STACK"]
    assert stack
    assert not stack[0]["p_flags"] & 1
    assert not list(library.get_section_by_name(".dynamic").iter_tags("DT_TEXTREL"))
