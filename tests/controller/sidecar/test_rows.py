"""docs/sidecar-rows.md is generated from the tests, and each case has a test where it must."""

import edge_cases
import pytest


@pytest.mark.slow
def test_page_is_generated_from_the_tests():
    assert edge_cases.PAGE.read_text() == edge_cases.page()


@pytest.mark.slow
@pytest.mark.parametrize("row", edge_cases.ROWS, ids=lambda row: str(row.number))
def test_each_case_is_observed_in_its_environment(row):
    tests = edge_cases.found().get(row.number, [])
    assert tests
    assert row.needs is edge_cases.Needs.NOTHING or any(test.in_a_cluster for test in tests)


def test_no_test_names_a_missing_row():
    assert set(edge_cases.found()) <= {row.number for row in edge_cases.ROWS}
