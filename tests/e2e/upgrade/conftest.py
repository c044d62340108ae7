"""Fixtures: the chart, and an image of a later version of its programs."""

import agents
import charts
import later_image
import pytest
import rig
import undisturbed


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """Install the chart; there is no cluster DNS, so the extender has a fixed cluster IP."""
    folder = tmp_path_factory.mktemp("values")
    agents.make_image(folder)
    later_image.make(folder)
    image = charts.make_scheduler_image(folder)
    wanted = charts.values(
        scheduler={"mode": "second", "clusterIP": "10.96.0.50", "replicas": 1},
        kubeScheduler={"image": image},
    )
    with charts.installed(charts.write(folder / "release.yaml", wanted)):
        yield wanted


@pytest.fixture(scope="module")
def space(release):
    with rig.space() as made:
        yield made


@pytest.fixture(scope="module")
def running(space):
    """Return a pod with a share that runs through all tests, and its processes."""
    return undisturbed.start(space)
