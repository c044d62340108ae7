"""kube-scheduler asks about a part of the nodes, unless it is told to ask about all."""

import contextlib
import json
import subprocess

import extenders
import pytest
import runner

from pyvgpu.controller.scheduler import sampling

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240), pytest.mark.alone]

CORDONED = tuple(f"full-{number:03}" for number in range(150))
GOOD = "room"  # comes last, beyond the 100 nodes that are asked about at least


@contextlib.contextmanager
def scheduler(extender, folder, percentage):
    """Let kube-scheduler ask about so many of the nodes; 0: as it does by itself."""
    config = folder / "sampling.json"
    extenders.write_scheduler(config, percentage)
    extenders.restart_scheduler(config)
    try:
        yield
    finally:
        extenders.restart_scheduler(extender.config)


def was_refused(pod):
    return any(
        it["type"] == "PodScheduled" and it["status"] == "False"
        for it in pod["status"].get("conditions", ())
    )


def doctor(config):
    """Return what the doctor says of a configuration of kube-scheduler."""
    command = [runner.PYVGPU, "doctor", "--json", "--scheduler-config", config]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = json.loads(done.stdout)["checks"]
    (row,) = (it for it in rows if it["check"] == "kube-scheduler")
    return row["remedy"]


def test_a_pod_that_fits_where_nobody_asks_waits(space, extender, tmp_path):
    # It begins with those that it has seen first.
    with (
        scheduler(extender, tmp_path, 0),
        extenders.fake_nodes(*CORDONED, hidden=CORDONED),
        extenders.fake_nodes(GOOD),
    ):
        space.create("pods", extenders.pod("sampled"))
        space.until("pods", "sampled", was_refused)
        space.until_event("sampled", "VGPUWaits", f"{GOOD} would do: ")
        assert sampling.REMEDY in doctor(tmp_path / "sampling.json")
        assert sampling.REMEDY not in doctor(extender.config)
        with scheduler(extender, tmp_path, 100):
            space.create("pods", extenders.pod("all"))
            pod = space.until("pods", "all", lambda it: it["spec"].get("nodeName"))
            assert pod["spec"]["nodeName"] == GOOD
            assert not was_refused(pod)
