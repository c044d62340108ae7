"""Fixtures: the whole chart, installed with helm on a node with simulated devices."""

import agents
import audit_log
import charts
import pytest


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Load the image of CUDA client programs into the cluster."""
    agents.make_image(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("values")


@pytest.fixture(scope="session")
def monitoring_kinds():
    """Install the Prometheus operator's CRDs."""
    with charts.monitored():
        yield


@pytest.fixture(scope="session")
def audited():
    """The length of the audit log before the installation."""
    return audit_log.size()


@pytest.fixture(scope="session")
def release(images, folder, monitoring_kinds, audited):
    """Install the chart with a second kube-scheduler; return its values file.

    There is no cluster DNS, so the extender's Service has a fixed cluster IP.
    """
    image = charts.make_scheduler_image(folder)
    wanted = charts.values(
        scheduler={"mode": "second", "clusterIP": "10.96.0.50"},
        kubeScheduler={"image": image},
        monitoring={kind: {"enabled": True} for kind in ("rules", "podMonitor", "dashboard")},
    )
    file = charts.write(folder / "release.yaml", wanted)
    with charts.installed(file):
        yield file
