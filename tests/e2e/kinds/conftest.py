"""Fixtures: the chart with a second kube-scheduler, on the kind of cluster under test."""

import ipaddress
import json
import os

import agents
import charts
import pytest
import rig
import undisturbed

collect_ignore = (
    [] if os.environ.get("CLUSTER_RUNTIME") == "nvidia" else ["test_default_runtime.py"]
)
PRIVILEGED = "pod-security.kubernetes.io/enforce=privileged"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("values")


@pytest.fixture(scope="session")
def release(folder):
    """Install the chart; return its values.

    There is no cluster DNS, so the extender's Service has a fixed address, of the family of the
    API server's own Service.
    """
    agents.make_image(folder)
    image = charts.make_scheduler_image(folder)
    found = charts.run("kubectl", "get", "service", "kubernetes", "--output", "json")
    address = ipaddress.ip_address(json.loads(found)["spec"]["clusterIP"]) + 0x50
    wanted = charts.values(
        scheduler={"mode": "second", "clusterIP": str(address)}, kubeScheduler={"image": image}
    )
    wanted["agent"]["privileged"] = os.environ.get("CLUSTER_CDI") == "false"
    charts.clear()
    # docs/install.md: a cluster that enforces pod security standards needs the label.
    charts.run("kubectl", "create", "namespace", charts.NAMESPACE)
    charts.run("kubectl", "label", "namespace", charts.NAMESPACE, PRIVILEGED)
    try:
        charts.install(charts.write(folder / "release.yaml", wanted))
        yield wanted
    except BaseException:
        print(charts.story())
        raise
    finally:
        charts.uninstall()


@pytest.fixture
def space(release):
    """Return a namespace, once both simulated devices are allocatable."""
    undisturbed.has_devices()
    with rig.space() as made:
        yield made
