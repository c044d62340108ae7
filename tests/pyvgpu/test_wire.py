"""Messages by the numbers of their fields, against the encoding as it is documented."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvgpu import wire

NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)


def test_a_number_and_a_string_are_written_as_the_manual_has_them():
    assert wire.encode({1: 150}) == bytes.fromhex("089601")
    assert wire.encode({2: "testing"}) == bytes.fromhex("120774657374696e67")


@given(NUMBERS, st.binary(max_size=300), st.lists(st.dictionaries(st.text(), st.text())))
def test_what_was_written_is_read(number, data, maps):
    message = {1: number, 900: data, 3: [{5: wire.labels(it)} for it in maps]}
    read = wire.Message(wire.encode(message))
    assert (read.number(1), read.data(900)) == (number, data)
    assert [it.labels(5) for it in read.messages(3)] == maps


def test_what_is_not_there_is_zero_or_empty():
    empty = wire.Message(b"")
    assert (empty.number(1), empty.text(2), empty.messages(3), empty.labels(4)) == (0, "", [], {})
    assert empty.message(5).number(1) == 0


def test_fields_of_fixed_width_are_passed_over():
    fixed = b"\x0d" + bytes(4) + b"\x11" + bytes(8)
    assert wire.Message(fixed + wire.encode({3: "x"})).text(3) == "x"


@given(st.binary())
def test_anything_else_is_refused_and_nothing_worse(content):
    with contextlib.suppress(ValueError):
        wire.Message(content)


@pytest.mark.parametrize("content", [b"\x08", b"\x0a\x05x", b"\xff" * 11, b"\x0b"])
def test_half_a_message_is_refused(content):
    with pytest.raises(ValueError, match="no message"):
        wire.Message(content)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 5, 15, 16, 17, 300]),
            st.one_of(st.binary(max_size=9), st.just(b"\n\x03c12"), st.integers(0, 300)),
        ),
        max_size=40,
    ).flatmap(lambda found: st.permutations(found * 2))
)
def test_many_short_fields_one_after_the_other_are_read_as_each_alone(fields):
    """Runs of one field are read by the library: of keys of two bytes, too, and of other types."""
    read = wire.Message(b"".join(wire.encode({number: value}) for number, value in fields))
    for number in {number for number, _ in fields}:
        values = [value for it, value in fields if it == number]
        assert read.parts(number) == [it for it in values if isinstance(it, bytes)]
        if isinstance(values[-1], int):
            assert read.number(number) == values[-1]


@pytest.mark.parametrize("number", [1, 16])
@pytest.mark.parametrize("count", [1, 2, 3000])
def test_long_lists_of_ids_are_read_whole(number, count):
    names = [f"c{it}" for it in range(count)]
    assert wire.Message(wire.encode({number: names, 2: "x", 3: 7})).texts(number) == names
    cut = wire.encode({number: names})[:-1]
    with pytest.raises(ValueError, match="no message"):
        wire.Message(cut)


@given(st.lists(st.binary(max_size=9), max_size=30))
def test_strings_are_decoded_as_each_alone(parts):
    found = wire.Message(b"".join(wire.encode({1: it}) for it in parts)).texts(1)
    assert found == [it.decode(errors="replace") for it in parts]
