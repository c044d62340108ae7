"""The documented permissions and objects are those of the rendered chart."""

import collections

import charted
import documented
import permissions

ROOT = documented.ROOT


def rows(page, heading):
    """Return the rows of the first table below a heading, without its head."""
    text = (ROOT / "docs" / page).read_text().partition(f"\n{heading}\n")[2]
    lines = text.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("|"))
    found = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        found.append(line)
    return found


def test_documented_permissions_are_exactly_those_of_the_chart():
    expected = permissions.table(charted.documents(*charted.COMPONENTS))
    assert rows("security.md", "## Permissions in the API server") == expected


def test_every_service_account_is_in_the_table_or_has_no_permission():
    accounts = {
        name for kind, name in charted.made(*charted.COMPONENTS) if kind == "ServiceAccount"
    }
    assert accounts - permissions.granted(charted.documents(*charted.COMPONENTS)).keys() == {
        "control-nodes"
    }


def test_documented_counts_are_those_of_the_default_installation():
    counted = collections.Counter(thing["kind"] for thing in charted.documents())
    expected = [f"| {kind} | {count} |" for kind, count in sorted(counted.items())]
    assert [
        "|".join(row.split("|")[:3]) + "|"
        for row in rows("install.md", "## What the default installation creates")
    ] == expected
