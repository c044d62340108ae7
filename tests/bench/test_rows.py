"""The bounds of `make bench-share`, computed for synthetic rows."""

import laws
import pytest
import share_rows
from scene_runs import Scene, Tenant
from scores import Due
from share_rows import Kept, Row, Settled

MS = 1_000_000
TENANT = Tenant(30, "async", MS)
DRAWN = laws.draw(7)


def row(*claims):
    return Row("a row", "a group", Scene((TENANT, TENANT), 1), claims)


def test_bounds_are_looser_under_a_drawn_law():
    assert (
        share_rows.mean_bound(TENANT, laws.TODAY),
        share_rows.worst_bound(TENANT, laws.TODAY),
    ) == (1, 3)
    assert (
        share_rows.mean_bound(TENANT, laws.SLICES),
        share_rows.worst_bound(TENANT, laws.SLICES),
    ) == (1, 3)
    assert (share_rows.mean_bound(TENANT, DRAWN), share_rows.worst_bound(TENANT, DRAWN)) == (3, 5)


@pytest.mark.parametrize("law", [laws.TODAY, laws.SLICES, laws.EVENTS], ids=lambda law: law.name)
def test_full_shares_are_due_where_the_capacity_suffices(law):
    assert share_rows.dues(row(Kept(0, 30), Kept(1, 60)), law) == [Due(30, 30), Due(60, 60)]


def test_less_is_due_where_switches_take_time():
    first, second = share_rows.dues(row(Kept(0, 30), Kept(1, 70)), laws.SLICES)
    assert (first.most, second.most) == (30, 70)
    assert first.least == pytest.approx(28.85, abs=0.01)  # in proportion
    assert second.least == pytest.approx(66.15, abs=0.01)  # the first has all of its 30


def test_only_simultaneous_claims_compete():
    claims = (Settled(0, 80, 0, 1), Settled(1, 60, 1, 2), Settled(0, 30, 1, 2))
    assert share_rows.dues(row(*claims), laws.SLICES) == [Due(80, 80), Due(60, 60), Due(30, 30)]


def test_every_row_has_existing_laws():
    assert all(each.laws and set(each.laws) <= set(laws.NAMES) for each in share_rows.ROWS)


def test_row_names_are_unique():
    names = [each.name for each in share_rows.ROWS]
    assert len(set(names)) == len(names)
