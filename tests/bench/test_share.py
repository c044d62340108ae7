"""Selection of rows and laws in `make bench-share`, and its exit code."""

import argparse
import io

import laws
import patterns
import pytest
import share
import share_rows
from rich.console import Console

TODAY = ["today"]


def options(**given):
    return argparse.Namespace(**{"quick": False, "full": False, "law": None, **given})


def find(name):
    (row,) = [row for row in (*share_rows.ROWS, *patterns.PATTERNS) if row.name == name]
    return row


@pytest.mark.parametrize(
    ("name", "quick", "default"),
    [
        pytest.param("10 alone: async 8 ms", [], TODAY, id="only in the long form"),
        pytest.param("50 alone: sync 280 us", TODAY, TODAY, id="also in the short one"),
        pytest.param("5 alone: async 280 us", TODAY, laws.NAMES, id="plain"),
        pytest.param("50 alone: async 280 us", laws.NAMES, laws.NAMES, id="everywhere"),
        pytest.param("30/60: both async 300 us", ["slices"], ["slices", "h100"], id="of some"),
    ],
)
def test_row_is_played_under_its_laws(name, quick, default):
    assert list(share.laws_of(find(name), options(quick=True))) == list(quick)
    assert list(share.laws_of(find(name), options())) == list(default)
    assert list(share.laws_of(find(name), options(full=True))) == list(laws.NAMES)
    assert share.laws_of(find(name), options(law=["events"])) == ["events"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        pytest.param({"passed": True}, 0, id="kept"),
        pytest.param({"passed": False}, 1, id="not kept"),
        pytest.param({"control_fails": False}, 1, id="the control passes"),
        pytest.param({"control_fails": None}, 0, id="no control"),
        pytest.param({"passed": False, "evaluated": False}, 0, id="only shown"),
        pytest.param({"passed": False, "decides": False}, 0, id="missed, and decides nothing"),
    ],
)
def test_exit_code_depends_on_the_deciding_rows(line, code):
    usual = {"passed": True, "evaluated": True, "decides": True, "control_fails": True}
    said = io.StringIO()
    assert share.conclude([{**usual, **line}], Console(file=said)) == code
    assert ("1 of 1 others missed" in said.getvalue()) == (line.get("decides") is False)
