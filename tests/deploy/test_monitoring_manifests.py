"""The chart's objects for Prometheus' operator and Grafana."""

import json

import alerts
import pytest
import yaml
from charted import EVERYTHING, MONITORED, made

ALL = made(MONITORED, *EVERYTHING)


def test_default_needs_no_monitoring_crds():
    kinds = {kind for kind, _ in made()}
    assert not kinds & {"PodMonitor", "PrometheusRule"}
    assert ("ConfigMap", "pyvgpu-dashboard") not in made()


def test_rules_are_those_of_the_file():
    assert ALL["PrometheusRule", "pyvgpu"]["spec"] == yaml.safe_load(alerts.RULES.read_text())


def test_dashboard_is_that_of_the_file_with_grafanas_label():
    found = ALL["ConfigMap", "pyvgpu-dashboard"]
    assert json.loads(found["data"]["pyvgpu.json"]) == alerts.DASHBOARD
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_pod_monitor_selects_exactly_the_pods_with_metrics():
    (endpoint,) = alerts.pod_monitor()["podMetricsEndpoints"]
    (selected,) = alerts.pod_monitor()["selector"]["matchExpressions"]
    assert (selected["key"], selected["operator"]) == ("app", "In")
    shown, namespaces = set(), set()
    for thing in ALL.values():
        template = thing.get("spec", {}).get("template", {})
        for container in template.get("spec", {}).get("containers", ()):
            if endpoint["port"] in {port["name"] for port in container.get("ports", ())}:
                shown.add(template["metadata"]["labels"]["app"])
                namespaces.add(thing["metadata"]["namespace"])
    assert set(selected["values"]) == shown
    assert set(alerts.pod_monitor()["namespaceSelector"]["matchNames"]) == namespaces


@pytest.mark.parametrize(
    ("kind", "switch"), [("PrometheusRule", "rules"), ("PodMonitor", "podMonitor")]
)
def test_monitoring_objects_have_the_configured_labels(kind, switch):
    things = made(f"monitoring.{switch}.enabled=true", "monitoring.labels.release=stack")
    assert things[kind, "pyvgpu"]["metadata"]["labels"]["release"] == "stack"


def test_scrape_interval_is_set_only_if_configured():
    (plain,) = alerts.pod_monitor()["podMetricsEndpoints"]
    things = made(MONITORED, "monitoring.podMonitor.interval=15s")
    (often,) = things["PodMonitor", "pyvgpu"]["spec"]["podMetricsEndpoints"]
    assert often == {**plain, "interval": "15s"}
