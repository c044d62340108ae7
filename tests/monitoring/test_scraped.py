"""A real Prometheus reads what our programs show, with our rules, and answers the dashboard."""

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

from pyvgpu import pages
from pyvgpu.controller import metrics as controller
from pyvgpu.deviceplugin import metrics

DASHBOARD = json.loads((alerts.FOLDER / "grafana" / "pyvgpu.json").read_text())


@pytest.fixture(scope="module")
def programs():
    """Serve the figures of an agent, and of each program of the cluster side; give the ports."""
    agent = metrics.AgentMeter()
    agent.show(status_node.Node(looks=3).sources)
    scheduler = controller.SchedulerMeter()
    scheduler.gauge("pyvgpu_scheduler_leads", "1 if it holds the lease.", lambda: 1.0)
    scheduler.answered("/scheduler/filter", "fits", 0.01)
    webhook = controller.WebhookMeter()
    webhook.reviewed("/devices", "changed", 0.01)
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(pages.serving("0", pages.Pages(it.text)))
            for it in (agent, scheduler, webhook, controller.ControllerMeter())
        ]


@pytest.fixture(scope="module")
def prometheus(programs, tmp_path_factory):
    """Give what asks a Prometheus that scrapes them."""
    program = debian.unpacked("bookworm", "prometheus", component="main") / "usr/bin/prometheus"
    folder, port = tmp_path_factory.mktemp("prometheus"), served.free_port()
    config = folder / "prometheus.yaml"
    targets = [f"127.0.0.1:{it}" for it in programs]
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(alerts.RULES)],
                "scrape_configs": [
                    {"job_name": "pyvgpu", "static_configs": [{"targets": targets}]}
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
            up = [it["value"][1] for it in ask("query", query="up")["result"]]
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
    return [float(it["value"][1]) for it in ask("query", query=query)["result"]]


def test_it_has_read_what_the_programs_show(prometheus):
    assert sorted(values(prometheus, "pyvgpu_device_healthy")) == [0, 1, 1, 1]
    assert sum(values(prometheus, "pyvgpu_container_vcore_promised_ratio")) == pytest.approx(2.75)
    assert values(prometheus, 'pyvgpu_audit_findings{kind="no-shim"}') == [1]
    assert values(prometheus, "sum(pyvgpu_scheduler_answers_total)") == [1]


def test_every_rule_is_evaluated_without_a_fault(prometheus):
    def judged():
        groups = prometheus("rules")["groups"]
        found = [it for group in groups for it in group["rules"]]
        assert all(it["health"] in ("ok", "unknown") for it in found), found
        return len(found) == len(alerts.rules()) and {it["health"] for it in found} == {"ok"}

    wait_until(judged)


def test_what_is_wrong_is_pending_until_it_has_lasted(prometheus):
    def pending():
        found = prometheus("alerts")["alerts"]
        return {"PyvgpuDeviceSick", "PyvgpuPastQuota"} <= {
            it["labels"]["alertname"] for it in found
        }

    wait_until(pending)


def test_it_answers_all_that_the_dashboard_asks(prometheus):
    for panel in DASHBOARD["panels"]:
        for it in panel.get("targets", ()):
            asked = re.sub(r"\$__\w+", "5m", re.sub(r'"\$\w+"', '".*"', it["expr"]))
            prometheus("query", query=asked)


def test_the_panels_of_devices_have_something_to_show(prometheus):
    for panel in DASHBOARD["panels"][1:9]:
        for it in panel["targets"]:
            asked = re.sub(r'"\$\w+"', '".*"', it["expr"])
            assert prometheus("query", query=asked)["result"], panel["title"]
