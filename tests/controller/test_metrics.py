"""The metrics in Prometheus' text format, checked by promtool."""

import subprocess

import debian
import pytest

meters = pytest.importorskip("pyvgpu.controller.sidecar.meters", reason="needs prometheus-client")


def used():
    """Return meters on which every metric has been counted once."""
    controller, node = meters.ControllerMeter(), meters.NodeMeter()
    for meter in (controller, node):
        meter.asked("GET", 200, 0.01)
        meter.asked("PATCH", 0, 5)
        meter.lost("/api/v1/pods", 410)
        meter.waited(0.1)
        meter.gauge("pyvgpu_queue_overdue", "Pods that are to be polled at.", lambda: 3)
    for counter in controller.counts.values():
        (counter.labels("swap") if counter._labelnames else counter).inc()
    controller.end_seconds.labels("swap").observe(2.5)
    controller.saved.add(8)
    node.stops.labels("ended").inc()
    return controller, node


@pytest.fixture(scope="module")
def promtool():
    return debian.unpacked("bookworm", "prometheus", component="main") / "usr/bin/promtool"


@pytest.mark.parametrize("meter", used(), ids=("controller", "node"))
def test_promtool_accepts_the_metrics(promtool, meter):
    done = subprocess.run(
        [promtool, "check", "metrics"], input=meter.text(), capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_promtool_rejects_a_bad_name(promtool):
    text = b"# HELP camelCase x\n# TYPE camelCase gauge\ncamelCase 1\n"
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
    assert done.returncode != 0


def lines(meter):
    return meter.text().decode().splitlines()


def test_requests_and_failures_are_counted_separately():
    controller, _ = used()
    assert 'pyvgpu_api_requests_total{code="200",method="GET"} 1.0' in lines(controller)
    assert 'pyvgpu_api_errors_total{code="0",method="PATCH"} 1.0' in lines(controller)
    assert not [line for line in lines(controller) if "errors_total" in line and "GET" in line]


def test_a_gauge_is_read_at_scrape_time():
    assert "pyvgpu_queue_overdue 3.0" in lines(used()[1])


def test_saved_seconds_grow_up_to_an_hour():
    now = [0.0]
    saved = meters.Saved(lambda: now[0])
    saved.add(8)
    saved.add(0)
    now[0] = 10
    assert saved.seconds() == 80
    saved.add(1)
    now[0] = 1e6
    assert saved.seconds() == saved.seconds() == 3600 * 9
