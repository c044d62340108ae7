"""PodDisruptionBudgets: their selectors as queries, and which evictions they permit."""

import pytest
import scheduling_api as make

from pyvgpu.controller.scheduler import cache, pod_request
from pyvgpu.controller.scheduler.shell import disruption_budgets

SELECTORS = {
    "labels": ({"matchLabels": {"a": "b", "c": "d"}}, "a=b,c=d"),
    "all pods": ({}, ""),
    "no pod": (None, None),
    "one of": (
        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "c"]}]},
        "a in (b,c)",
    ),
    "none of": (
        {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]},
        "a notin (b)",
    ),
    "there or not": (
        {
            "matchLabels": {"x": "y"},
            "matchExpressions": [
                {"key": "a", "operator": "Exists"},
                {"key": "b", "operator": "DoesNotExist"},
            ],
        },
        "x=y,a,!b",
    ),
}


@pytest.mark.parametrize(("wanted", "text"), SELECTORS.values(), ids=SELECTORS)
def test_a_selector_becomes_a_list_query(wanted, text):
    assert disruption_budgets.selector({"spec": {"selector": wanted}}) == text


def budget(name, allowed, namespace="n", **labels):
    return {
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": allowed},
    }


@pytest.fixture
def counted(cluster):
    """Two pods of an app, one of another, and a reader of the budgets that a test sets."""
    api, connection = cluster
    known = cache.Cache()
    for name, app in (("a-0", "a"), ("a-1", "a"), ("b-0", "b")):
        thing = make.pod(name, nodeName="node-1")
        thing["metadata"]["labels"] = {"app": app}
        api.put(make.path(name), thing)
        known.see_pod(f"n/{name}", pod_request.read(thing))
    those = []
    return disruption_budgets.Reader(connection, lambda: those, known), known, those


def permits(reader, known, *names):
    return reader.read().permit(known.pods[f"n/{name}"] for name in names)


def test_a_budget_limits_the_number_of_evictions(counted):
    reader, known, those = counted
    those += [budget("one", 1, app="a"), budget("none", 0, app="b")]
    assert permits(reader, known, "a-0")
    assert permits(reader, known, "a-1")
    assert not permits(reader, known, "a-0", "a-1")
    assert not permits(reader, known, "b-0")


def test_without_budgets_all_evictions_are_permitted_without_requests(counted, cluster):
    reader, known, _ = counted
    assert permits(reader, known, "a-0", "a-1", "b-0")
    assert not cluster[0].asked


def test_budgets_in_namespaces_without_our_pods_are_ignored(counted, cluster):
    reader, _, those = counted
    those.append(budget("elsewhere", 0, "other", app="a"))
    reader.read()
    assert not cluster[0].asked


def test_listed_pods_are_cached_for_a_while(counted, cluster, monkeypatch):
    reader, known, those = counted
    those.append(budget("none", 0, app="b"))
    assert not permits(reader, known, "b-0")
    assert not permits(reader, known, "b-0")
    assert len(cluster[0].asked) <= 1
    monkeypatch.setattr(disruption_budgets, "LASTS_SECONDS", 0)
    cluster[0].failing = [500]
    assert not permits(reader, known, "b-0")  # a failed list keeps the cached pods


def test_a_pod_that_may_not_be_evicted_is_protected_for_a_while(counted, monkeypatch):
    reader, known, _ = counted
    reader.protect("uid-a-0")
    assert not permits(reader, known, "a-0")
    assert permits(reader, known, "a-1")
    now = disruption_budgets.time.monotonic()
    later = now + disruption_budgets.PROTECTED_SECONDS + 1
    monkeypatch.setattr(disruption_budgets.time, "monotonic", lambda: later)
    assert permits(reader, known, "a-0")
