"""The figures of the node agent: what is evaluated, and by which goal."""

import agenttable
import goals
import pytest

MIB = 1 << 20
PROGRAMS = {"agent": 90 * MIB, "arbiter": 2 * MIB, "control-nodes": 40 * MIB, "once": 120 * MIB}
STATE = {"percent": 0.2, "resident": 90 * MIB, "anonymous": 60 * MIB}
RECORD = {
    "start": {"agent": [0.03], "nothing": [0.01]},
    "asked": {"agent": [0.09], "nothing": [0.01]},
    "node": {"idle": PROGRAMS, "busy": PROGRAMS},
    "idle": STATE,
    "scrape": [0.01],
    "busy": STATE | {"containers": 128},
    "audited": STATE | {"holders": 16},
    "allocate": {"agent": [0.005], "nothing": [0.002], "disk": [0.001]},
}


def missed(record):
    return [figure.title for figure in agenttable.figures(record) if not figure.kept]


def test_rows_that_meet_their_goals():
    assert missed(RECORD) == []
    assert sum(figure.goal is not None for figure in agenttable.figures(RECORD)) == 8


@pytest.mark.parametrize(
    ("more", "title"),
    [
        (
            {"allocate": {"agent": [0.007], "nothing": [0.002], "disk": [0.001]}},
            "Allocate, p99, beside a plugin that does nothing and the disk together",
        ),
        (
            {"start": {"agent": [0.04], "nothing": [0.01]}},
            "PreStartContainer of both resources, 20 pods at once, p99",
        ),
        (
            {"node": {"idle": PROGRAMS, "busy": PROGRAMS | {"once": 201 * MIB}}},
            "all programs on a node, resident, shared pages counted once, 128 containers",
        ),
        ({"idle": STATE | {"percent": 0.4}}, "no container: CPU, of one core"),
        (
            {"audited": STATE | {"percent": 2.1, "holders": 16}},
            "128 containers, of which 16 hold memory: CPU, of one core",
        ),
    ],
)
def test_row_that_misses_its_goal(more, title):
    assert missed(RECORD | more) == [title]


def test_figures_of_a_record_from_before_the_disk_was_measured():
    allocate = {"agent": [0.005], "nothing": [0.002]}
    assert "beside" not in goals.table(agenttable.figures(RECORD | {"allocate": allocate}))
