"""Node names in JSON text: which texts are plain, lookups and output."""

import pytest

from pyvgpu.controller.scheduler import nodenames

MANY = 20_000


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param(b"", 0, id="nothing is no name"),
        pytest.param(b"  ", 0, id="nor are spaces"),
        pytest.param(b'""', 1, id="an empty name"),
        pytest.param(b'"a"', 1, id="one"),
        pytest.param(b'"a","b"', 2, id="two"),
        pytest.param(b' "a" , "b" ', 2, id="with spaces"),
        pytest.param(b'",","[]{}:"', 2, id="JSON syntax within quotes is text"),
        pytest.param(b'"a",', -1, id="a comma without a name after it"),
        pytest.param(b'"a" , ', -1, id="spaces after such a comma"),
        pytest.param(b',"a"', -1, id="a comma without a name before it"),
        pytest.param(b'"a""b"', -1, id="no comma"),
        pytest.param(b'"a",,"b"', -1, id="two commas"),
        pytest.param(b'"a', -1, id="no end"),
        pytest.param(b'"', -1, id="a quote alone"),
        pytest.param(b"a", -1, id="no quotes"),
        pytest.param(b'"a"]', -1, id="more than a list"),
        pytest.param(b'"a",null', -1, id="a null"),
        pytest.param(b'"a",["b"]', -1, id="a list in a list"),
        pytest.param(b'"a\\""', -1, id="an escape"),
        pytest.param(b'"a\\u0062"', -1, id="another one"),
        pytest.param(b'"\xc3\xb6"', -1, id="no ASCII"),
        pytest.param(b'"a\tb"', -1, id="a character that JSON forbids"),
        pytest.param(b'"a",\n"b"', -1, id="a line break"),
        pytest.param(b'"\x7f"', -1, id="an unprintable character"),
        pytest.param(b'"a\0"', -1, id="a NUL"),
    ],
)
def test_count_of_names_in_a_text(text, count):
    assert nodenames.count(text) == count


def test_a_name_without_a_number_or_code_gets_the_default_code():
    table = nodenames.NameTable()
    for name, number in ((b"abcdefgh", 2), (b"b", 0), (b"", 1), (b"c", 3)):
        table.add(name, number)
    found = bytearray(6)
    table.look(b'"b","","abcdefghi","abcdefgh","b", "c"', b"\7\10\11", 1, found)
    assert bytes(found) == b"\7\10\1\11\7\1"


def test_names_are_written_in_the_form_of_their_code():
    forms = {0: (b"<", b">"), 2: (b"", b", ")}
    assert nodenames.write(b'"a" ,"b","c","a"', b"\0\1\2\0", forms) == b'<"a">"c", <"a">'


@pytest.mark.parametrize("text", [b'"a","b"', b'"a","b"," ', b'"a","b'])
def test_texts_and_codes_that_do_not_match_are_refused(text):
    with pytest.raises(ValueError):
        nodenames.write(text, b"\0", {0: (b"", b"")})
    with pytest.raises(ValueError):
        nodenames.NameTable().look(text, b"", 0, bytearray(1))


def test_a_large_table_finds_all_its_names_and_no_others():
    table, codes = nodenames.NameTable(), bytes(number % 251 for number in range(MANY))
    for number in range(MANY):
        table.add(b"node-%d" % number, number)
    names = [b'"node-%d"' % number for number in range(2 * MANY)]
    found = bytearray(2 * MANY)
    table.look(b",".join(names), codes, 255, found)
    assert bytes(found) == codes + b"\xff" * MANY


def test_names_of_thousands_of_characters_fit():
    table, found = nodenames.NameTable(), bytearray(3)
    for number, letter in enumerate((b"a", b"b", b"c")):
        table.add(letter * 20_000, number)
    text = b",".join(b'"' + char * 20_000 + b'"' for char in (b"c", b"a", b"d"))
    table.look(text, b"\1\2\3", 9, found)
    assert bytes(found) == b"\3\1\11"
