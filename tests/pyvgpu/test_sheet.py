"""Tables fit the terminal: first cells are cut, then less important columns are left out."""

import pytest
from rich.console import Console
from rich.text import Text

from pyvgpu.cli import sheet

COLUMNS = (
    sheet.Column("run", least=6),
    sheet.Column("share", right=True),
    sheet.Column("past", least=3, tail=True, rank=1),
    sheet.Column("age", rank=2),
)
ROW = ("a-long-name", "12.5 %", "123456", "5s")


@pytest.mark.parametrize(
    ("room", "widths"),
    [
        pytest.param(99, (11, 6, 6, 3), id="room for all"),
        pytest.param(37, (11, 6, 6, 3), id="just"),
        pytest.param(34, (11, 6, 3, 3), id="past is cut"),
        pytest.param(32, (9, 6, 3, 3), id="and the name"),
        pytest.param(29, (6, 6, 3, 3), id="as far as it goes"),
        pytest.param(28, (11, 6, 3, 0), id="without the age"),
        pytest.param(22, (11, 6, 0, 0), id="without the past"),
        pytest.param(5, (6, 6, 0, 0), id="never less"),
    ],
)
def test_columns_are_cut_and_then_left_out(room, widths):
    assert sheet.fit(COLUMNS, (11, 6, 6, 3), room) == widths


@pytest.mark.parametrize("room", range(18, 60))
def test_no_line_is_wider_than_the_terminal(room):
    console = Console(width=room, force_terminal=False)
    with console.capture() as shown:
        console.print(sheet.table(COLUMNS, [tuple(map(Text, ROW)), (Text("  7 python"),)], room))
    lines = shown.get().splitlines()
    assert len(lines) == 6, "nothing is folded"
    assert all(len(line) <= room for line in lines)
    assert "12.5 %" in lines[3]


def test_cut_cells_are_marked_and_history_keeps_its_end():
    console = Console(width=29, force_terminal=False)
    with console.capture() as shown:
        console.print(sheet.table(COLUMNS, [tuple(map(Text, ROW))], 29))
    assert shown.get().splitlines()[3].split() == ["a-lon…", "12.5", "%", "456", "5s"]
