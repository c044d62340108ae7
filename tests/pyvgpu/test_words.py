"""Reading of packed 64-bit numbers."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvgpu.region import words

numbers = st.integers(0, (1 << 64) - 1)


@given(st.lists(numbers, min_size=1, max_size=9), st.integers(0, 7))
def test_a_number_is_the_one_that_was_written(written, shift):
    raw = bytes(shift) + struct.pack(f"<{len(written)}Q", *written)
    assert [words.at(raw, shift + 8 * index) for index in range(len(written))] == written


@given(st.lists(st.integers(0, (1 << 60) - 1), max_size=9), st.integers(0, (1 << 52) - 1))
def test_held_bytes_are_the_sum_without_flags(written, mask):
    raw = struct.pack(f"<{len(written)}Q", *written)
    slots = tuple(range(0, len(written), 2))
    assert words.held(raw, slots, mask) == sum(written[slot] & mask for slot in slots)


@given(st.lists(st.tuples(numbers, numbers, numbers), max_size=5))
def test_columns_are_those_asked_for(rows):
    raw = b"".join(struct.pack("<QQQ", *row) for row in rows)
    found = words.columns(raw, len(rows), 24, (16, 0))
    assert found == [(third, first) for first, _, third in rows]


@pytest.mark.parametrize(
    "read",
    [
        lambda: words.at(bytes(15), 8),
        lambda: words.held(bytes(8), (0, 1), 1),
        lambda: words.columns(bytes(8), 2, 8, (0,)),
    ],
)
def test_reads_beyond_the_end_raise_index_error(read):
    with pytest.raises(IndexError):
        read()
