"""What the chart makes for Prometheus' operator and for Grafana."""

import json

import alerts
import pytest
import yaml
from charted import EVERYTHING, MONITORED, made

ALL = made(MONITORED, *EVERYTHING)


def test_nothing_is_made_that_a_cluster_may_not_know():
    kinds = {kind for kind, _ in made()}
    assert not kinds & {"PodMonitor", "PrometheusRule"}
    assert ("ConfigMap", "pyvgpu-dashboard") not in made()


def test_the_rules_are_those_of_the_file():
    assert ALL["PrometheusRule", "pyvgpu"]["spec"] == yaml.safe_load(alerts.RULES.read_text())


def test_the_dashboard_is_that_of_the_file_and_found_by_its_label():
    found = ALL["ConfigMap", "pyvgpu-dashboard"]
    assert json.loads(found["data"]["pyvgpu.json"]) == alerts.DASHBOARD
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_all_that_show_figures_are_asked_and_nobody_else():
    (endpoint,) = alerts.pod_monitor()["podMetricsEndpoints"]
    (selected,) = alerts.pod_monitor()["selector"]["matchExpressions"]
    assert (selected["key"], selected["operator"]) == ("app", "In")
    shown, namespaces = set(), set()
    for thing in ALL.values():
        template = thing.get("spec", {}).get("template", {})
        for container in template.get("spec", {}).get("containers", ()):
            if endpoint["port"] in {it["name"] for it in container.get("ports", ())}:
                shown.add(template["metadata"]["labels"]["app"])
                namespaces.add(thing["metadata"]["namespace"])
    assert set(selected["values"]) == shown
    assert set(alerts.pod_monitor()["namespaceSelector"]["matchNames"]) == namespaces


@pytest.mark.parametrize(
    ("kind", "switch"), [("PrometheusRule", "rules"), ("PodMonitor", "podMonitor")]
)
def test_the_operator_finds_them_by_labels_of_ones_own(kind, switch):
    things = made(f"monitoring.{switch}.enabled=true", "monitoring.labels.release=stack")
    assert things[kind, "pyvgpu"]["metadata"]["labels"]["release"] == "stack"


def test_how_often_they_are_asked_is_said_where_somebody_says_it():
    (plain,) = alerts.pod_monitor()["podMetricsEndpoints"]
    things = made(MONITORED, "monitoring.podMonitor.interval=15s")
    (often,) = things["PodMonitor", "pyvgpu"]["spec"]["podMetricsEndpoints"]
    assert often == {**plain, "interval": "15s"}
