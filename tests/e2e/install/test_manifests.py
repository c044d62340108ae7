"""What the API server says of everything that the chart makes, and helm of the chart."""

import charted
import charts
import pytest
import render

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


def test_the_chart_has_nothing_that_helm_frowns_upon():
    said = charts.run(render.HELM, "lint", "--strict", charts.CHART)
    assert "1 chart(s) linted, 0 chart(s) failed" in said


@pytest.mark.parametrize(
    "setting",
    [f"profile=gaia,dra.enabled=true,{charted.MONITORED}", charted.SECOND, "agent.audit=false"],
)
def test_kubernetes_knows_all_that_is_made(monitoring_kinds, setting):
    things = [
        it
        for it in charted.documents(setting, namespace="default")
        if it["kind"] != "Namespace" and it["metadata"].get("namespace") != charts.AGENTS
    ]
    command = ("kubectl", "apply", "--dry-run=server", "--validate=strict", "-f", "-")
    said = charts.run(*command, text=charted.listed(things))
    assert len(said.splitlines()) == len(things)
