"""Everything, installed with helm on a node whose devices are simulated."""

import agents
import charts
import pytest


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Let the cluster have the image of programs that use devices."""
    agents.make_image(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("values")


@pytest.fixture(scope="session")
def monitoring_kinds():
    """Let the cluster know the kinds of Prometheus' operator."""
    with charts.monitored():
        yield


@pytest.fixture(scope="session")
def release(images, folder, monitoring_kinds):
    """Install it with a kube-scheduler of its own; return the file of its values.

    There is no cluster DNS, so the extender has an address that is known before.
    """
    image = charts.make_scheduler_image(folder)
    wanted = charts.values(
        scheduler={"mode": "second", "clusterIP": "10.96.0.50"},
        kubeScheduler={"image": image},
        monitoring={it: {"enabled": True} for it in ("rules", "podMonitor", "dashboard")},
    )
    file = charts.write(folder / "release.yaml", wanted)
    charts.clear()
    try:
        charts.install(file)
        yield file
    except BaseException:
        print(charts.story())
        raise
    finally:
        charts.uninstall()
