"""kube-scheduler samples a part of the nodes unless percentageOfNodesToScore is 100."""

import contextlib
import json
import subprocess

import extenders
import pytest
import runner

from pyvgpu.controller.scheduler import sampling

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240), pytest.mark.alone]

CORDONED = tuple(f"full-{number:03}" for number in range(150))
GOOD = "room"  # comes last, after the minimum of 100 sampled nodes


@contextlib.contextmanager
def scheduler(extender, folder, percentage):
    """Run kube-scheduler with this percentageOfNodesToScore; 0: its default."""
    config = folder / "sampling.json"
    extenders.write_scheduler(config, percentage)
    extenders.restart_scheduler(config)
    try:
        yield
    finally:
        extenders.restart_scheduler(extender.config)


def was_refused(pod):
    return any(
        condition["type"] == "PodScheduled" and condition["status"] == "False"
        for condition in pod["status"].get("conditions", ())
    )


def doctor(config):
    """Return the doctor's remedy for a kube-scheduler configuration.

    Its exit code does not matter here: it is also about everything else on the machine.
    """
    command = [runner.PYVGPU, "doctor", "--json", "--scheduler-config", config]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    rows = json.loads(done.stdout)["checks"]
    (row,) = (line for line in rows if line["check"] == "kube-scheduler")
    return row["remedy"]


def test_pod_that_fits_only_on_an_unsampled_node_waits(space, extender, tmp_path):
    # It starts with the nodes that it has seen first.
    with (
        scheduler(extender, tmp_path, 0),
        extenders.fake_nodes(*CORDONED, hidden=CORDONED),
        extenders.fake_nodes(GOOD),
    ):
        space.create("pods", extenders.pod("sampled"))
        space.until("pods", "sampled", was_refused)
        space.until_event("sampled", "VGPUWaits", f"{GOOD} would fit: ")
        assert sampling.REMEDY in doctor(tmp_path / "sampling.json")
        assert sampling.REMEDY not in doctor(extender.config)
        with scheduler(extender, tmp_path, 100):
            space.create("pods", extenders.pod("all"))
            pod = space.until("pods", "all", lambda current: current["spec"].get("nodeName"))
            assert pod["spec"]["nodeName"] == GOOD
            assert not was_refused(pod)
