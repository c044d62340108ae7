"""The page of edge cases says what the tests show, and each case is shown where it must be."""

import edge_cases
import pytest


def test_page_is_written_from_the_tests():
    assert edge_cases.PAGE.read_text() == edge_cases.page()


@pytest.mark.parametrize("row", edge_cases.ROWS, ids=lambda row: str(row.number))
def test_each_case_is_observed_where_it_happens(row):
    tests = edge_cases.found().get(row.number, [])
    assert tests
    assert row.needs is edge_cases.Needs.NOTHING or any(test.in_a_cluster for test in tests)


def test_no_test_shows_a_row_that_is_not_there():
    assert set(edge_cases.found()) <= {row.number for row in edge_cases.ROWS}
