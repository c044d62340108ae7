"""The figures, as Prometheus reads them, held against its own rules by promtool."""

import subprocess

import debian
import pytest

metrics = pytest.importorskip("pyvgpu.controller.metrics", reason="needs prometheus-client")


def used():
    """Return meters of which every figure has been counted once."""
    controller, node = metrics.ControllerMeter(), metrics.NodeMeter()
    for meter in (controller, node):
        meter.asked("GET", 200, 0.01)
        meter.asked("PATCH", 0, 5)
        meter.lost("/api/v1/pods", 410)
        meter.waited(0.1)
        meter.gauge("pyvgpu_queue_overdue", "Pods that are to be looked at.", lambda: 3)
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
def test_the_rules_of_prometheus_are_kept(promtool, meter):
    done = subprocess.run(
        [promtool, "check", "metrics"], input=meter.text(), capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_rule_that_is_broken_would_be_seen(promtool):
    text = b"# HELP camelCase x\n# TYPE camelCase gauge\ncamelCase 1\n"
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
    assert done.returncode != 0


def lines(meter):
    return meter.text().decode().splitlines()


def test_requests_and_their_failures_are_counted_apart():
    controller, _ = used()
    assert 'pyvgpu_api_requests_total{code="200",method="GET"} 1.0' in lines(controller)
    assert 'pyvgpu_api_errors_total{code="0",method="PATCH"} 1.0' in lines(controller)
    assert not [it for it in lines(controller) if "errors_total" in it and "GET" in it]


def test_a_gauge_is_read_when_somebody_looks():
    assert "pyvgpu_queue_overdue 3.0" in lines(used()[1])


def test_what_was_saved_grows_with_time_and_is_an_hour_at_most():
    now = [0.0]
    saved = metrics.Saved(lambda: now[0])
    saved.add(8)
    saved.add(0)
    now[0] = 10
    assert saved.seconds() == 80
    saved.add(1)
    now[0] = 1e6
    assert saved.seconds() == saved.seconds() == 3600 * 9
