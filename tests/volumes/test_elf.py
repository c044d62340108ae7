import contextlib
import os
import struct
import subprocess
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyvgpu.volumes import elf

LOADED, DYNAMIC = 1, 2
NEEDED, STRTAB, SONAME = 1, 5, 14


def library(tags, text=b"\0libx.so.1\0", segments=(), count=None):
    """Return a 64-bit library with these dynamic *tags*; *text* is its string table.

    *segments* replaces the program headers, *count* what the header says of their number.
    """
    headers = 64
    place = headers + 56 * (len(segments) or 2)
    strings = place + 16 * (len(tags) + 2)
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in (*tags, (STRTAB, strings), (0, 0)))
    size = strings + len(text)
    segments = segments or [
        struct.pack("<IIQQQQQQ", LOADED, 4, 0, 0, 0, size, size, 4096),
        struct.pack("<IIQQQQQQ", DYNAMIC, 4, place, place, place, len(dynamic), len(dynamic), 8),
    ]
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    counted = len(segments) if count is None else count
    head = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, headers, 0, 0, 64, 56, counted, 64, 0, 0)
    return ident + head + b"".join(segments) + dynamic + text


def segment(kind, offset, size):
    return struct.pack("<IIQQQQQQ", kind, 4, offset, offset, offset, size, size, 8)


SOUND = library([(SONAME, 1), (NEEDED, 4)])


def test_reads_the_identity_of_a_library(file):
    assert elf.read_elf(file(SOUND)) == elf.Elf(
        64, "EM_X86_64", "ET_DYN", "libx.so.1", ("x.so.1",)
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"", "not an ELF library", id="empty"),
        pytest.param(b"#!/bin/sh\nexit 0\n", "not an ELF library", id="script"),
        pytest.param(
            b"/* GNU ld script */ INPUT(libx.so.1)", "not an ELF library", id="ld script"
        ),
        pytest.param(b"\x7fELF", "a damaged ELF file", id="only the magic"),
        pytest.param(SOUND[:100], "a damaged ELF file", id="cut in the headers"),
        pytest.param(SOUND[:-60], "a damaged ELF file", id="cut in the tags"),
        pytest.param(
            library([], segments=[segment(DYNAMIC, 1 << 62, 1 << 20)]),
            "a damaged ELF file",
            id="tags far outside the file",
        ),
        pytest.param(library([], count=0xFFF0), "a damaged ELF file", id="more headers than file"),
    ],
)
def test_unsound_libraries_are_refused_with_the_reason(file, content, problem):
    with pytest.raises(elf.ElfError, match=problem) as caught:
        elf.read_elf(file(content))
    assert "\n" not in str(caught.value)


def test_name_outside_the_file_is_ignored(file):
    assert elf.read_elf(file(library([(SONAME, 1 << 40)]))).soname is None


@pytest.mark.parametrize("what", ["read_elf", "exported_functions", "needed_versions"])
def test_truncation_is_damage_or_read_without_harm(file, libraries, what):
    whole = (libraries / "libcuda.so.1").read_bytes()
    for length in range(0, len(whole), 97):
        try:
            getattr(elf, what)(file(whole[:length]))
        except elf.ElfError:
            continue


@given(st.data())
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_noise_is_damage_or_read_without_harm(file, draw):
    data = bytearray(SOUND)
    for _ in range(draw.draw(st.integers(1, 8))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    path = file(bytes(data))
    with contextlib.suppress(elf.ElfError):
        elf.read_elf(path)


@pytest.mark.slow
def test_name_without_end_takes_no_memory(file):
    path = file(SOUND[:-11] + b"x" * (80 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(elf.ElfError, match="its headers need too many reads"):
            elf.read_elf(path)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_tags_without_end_take_no_memory(file):
    path = file(library([], segments=[segment(DYNAMIC, 4096, 1 << 40)]))
    with path.open("r+b") as stream:
        for _ in range(4096 // 16):
            stream.seek(0, os.SEEK_END)
            stream.write(struct.pack("<qQ", NEEDED, 0) * 4096)
    tracemalloc.start()
    try:
        with pytest.raises(elf.ElfError, match="a damaged ELF file"):
            elf.read_elf(path)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_pipe_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "file")
    with pytest.raises(elf.ElfError, match="must be a regular file"):
        elf.read_elf(tmp_path / "file")


def test_oldest_kernel_is_read_from_its_note(tmp_path):
    source = (
        '.section .note.ABI-tag,"a",@note\n.long 4,16,1\n.asciz "GNU"\n.long 0,2,3,99\n'
        '.section .note.GNU-stack,"",@progbits\n'
    )
    command = ["cc", "-shared", "-nostdlib", "-x", "assembler", "-", "-o", tmp_path / "tls.so"]
    subprocess.run(command, input=source, text=True, check=True)
    assert elf.read_elf(tmp_path / "tls.so").kernel == (2, 3, 99)


def test_minimum_kernel_is_optional(file):
    assert elf.read_elf(file(SOUND)).kernel == ()
