"""helm lint accepts the chart, and the API server accepts its objects."""

import charted
import charts
import pytest
import render

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


def test_helm_lint_accepts_the_chart():
    said = charts.run(render.HELM, "lint", "--strict", charts.CHART)
    assert "1 chart(s) linted, 0 chart(s) failed" in said


@pytest.mark.parametrize(
    "setting",
    [
        f"profile=gaia,dra.enabled=true,{charted.SIDECARS},{charted.MONITORED}",
        charted.SECOND,
        "agent.audit=false",
    ],
)
def test_api_server_accepts_every_object(monitoring_kinds, setting):
    things = [
        document
        for document in charted.documents(setting, namespace="default")
        if document["kind"] != "Namespace"
        and document["metadata"].get("namespace") != charts.AGENTS
    ]
    command = ("kubectl", "apply", "--dry-run=server", "--validate=strict", "-f", "-")
    said = charts.run(*command, text=charted.listed(things))
    assert len(said.splitlines()) == len(things)
