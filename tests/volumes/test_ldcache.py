import contextlib
import os
import shutil
import struct
import subprocess
import tracemalloc

import caches
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvgpu.volumes import ldcache

LINES = (
    caches.Line("libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
    caches.Line("libcuda.so.1", "/usr/lib/i386-linux-gnu/libcuda.so.1", caches.I386),
    caches.Line("libnvidia-ml.so.1", "/opt/odd/another-name", caches.X86_64),
)
FORMS = {"old": caches.old, "new": caches.new, "compat": caches.compat}
HWCAPS = 1 << 62
LINE_OF_V3 = caches.Line(
    "libfoo.so.2", "/usr/lib/glibc-hwcaps/x86-64-v3/libfoo.so.2", hwcap=HWCAPS | 1
)
SOUND = {
    **{name: form(LINES) for name, form in FORMS.items()},
    "new, hwcaps": caches.new((*LINES, LINE_OF_V3), ("x86-64-v2", "x86-64-v3")),
    "compat, hwcaps": caches.compat((*LINES, LINE_OF_V3), ("x86-64-v2", "x86-64-v3")),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_all_formats_give_the_same_entries(form):
    assert ldcache.parse(form(LINES)) == (
        ldcache.CacheEntry("libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "EM_X86_64"),
        ldcache.CacheEntry("libcuda.so.1", "/usr/lib/i386-linux-gnu/libcuda.so.1", "EM_386"),
        ldcache.CacheEntry("libnvidia-ml.so.1", "/opt/odd/another-name", "EM_X86_64"),
    )


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_cache_may_be_empty(form):
    assert ldcache.parse(form(())) == ()


@pytest.mark.parametrize(
    ("flags", "machine"),
    [
        pytest.param(0x0A03, "EM_AARCH64", id="aarch64"),
        pytest.param(0x0903, "EM_ARM", id="arm, hard float"),
        pytest.param(0x0803, "x32", id="x32"),
        pytest.param(0x0301, "EM_X86_64", id="of any libc"),
        pytest.param(0x7F03, None, id="a machine to come"),
        pytest.param(0x0302, None, id="libc5"),
    ],
)
def test_flags_name_the_machine(flags, machine):
    (entry,) = ldcache.parse(caches.new([caches.Line("a", "/a", flags)]))
    assert entry.machine == machine


@pytest.mark.parametrize("form", [caches.new, caches.compat])
def test_folders_of_glibc_hwcaps_are_named(form):
    legacy = caches.Line("libfoo.so.2", "/usr/lib/sse2/libfoo.so.2", hwcap=1 << 26)
    found = ldcache.parse(form((LINE_OF_V3, legacy, LINES[0]), ("x86-64-v2", "x86-64-v3")))
    assert [entry.hwcap for entry in found] == ["x86-64-v3", "legacy", None]


def test_names_may_have_any_bytes():
    line = caches.Line("lib\nb\udcff.so", "/lib/lib\nb\udcff.so")
    assert ldcache.parse(caches.new([line]))[0].path == "/lib/lib\nb\udcff.so"


@pytest.mark.skipif(not shutil.which("ldconfig"), reason="needs ldconfig")
@pytest.mark.parametrize("form", FORMS)
def test_reads_caches_as_ldconfig_does(form, tmp_path):
    cache = tmp_path / "cache"
    subprocess.run(["ldconfig", "-X", "-c", form, "-C", cache], check=True, capture_output=True)
    printed = subprocess.run(["ldconfig", "-p", "-C", cache], check=True, capture_output=True)
    lines = [line for line in printed.stdout.decode().splitlines() if " => " in line]
    assert [f"{entry.name} {entry.path}" for entry in ldcache.read(cache)] == [
        f"{line.split()[0]} {line.split(' => ')[1]}" for line in lines
    ]
    assert lines


@pytest.mark.parametrize("data", SOUND.values(), ids=SOUND)
def test_truncation_is_damage(data):
    for length in range(len(data)):
        with pytest.raises(ldcache.CacheError):
            ldcache.parse(data[:length])


@pytest.mark.parametrize("data", SOUND.values(), ids=SOUND)
@pytest.mark.parametrize("wild", [0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 0x01000000, 0])
def test_random_number_is_damage_or_read_without_harm(data, wild):
    for where in range(0, len(data) - 3):
        spoiled = data[:where] + struct.pack("<I", wild) + data[where + 4 :]
        try:
            found = ldcache.parse(spoiled)
        except ldcache.CacheError:
            continue
        assert all(len(entry.path) < len(data) for entry in found)


@given(st.sampled_from(sorted(SOUND)), st.data())
@settings(max_examples=300)
def test_noise_is_damage_or_read_without_harm(name, draw):
    data = bytearray(SOUND[name])
    for _ in range(draw.draw(st.integers(1, 8))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(ldcache.CacheError):
        ldcache.parse(bytes(data))


@given(st.binary(max_size=200))
def test_noise_alone_is_damage(noise):
    for magic in (b"", b"ld.so-1.7.0\0", b"glibc-ld.so.cache1.1"):
        try:
            ldcache.parse(magic + noise)
        except ldcache.CacheError:
            continue
        assert magic


@pytest.mark.parametrize("endianness", [3, 0], ids=["said", "unsaid"])
def test_opposite_byte_order_is_refused(endianness):
    with pytest.raises(ldcache.CacheError, match="the opposite byte order"):
        ldcache.parse(caches.new(LINES, order=">", endianness=endianness))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        pytest.param(b"", "not a loader's cache", id="empty"),
        pytest.param(b"#!/bin/sh\n" * 9, "not a loader's cache", id="script"),
        pytest.param(caches.new(LINES)[:60], "truncated: 3 entries, room for 0", id="cut"),
        pytest.param(caches.new(LINES)[:-1], "bytes of text, ", id="cut in the text"),
        pytest.param(
            caches.old([caches.Line("a", "/a")]).replace(
                struct.pack("<iII", caches.X86_64, 1, 0),
                struct.pack("<iII", caches.X86_64, 0xFFFFFFFF, 0),
            ),
            "outside its text",
            id="name behind the text",
        ),
        pytest.param(
            caches.new([caches.Line("a", "/a")]).replace(
                struct.pack("<iII", caches.X86_64, 73, 72),
                struct.pack("<iII", caches.X86_64, 4, 72),
            ),
            "a name at 4, which is outside its text",
            id="name before the text",
        ),
        pytest.param(
            caches.new([caches.Line("a", "/a", hwcap=HWCAPS | 7)], ("x86-64-v2",)),
            "glibc-hwcaps with number 7; it has 1",
            id="folder not named",
        ),
    ],
)
def test_damage_is_reported_with_the_remedy(tmp_path, data, problem):
    path = tmp_path / "ld.so.cache"
    path.write_bytes(data)
    with pytest.raises(ldcache.CacheError) as caught:
        ldcache.read(path)
    assert problem in str(caught.value)
    assert "run ldconfig" in str(caught.value)


def test_overlapping_names_need_no_more_memory_than_the_file():
    """Each entry names another part of one long string: 4 KiB for 24 bytes."""
    count = 20_000
    text = b"a" * 4000 + b"\0"
    first = 48 + 24 * count
    head = struct.pack("<20sIIB3xI12x", b"glibc-ld.so.cache1.1", count, len(text), 2, 0)
    entries = b"".join(
        struct.pack("<iIIIQ", 0x303, first + i % 4000, first + (i * 7) % 4000, 0, 0)
        for i in range(count)
    )
    tracemalloc.start()
    try:
        with pytest.raises(ldcache.CacheError, match="names that overlap"):
            ldcache.parse(head + entries + text)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_huge_file_is_refused_unread(tmp_path):
    path = tmp_path / "ld.so.cache"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(OSError, match="it has more than"):
        ldcache.read(path)


def test_pipe_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "ld.so.cache")
    with pytest.raises(OSError, match="must be a regular file"):
        ldcache.read(tmp_path / "ld.so.cache")
