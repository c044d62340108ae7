"""Headers are read as RFC 7541 has them, by its own examples; what is none of them is refused."""

import pytest

from pyvgpu.rpc import hpack, huffman

FIRST = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")]
AUTHORITY = (b":authority", b"www.example.com")


def remembered(name, value):
    """A header that whoever reads it is to remember."""
    return b"\x40" + hpack.encode([(name, value)])[1:]


def test_letters_have_the_codes_of_the_standard():
    """Appendix C.4 and C.6."""
    assert huffman.decode(bytes.fromhex("f1e3c2e5f23a6ba0ab90f4ff")) == b"www.example.com"
    assert huffman.decode(bytes.fromhex("a8eb10649cbf")) == b"no-cache"
    date = "d07abe941054d444a8200595040b8166e082a62d1bff"
    assert huffman.decode(bytes.fromhex(date)) == b"Mon, 21 Oct 2013 20:13:21 GMT"
    assert huffman.decode(b"") == b""
    assert sorted(huffman._CODES.values()) == list(range(256))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("00ffff", id="more than a byte that fills"),
        pytest.param("f1e3c2e5f23a6ba0ab90f400", id="filled with zeros"),
        pytest.param("ffffffffff", id="the end, which is no letter"),
    ],
)
def test_what_is_in_no_code_is_refused(content):
    with pytest.raises(ValueError, match="in no code"):
        huffman.decode(bytes.fromhex(content))


@pytest.mark.parametrize(
    "blocks",
    [
        pytest.param(
            (
                "828684410f7777772e6578616d706c652e636f6d",
                "828684be58086e6f2d6361636865",
                "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
            ),
            id="C.3, as they are",
        ),
        pytest.param(
            (
                "828684418cf1e3c2e5f23a6ba0ab90f4ff",
                "828684be5886a8eb10649cbf",
                "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
            ),
            id="C.4, coded",
        ),
    ],
)
def test_what_is_remembered_of_one_message_is_known_in_the_next(blocks):
    decoder = hpack.Decoder()
    first, second, third = (decoder.decode(bytes.fromhex(it)) for it in blocks)
    assert first == [*FIRST, AUTHORITY]
    assert second == [*FIRST, AUTHORITY, (b"cache-control", b"no-cache")]
    assert third == [
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":path", b"/index.html"),
        AUTHORITY,
        (b"custom-key", b"custom-value"),
    ]


def test_what_is_sent_is_read_as_it_was():
    headers = [(b"grpc-status", b"13"), (b"x", b""), (b"long", b"y" * 5000), (b"z" * 127, b"1")]
    assert hpack.Decoder().decode(hpack.encode(headers)) == headers


def test_the_oldest_is_forgotten_when_there_is_no_room():
    decoder = hpack.Decoder()
    for _ in range(3):
        decoder.decode(remembered(b"a", b"v" * 2000))
    assert decoder.decode(b"\xbe") == [(b"a", b"v" * 2000)]
    with pytest.raises(ValueError, match="end too early"):
        decoder.decode(b"\xc0")  # the third of them
    assert decoder.decode(b"\x20") == []  # remember nothing
    with pytest.raises(ValueError, match="end too early"):
        decoder.decode(b"\xbe")


@pytest.mark.parametrize(
    ("block", "words"),
    [
        pytest.param(b"\x80", "header 0", id="no number"),
        pytest.param(b"\xff\xff\xff\xff\xff\xff\xff\x01", "too long", id="a long number"),
        pytest.param(b"\x40\x05ab", "end too early", id="cut short"),
        pytest.param(b"\x40", "end too early", id="nothing of it"),
        pytest.param(b"\x3f\xff\xff\x03", "than was agreed", id="more memory"),
    ],
)
def test_what_is_no_block_is_refused(block, words):
    with pytest.raises(ValueError, match=words):
        hpack.Decoder().decode(block)


def test_few_bytes_that_mean_many_are_refused():
    decoder = hpack.Decoder()
    decoder.decode(remembered(b"a", b"v" * 3900))
    with pytest.raises(ValueError, match="too long"):
        decoder.decode(b"\xbe" * 100)
