"""The table of the sidecar benchmark's latencies and their goals."""

import percentiles
import pytest
import sidecartable

ROW = {"signal": 0.1, "terminal": 1.5, "succeeded": 1.0}
BURST = {
    "jobs": 1000,
    "real": 40,
    "complete": 1000,
    "decisions_per_second": 80.4,
    "writes_per_pod": 1,
    "seconds_to_the_last_pod": 20.0,
    "seconds_to_the_last_job": 31.5,
}
MANY = {"pods": 10_000, "bytes_of_one": 9000, "list_seconds": 2.5, "resident_mib": 90.2}


@pytest.mark.parametrize(("part", "value"), [(50, 3), (99, 5), (100, 5), (1, 1), (20, 1), (21, 2)])
def test_percentiles_are_sample_values(part, value):
    assert percentiles.percentile([5, 3, 1, 2, 4], part) == value


def missed(record):
    return [line.title for line in sidecartable.lines(record) if not line.kept]


def test_rows_that_meet_their_goals():
    record = {"latency": {"stop": [ROW], "native": [ROW]}, "burst": BURST, "many": MANY}
    assert missed(record) == []
    table = sidecartable.table(sidecartable.lines(record))
    assert "| p50 0.10 s, p99 0.10 s of 1 | p99 0.3 s |" in table
    assert "| 1,000 | 1,000 |" in table
    assert "**not kept**" not in table


@pytest.mark.parametrize(
    ("record", "titles"),
    [
        ({"latency": {"stop": [ROW, ROW | {"signal": 0.31}]}}, ["stop"]),
        ({"latency": {"swap": [ROW | {"terminal": 2.01}]}}, ["swap"]),
        ({"latency": {"native": [ROW | {"signal": 9}]}}, []),
        ({"latency": {"hybrid": [ROW | {"succeeded": 0.0}]}}, ["hybrid"]),
        ({"burst": BURST | {"complete": 999}}, ["1,000 Jobs"]),
        ({"burst": BURST | {"decisions_per_second": 49.9}}, ["decisions"]),
        ({"burst": BURST | {"writes_per_pod": 3}}, ["writes"]),
        ({"many": MANY | {"list_seconds": 3.0}}, ["list"]),
        ({"many": MANY | {"resident_mib": 150.5}}, ["the controller's resident"]),
    ],
)
def test_rows_that_miss_their_goals(record, titles):
    found = missed(record)
    assert [title.startswith(begin) for title, begin in zip(found, titles, strict=True)] == [
        True for _ in titles
    ]
    table = sidecartable.table(sidecartable.lines(record))
    assert table.count("**not kept**") == len(titles)


WAY = {"signal": 0.1, "terminal": 1.9, "succeeded": 1.0, "seen_first": 0.4, "seen_last": 0.8}
RELISTED = WAY | {
    "written": 0.08,
    "signal": 1.06,
    "terminal": 3.1,
    "seen_first": 0.05,
    "seen_last": 2.0,
}


def test_kubelets_part_of_the_latency_has_its_own_lines():
    found = {
        line.title: line for line in sidecartable.lines({"latency": {"swap": [WAY, RELISTED]}})
    }
    values = [line.value for line in found.values()]
    assert values == [
        "p50 0.10 s, p99 1.06 s of 2",
        "p50 1.90 s, p99 3.10 s of 2",
        "p50 0.08 s, p99 0.08 s of 1",  # until the controller's write
        "p50 0.10 s, p99 0.10 s of 1",  # without a kubelet relist in between
        "p50 1.01 s, p99 1.01 s of 1",  # from kubelet's relist, if there was one
        "p50 1.10 s, p99 1.10 s of 2",  # from its last relist to the pod's end
    ]
    assert [line.kept for line in found.values()] == [False, False, True, True, True, True]


TERMINAL = "main's end to the pod's"
SLOW = ROW | {"terminal": 2.3}


@pytest.mark.parametrize(
    ("latency", "kept", "past"),
    [
        ({"stop": [SLOW]}, False, False),  # no reference row
        ({"stop": [SLOW], "none": [ROW]}, False, False),  # the reference meets the goal
        ({"stop": [SLOW], "none": [ROW | {"terminal": 2.1}]}, True, True),
        ({"stop": [ROW | {"terminal": 2.7}], "none": [ROW | {"terminal": 2.1}]}, False, True),
        ({"stop": [ROW], "none": [ROW | {"terminal": 2.1}]}, True, False),
        ({"hybrid": [ROW | {"terminal": 3.4}], "native": [ROW | {"terminal": 2.1}]}, True, True),
        ({"hybrid": [ROW | {"terminal": 3.6}], "native": [ROW | {"terminal": 2.1}]}, False, True),
        ({"hybrid": [ROW | {"terminal": 3.4}], "native": [ROW | {"terminal": 1.9}]}, False, False),
    ],
)
def test_goal_that_kubelet_alone_misses_is_excused(latency, kept, past):
    lines, way = sidecartable.lines({"latency": latency}), next(iter(latency))
    title = f"{sidecartable.TITLES[way]}: main's end to the pod's"
    (line,) = [shown for shown in lines if shown.title.startswith(title)]
    if "none" in latency:  # it has no goal and comes first
        assert sidecartable.lines({"latency": latency})[0].goal == ""
    assert (line.kept, line.past) == (kept, past)
    assert sidecartable.table([line]).count("missed, as") == (kept and past)
