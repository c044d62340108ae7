"""Tables in kubectl's format."""

import pytest

from pyvgpu.controller.kubectl import tables
from pyvgpu.controller.kubectl.tables import TableColumn

COLUMNS = (
    TableColumn("NAME", "name"),
    TableColumn("SIZE", "size", tables.size),
    TableColumn("UUID", "uuid", wide=True),
)
ROWS = [
    {"name": "a", "size": 3 << 30, "uuid": "GPU-1"},
    {"name": "longer", "size": None, "uuid": ""},
]


def test_columns_are_as_wide_as_their_cells():
    assert tables.table(COLUMNS, ROWS).splitlines() == [
        "NAME     SIZE",
        "a        3GiB",
        "longer   -",
    ]


def test_wide_output_has_more_columns():
    assert tables.table(COLUMNS, ROWS, wide=True).splitlines() == [
        "NAME     SIZE   UUID",
        "a        3GiB   GPU-1",
        "longer   -      -",
    ]


def test_an_empty_table_has_heads():
    assert tables.table(COLUMNS, []) == "NAME   SIZE"


def test_control_characters_are_replaced():
    row = {"name": "\x1b[31mred\n", "size": 1, "uuid": ""}
    assert tables.table(COLUMNS, [row]).splitlines()[1] == "?[31mred?   1 bytes"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (599, "9m59s"),
        (600, "10m"),
        (10799, "179m"),
        (10800, "3h"),
        (172799, "47h"),
        (172800, "2d"),
    ],
)
def test_ages_are_formatted_like_kubectls(seconds, text):
    assert tables.age(seconds) == text


def test_every_column_has_a_key_of_its_own():
    for each in (tables.HELD, tables.USED, tables.DEVICES, tables.EVENTS, tables.AUDITS):
        assert (
            len({column.key for column in each})
            == len(each)
            == len({column.head for column in each})
        )
