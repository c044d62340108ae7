"""A real Prometheus scrapes our programs, evaluates our rules, and answers the dashboard."""

import contextlib
import json
import re
import subprocess
import urllib.parse
import urllib.request

import alerts
import debian
import pytest
import served
import status_node
import yaml
from waiting import wait_until

from pyvgpu.controller.scheduler.shell.scheduler_metrics import SchedulerMeter
from pyvgpu.controller.sidecar.meters import ControllerMeter
from pyvgpu.controller.webhook.shell.webhook_metrics import WebhookMeter
from pyvgpu.deviceplugin.telemetry import metric_families
from pyvgpu.http import endpoints

APPS = ("agent", "scheduler", "webhook", "sidecar-controller")


@pytest.fixture(scope="module")
def programs():
    """Serve the metrics of an agent and of the cluster components; yield the ports."""
    agent = metric_families.AgentMeter()
    agent.show(status_node.Node(samples=3).sources)
    scheduler = SchedulerMeter()
    scheduler.gauge("pyvgpu_scheduler_leads", "1 if this replica holds the lease.", lambda: 1.0)
    scheduler.answered("/scheduler/filter", "fits", 0.01)
    webhook = WebhookMeter()
    webhook.reviewed("/devices", "changed", 0.01)
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(endpoints.serving("0", endpoints.Pages(meter.text)))
            for meter in (agent, scheduler, webhook, ControllerMeter())
        ]


def labels_of(app):
    """Return the labels and meta labels that Prometheus' operator gives a pod."""
    return {
        **{"namespace": "pyvgpu", "pod": f"{app}-x", "container": app},
        "__meta_kubernetes_pod_name": f"{app}-x",
        "__meta_kubernetes_pod_node_name": "node-1",
        "__meta_kubernetes_pod_label_app": app,
    }


def plain(relabeling):
    """Convert the operator's keys to Prometheus': sourceLabels to source_labels."""
    return {
        re.sub("[A-Z]", lambda match: f"_{match[0].lower()}", k): v for k, v in relabeling.items()
    }


@pytest.fixture(scope="module")
def prometheus(programs, tmp_path_factory):
    """Return the query function of a Prometheus that scrapes as the PodMonitor says."""
    program = debian.unpacked("bookworm", "prometheus", component="main") / "usr/bin/prometheus"
    folder, port = tmp_path_factory.mktemp("prometheus"), served.free_port()
    config = folder / "prometheus.yaml"
    (endpoint,) = alerts.pod_monitor()["podMetricsEndpoints"]
    pods = [
        {"targets": [f"127.0.0.1:{port}"], "labels": labels_of(app)}
        for app, port in zip(APPS, programs, strict=True)
    ]
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(alerts.RULES)],
                "scrape_configs": [
                    {
                        "job_name": "pyvgpu",
                        "honor_labels": endpoint["honorLabels"],
                        "relabel_configs": [
                            plain(relabeling) for relabeling in endpoint["relabelings"]
                        ],
                        "static_configs": pods,
                    }
                ],
            }
        )
    )
    said = (folder / "said").open("w")
    process = subprocess.Popen(
        [
            *(program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"),
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=said,
        stderr=said,
    )

    def ask(path, **query):
        address = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        return found["data"]

    def scraped():
        with contextlib.suppress(OSError):
            up = [sample["value"][1] for sample in ask("query", query="up")["result"]]
            return up == ["1"] * len(programs)
        return False

    try:
        wait_until(scraped, found=lambda: (folder / "said").read_text()[-2000:])
        yield ask
    finally:
        process.kill()
        process.wait()
        said.close()


def values(ask, query):
    return [float(sample["value"][1]) for sample in ask("query", query=query)["result"]]


@pytest.mark.slow
def test_prometheus_has_scraped_the_metrics(prometheus):
    assert sorted(values(prometheus, "pyvgpu_device_healthy")) == [0, 1, 1, 1]
    assert sum(values(prometheus, "pyvgpu_container_vcore_allocated_ratio")) == pytest.approx(2.95)
    assert values(prometheus, 'pyvgpu_audit_findings{kind="no-shim"}') == [1]
    assert values(prometheus, "sum(pyvgpu_scheduler_answers_total)") == [1]


def test_container_metrics_are_labelled_with_the_container_not_the_exporter(prometheus):
    for name in ("namespace", "pod", "container"):
        used = f"count by ({name}) (pyvgpu_container_vcore_allocated_ratio)"
        found = {sample["metric"][name] for sample in prometheus("query", query=used)["result"]}
        assert found
        assert not found & {labels_of("agent")[name]}
    (leads,) = prometheus("query", query="pyvgpu_scheduler_leads")["result"]
    assert leads["metric"]["pod"] == "scheduler-x"


def test_agents_instance_is_its_node_and_others_their_pod(prometheus):
    found = {sample["metric"]["instance"] for sample in prometheus("query", query="up")["result"]}
    assert found == {"node-1", "scheduler-x", "webhook-x", "sidecar-controller-x"}


def test_documented_configuration_sets_the_same_instances():
    page = (alerts.ROOT / "docs/monitoring.md").read_text()
    (block,) = re.findall(r"```yaml\n(rule_files.*?)```", page, re.DOTALL)
    (job,) = yaml.safe_load(block)["scrape_configs"]
    (endpoint,) = alerts.pod_monitor()["podMetricsEndpoints"]
    keep, *instances = job["relabel_configs"]
    assert keep["regex"] == endpoint["port"]
    assert instances == [plain(relabeling) for relabeling in endpoint["relabelings"]]
    (watched,) = job["kubernetes_sd_configs"]
    wanted = alerts.pod_monitor()["namespaceSelector"]["matchNames"]
    assert sorted(watched["namespaces"]["names"]) == sorted(wanted)


def test_every_rule_is_evaluated_without_error(prometheus):
    def evaluated():
        groups = prometheus("rules")["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        assert all(rule["health"] in ("ok", "unknown") for rule in found), found
        return len(found) == len(alerts.rules()) and {rule["health"] for rule in found} == {"ok"}

    wait_until(evaluated)


def test_alerts_are_pending_before_they_fire(prometheus):
    def pending():
        found = prometheus("alerts")["alerts"]
        return {"PyvgpuDeviceUnhealthy", "PyvgpuPastQuota"} <= {
            alert["labels"]["alertname"] for alert in found
        }

    wait_until(pending)


def test_prometheus_answers_every_dashboard_query(prometheus):
    for panel in alerts.DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            asked = re.sub(r"\$__\w+", "5m", re.sub(r'"\$\w+"', '".*"', target["expr"]))
            prometheus("query", query=asked)


def test_device_panels_have_data(prometheus):
    for panel in alerts.DASHBOARD["panels"][1:9]:
        for target in panel["targets"]:
            asked = re.sub(r'"\$\w+"', '".*"', target["expr"])
            assert prometheus("query", query=asked)["result"], panel["title"]
