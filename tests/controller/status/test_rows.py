"""Node rows of the status page; search, filter and paging over 5,000 nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_api import GIB, UNIT, devices

from pyvgpu import errors
from pyvgpu.allocator import annotations, datatypes
from pyvgpu.controller.scheduler import node_info
from pyvgpu.controller.status import node_rows


def info(name, *had, placed=None, trouble=""):
    made = node_info.NodeInfo(name)
    published = annotations.Published(UNIT, had, placed=placed or {})
    made.update(None if trouble else published, trouble)
    return made


def device(at=0, **more):
    return datatypes.NodeDevice(f"GPU-{at}", at, 16 * GIB, model="T4", **more)


def placed(vcore, vmemory=4 * GIB, uuid="GPU-0"):
    return {f"uid-{vcore}": {"main": (datatypes.NodeShare(uuid, vcore, vmemory),)}}


@pytest.mark.parametrize(
    ("made", "agent", "state", "why"),
    [
        (info("a", device()), "", "healthy", ""),
        (info("a", device(), placed=placed(100, 16 * GIB)), "", "full", ""),
        (info("a", device(cordoned=True), device(1)), "", "cordoned", "gpu0"),
        (info("a", device(), device(1, unhealthy="Xid 79")), "", "unhealthy", "gpu1: Xid 79"),
        (info("a", device(unhealthy="Xid 79")), "gone", "trouble", "gone"),
        (info("a", trouble="no JSON"), "", "trouble", "no JSON"),
    ],
)
def test_a_node_has_a_state_and_a_reason(made, agent, state, why):
    row = node_rows.row_of(made, agent)
    assert (row.state, row.why) == (state, why)


def test_a_node_that_has_published_nothing_is_unknown():
    row = node_rows.row_of(node_info.NodeInfo("a"), "")
    assert row.state == "unknown"
    assert row.troubled
    assert node_rows.totals([row])["devices"] == 0


def test_allocations_are_counted_per_device():
    row = node_rows.row_of(info("a", device(), device(1), placed=placed(30)), "")
    assert [(shown.allocated, shown.memory) for shown in row.devices] == [
        (pytest.approx(0.3), 0.25),
        (0, 0),
    ]
    assert row.pods == 1
    found = row.document()
    assert (found["allocated"], found["allocatedBytes"]) == (0.3, 4 * GIB)
    assert found["memoryBytes"] == 32 * GIB


def test_without_an_agent_allocations_are_still_listed():
    made = info("a", device(), device(1), placed=placed(30))
    first, second = node_rows.without_agent(made)
    assert (first["allocated"], first["used"], first["usedBytes"]) == (0.3, None, None)
    (held,) = first["containers"]
    assert (held["allocated"], held["allocatedBytes"], held["used"]) == (0.3, 4 * GIB, None)
    assert second["containers"] == []


def test_nodes_are_in_natural_order():
    named = [
        node_rows.row_of(info(name, device()), "") for name in ("n-10", "n-9", "b", "n-9a", "7")
    ]
    assert [row.name for row in sorted(named, key=lambda candidate: candidate.order)] == [
        "7",
        "b",
        "n-9",
        "n-9a",
        "n-10",
    ]


MANY = sorted(
    (
        node_rows.row_of(
            info(
                f"node-{number}",
                *devices(f"node-{number}", unhealthy="x" if number % 100 == 7 else ""),
            ),
            "",
        )
        for number in range(5000)
    ),
    key=lambda row: row.order,
)


def test_five_thousand_nodes_are_paged():
    first = node_rows.chosen(MANY, node_rows.NodeQuery())
    assert (first["count"], first["page"], first["pages"]) == (5000, 1, 100)
    assert len(first["rows"]) == node_rows.ON_A_PAGE
    last = node_rows.chosen(MANY, node_rows.NodeQuery(page=100))
    assert last["rows"][-1]["name"] == "node-4999"


def test_a_page_after_the_last_is_the_last():
    assert node_rows.chosen(MANY, node_rows.NodeQuery(page=999))["page"] == 100
    nothing = node_rows.chosen([], node_rows.NodeQuery(page=3))
    assert (nothing["count"], nothing["page"], nothing["pages"]) == (0, 1, 1)


def test_nodes_can_be_searched_and_filtered():
    found = node_rows.chosen(MANY, node_rows.NodeQuery("e-49"))
    assert found["count"] == 111
    unhealthy = node_rows.chosen(MANY, node_rows.NodeQuery(show=node_rows.Show.TROUBLE))
    assert unhealthy["count"] == 50
    assert {row["state"] for row in unhealthy["rows"]} == {"unhealthy"}
    both = node_rows.chosen(MANY, node_rows.NodeQuery("node-49", node_rows.Show.TROUBLE))
    assert [row["name"] for row in both["rows"]] == ["node-4907"]
    assert node_rows.chosen(MANY, node_rows.NodeQuery(show=node_rows.Show.ROOM))["count"] == 4950
    assert node_rows.chosen(MANY, node_rows.NodeQuery(show=node_rows.Show.FULL))["count"] == 0


def test_a_query_is_parsed():
    asked = {"search": "Node-1", "show": "trouble", "page": "3"}
    assert node_rows.read(asked) == node_rows.NodeQuery("node-1", node_rows.Show.TROUBLE, 3)
    assert node_rows.read({}) == node_rows.NodeQuery()


@pytest.mark.parametrize(
    ("query", "example"),
    [
        ({"page": "0"}, "such as 2"),
        ({"page": "-1"}, "such as 2"),
        ({"page": "9" * 40}, "such as 2"),
        ({"page": "٣"}, "such as 2"),
        ({"show": "nothing"}, "such as trouble"),
        ({"search": "x" * 300}, "such as node-1"),
    ],
)
def test_an_invalid_query_is_refused_with_an_example(query, example):
    with pytest.raises(errors.UsageError, match=example):
        node_rows.read(query)


@given(st.dictionaries(st.sampled_from(["search", "show", "page"]), st.text(max_size=12)))
def test_any_query_is_parsed_or_refused(query):
    try:
        wanted = node_rows.read(query)
    except errors.UsageError:
        return
    assert len(node_rows.chosen(MANY[:60], wanted)["rows"]) <= node_rows.ON_A_PAGE
