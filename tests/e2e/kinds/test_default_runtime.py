"""NVIDIA's container runtime as the node's default one, with CDI devices of NVIDIA's toolkit.

Its runtime gives a container the devices that NVIDIA_VISIBLE_DEVICES names. The node here has two
GPUs with device nodes for NVIDIA's toolkit; our agent has simulated ones without.
"""

import os
import subprocess
from pathlib import Path

import pytest
import rig
import simulated_node
from agents import container

from pyvgpu.simulation import simulator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

SPECIFICATION = Path("/var/run/cdi/nvidia.yaml")
NODES = {
    "nvidia0": (10, 229),
    "nvidia1": (10, 234),
    "nvidiactl": (10, 237),
    "nvidia-uvm": (10, 235),
}
EVERYTHING = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
LIST = "(busybox ls /dev; echo $NVIDIA_VISIBLE_DEVICES) > /dev/termination-log"


@pytest.fixture(scope="module", autouse=True)
def _toolkit(tmp_path_factory):
    """Let NVIDIA's toolkit describe the GPUs of a node whose NVML is the simulator's."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "machines").mkdir()
    machine = simulator.open_machine("h100:2", folder / "machines", mode="free")
    root = simulated_node.make(folder / "root", NODES)
    (libraries,) = (root / "usr/lib").iterdir()
    for name in ("libcuda", "libnvidia-ml"):
        (library,) = libraries.glob(f"{name}.so.*")
        (libraries / f"{name}.so.1").symlink_to(library.name)
    hook = subprocess.run(["which", "nvidia-cdi-hook"], check=True, capture_output=True, text=True)
    subprocess.run(
        [
            *("nvidia-ctk", "cdi", "generate", "--output", SPECIFICATION),
            *("--driver-root", root, "--dev-root", root),
            *("--nvidia-cdi-hook-path", hook.stdout.strip()),
        ],
        env={**os.environ, **machine.environment},
        check=True,
    )
    yield
    SPECIFICATION.unlink()


def sees(space, part):
    """Run a container; return the device nodes that it has, and NVIDIA_VISIBLE_DEVICES."""
    space.create("pods", rig.pod("p", {**part, "env": [*part.get("env", ()), *EVERYTHING]}))
    ended = space.until("pods", "p", rig.has_ended)
    assert rig.phase(ended) == "Succeeded", ended["status"]
    *found, variable = rig.state(ended, "a")["state"]["terminated"]["message"].split("\n")[:-1]
    return set(found) & NODES.keys(), variable


def test_container_without_a_share_gets_the_devices_that_its_variable_names(space):
    """The control of the next test; pyvgpu's `webhook.environmentPolicy` refuses such pods."""
    assert sees(space, rig.container("a", LIST)) == (NODES.keys(), "void")


def test_container_with_a_share_gets_no_device_of_the_runtime(space):
    assert sees(space, container("a", 30, 16, LIST)) == (set(), "void")
