"""The load on the API server is extrapolated by its part that grows with the nodes."""

import clustertable
import host
import publish


def phase(requests, cpu, **more):
    found = {"seconds": 10.0, "requests": requests, "bytes": 1024.0, "cpu_s": cpu, "changes": 50.0}
    return {**found, "filter_p99_ms": 7.0, **more}


RECORD = {
    "nodes": 500,
    "pods": 10_000,
    "alone": phase(10.0, 0.1),
    "agents_start": phase(2500.0, 15.0),
    "idle": phase(110.0, 0.6),
    "churn": phase(500.0, 2.0),
    "comparison": phase(300.0, 1.0),
    "memory_mib": {"scheduler": 100.0},
}


def test_only_what_grows_with_the_nodes_is_extrapolated():
    found = {figure.title: figure.value for figure in clustertable.figures(RECORD)}
    assert found["idle, 5000 nodes and 100000 pods"] == 1.0 + 10 * 10.0
    assert round(found["idle, 5000 nodes: API server"], 6) == 100 * (0.01 + 10 * 0.05)
    assert found["all 5000 agents start at once"] == 25_000
    assert found["5.0 pods a second end and start: filter, p99"] == 7.0


def test_the_page_shows_the_last_record():
    (cost,) = (cost for cost in publish.COSTS if cost.name == "cluster-cost")
    assert cost.records == [host.last("cluster-load")]
    assert publish.between(cost.page.read_text(), publish.MEASURED) == cost.shown()
