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
    if count >= 0:
        assert nodenames.NameList(text).count == count
    else:
        with pytest.raises(ValueError, match="no plain text|no list of names"):
            nodenames.NameList(text)


def test_a_name_without_a_number_or_code_gets_the_default_code():
    table = nodenames.NameTable()
    for name, number in ((b"abcdefgh", 2), (b"b", 0), (b"", 1), (b"c", 3)):
        table.add(name, number)
    found = bytearray(6)
    names = nodenames.NameList(b'"b","","abcdefghi","abcdefgh","b", "c"')
    table.lookup(names, b"\7\10\11", 1, found)
    assert bytes(found) == b"\7\10\1\11\7\1"


def test_names_are_written_in_the_form_of_their_code():
    forms = {0: (b"<", b">"), 2: (b"", b", ")}
    names = nodenames.NameList(b'"a" ,"b","c","a"')
    assert names.write(b"\0\1\2\0", forms) == b'<"a">"c", <"a">'


@pytest.mark.parametrize(
    ("text", "codes", "expected"),
    [
        pytest.param(b"", b"", b"", id="no names"),
        pytest.param(b'"a","b","c"', b"\0\0\0", b'"a","b","c"', id="all"),
        pytest.param(b'"a","b","c"', b"\1\1\1", b"", id="none"),
        pytest.param(b'"a","b","c"', b"\1\0\0", b'"b","c"', id="the last ones"),
        pytest.param(b'"a","b","c"', b"\0\0\1", b'"a","b"', id="the first ones"),
        pytest.param(b'"a","b","c","d"', b"\0\1\0\0", b'"a","c","d"', id="not one between"),
        pytest.param(b'"a" ,"b", "c"', b"\0\0\0", b'"a","b","c"', id="spaces between"),
        pytest.param(b'"","",""', b"\0\1\0", b'"",""', id="empty names"),
        pytest.param(b'"a","","b"', b"\0\1\0", b'"a","b"', id="not an empty one between"),
    ],
)
def test_only_the_names_with_a_code_are_written(text, codes, expected):
    assert nodenames.NameList(text).only(codes, 0) == expected


def test_fewer_codes_than_names_are_refused():
    names = nodenames.NameList(b'"a","b"')
    for wrong in (
        lambda: names.write(b"\0", {0: (b"", b"")}),
        lambda: names.only(b"\0", 0),
        lambda: nodenames.NameTable().lookup(names, b"", 0, bytearray(1)),
    ):
        with pytest.raises(ValueError, match="fewer codes than names"):
            wrong()


def test_a_large_table_finds_all_its_names_and_no_others():
    table, codes = nodenames.NameTable(), bytes(number % 251 for number in range(MANY))
    for number in range(MANY):
        table.add(b"node-%d" % number, number)
    names = [b'"node-%d"' % number for number in range(2 * MANY)]
    found = bytearray(2 * MANY)
    table.lookup(nodenames.NameList(b",".join(names)), codes, 255, found)
    assert bytes(found) == codes + b"\xff" * MANY


def test_names_of_thousands_of_characters_fit():
    table, found = nodenames.NameTable(), bytearray(3)
    for number, letter in enumerate((b"a", b"b", b"c")):
        table.add(letter * 20_000, number)
    text = b",".join(b'"' + char * 20_000 + b'"' for char in (b"c", b"a", b"d"))
    table.lookup(nodenames.NameList(text), b"\1\2\3", 9, found)
    assert bytes(found) == b"\3\1\11"


def test_names_differ_in_any_of_their_characters():
    table, name = nodenames.NameTable(), b"node-0123456789abcdefg"
    table.add(name, 0)
    others = [name[:at] + b"_" + name[at + 1 :] for at in range(len(name))]
    others += [name[:at] for at in range(len(name))]
    text = b",".join(b'"' + other + b'"' for other in (*others, name))
    found = bytearray(len(others) + 1)
    table.lookup(nodenames.NameList(text), b"\1", 2, found)
    assert bytes(found) == b"\2" * len(others) + b"\1"
