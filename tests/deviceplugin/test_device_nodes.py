"""Only the agent gets the nodes of all devices, without privilege."""

import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import simulated_node
from fake_kubelet import SECONDS, AdmissionError, Container, Pod, StartError

from pyvgpu import errors, names
from pyvgpu.deviceplugin.plugin import device_nodes

AGENT = Container("agent", {names.CONTROL_RESOURCE: 1})


@pytest.fixture
def root(tmp_path):
    return simulated_node.make(tmp_path / "root", simulated_node.nodes(2))


@contextlib.contextmanager
def serving(kubelet, root, folder):
    """Run the control plugin; yield once kubelet has registered it."""
    one = device_nodes.DeviceNodesPlugin(
        device_nodes.DeviceNodeSettings(
            "pyvgpu-agent", kubelet.folder, kubelet.pod_resources, folder, root
        )
    )
    thread = threading.Thread(target=one.run)
    thread.start()
    try:
        kubelet.until(lambda: kubelet.healthy(names.CONTROL_RESOURCE))
        yield one
    finally:
        one.stop()
        thread.join()


@pytest.fixture
def specifications(kubelet, root, tmp_path):
    folder = tmp_path / "cdi"
    folder.mkdir()
    with serving(kubelet, root, folder):
        yield folder


def edits(specifications, answer):
    """Return the CDI edits for a container that starts with *answer*."""
    (device,) = answer.cdi_devices
    kind, _, name = device.partition("=")
    document = json.loads((specifications / f"pyvgpu.io-control-{name}.json").read_text())
    (only,) = document["devices"]
    assert (document["kind"], only["name"]) == (kind, name)
    return only["containerEdits"]


def agent_of(kubelet, name="agent-1"):
    return kubelet.admit(Pod(name, (AGENT,), "pyvgpu-agent"))


def test_agent_gets_the_nodes_of_all_devices(kubelet, specifications):
    answer = kubelet.start_container(agent_of(kubelet), "agent")
    found = {node["path"] for node in edits(specifications, answer)["deviceNodes"]}
    assert found == {f"/dev/{node}" for node in simulated_node.nodes(2)}
    assert not answer.nodes


def test_admitted_pod_gets_no_nodes_before_its_start(kubelet, specifications):
    agent_of(kubelet)
    assert not list(specifications.iterdir())


def test_pod_of_another_namespace_is_refused(kubelet, specifications):
    other = kubelet.admit(Pod("agent-1", (AGENT,), "default"))
    with pytest.raises(StartError, match="only for pods of namespace pyvgpu-agent"):
        kubelet.start_container(other, "agent")
    assert not list(specifications.iterdir())


def test_init_container_of_another_namespace_is_refused(kubelet, specifications):
    init = Container("agent", AGENT.limits, init=True)
    other = kubelet.admit(Pod("agent-1", (init,), "default"))
    with pytest.raises(StartError, match="only for pods of namespace"):
        kubelet.start_container(other, "agent")
    assert not list(specifications.iterdir())


def test_single_resource_passes_to_the_next_agent(kubelet, specifications):
    first = agent_of(kubelet)
    kubelet.start_container(first, "agent")
    with pytest.raises(AdmissionError):
        agent_of(kubelet, "agent-2")
    kubelet.remove(first)
    second = kubelet.start_container(agent_of(kubelet, "agent-2"), "agent")
    assert edits(specifications, second)["deviceNodes"]
    assert len(list(specifications.iterdir())) == 1


def test_restarted_container_gets_the_current_nodes(kubelet, specifications, root):
    pod = agent_of(kubelet)
    kubelet.start_container(pod, "agent")
    (root / "dev/nvidia1").unlink()
    again = kubelet.start_container(pod, "agent")
    paths = {node["path"] for node in edits(specifications, again)["deviceNodes"]}
    assert paths == {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"}


def test_agent_restarts_when_nodes_have_changed(kubelet, specifications, root, monkeypatch):
    answer = kubelet.start_container(agent_of(kubelet), "agent")
    (variable,) = edits(specifications, answer)["env"]
    monkeypatch.setenv(*variable.split("=", 1))
    polls = []

    def wait(_seconds):
        polls.append(None)
        if len(polls) == 3:
            (root / "dev/nvidia1").unlink()
        return len(polls) == 10

    with pytest.raises(errors.UnavailableError, match="it must restart"):
        device_nodes.stay(root, wait)
    assert len(polls) == 4


def test_agent_with_the_current_nodes_keeps_running(kubelet, specifications, root, monkeypatch):
    answer = kubelet.start_container(agent_of(kubelet), "agent")
    (variable,) = edits(specifications, answer)["env"]
    monkeypatch.setenv(*variable.split("=", 1))
    ended = iter((False, False, True))
    device_nodes.stay(root, lambda _: next(ended))
    assert not list(ended)


def test_privileged_agent_ignores_new_nodes(root, monkeypatch):
    monkeypatch.delenv(device_nodes.VARIABLE, raising=False)

    def wait(_seconds):
        (root / "dev/nvidia1").unlink(missing_ok=True)
        return True

    device_nodes.stay(root, wait)


def test_second_control_plugin_is_refused(kubelet, specifications, root):
    done = command(
        *("--namespace", "pyvgpu-agent", "--device-plugin-path", kubelet.folder),
        *("--pod-resources", kubelet.pod_resources, "--cdi", specifications),
        *("--driver-root", root),
    )
    assert done.returncode == 69
    assert "another agent serves this kubelet; stop one of them" in done.stderr


def test_namespace_option_is_required():
    done = command()
    assert done.returncode == 64
    assert "--namespace '': must be the name of a namespace" in done.stderr


@pytest.mark.parametrize(
    "option", ["--device-plugin-path", "--pod-resources", "--cdi", "--driver-root"]
)
def test_path_options_must_not_be_empty(option):
    done = command("--namespace", "pyvgpu-agent", option, "")
    assert done.returncode == 64
    assert f"{option} '': must name a path, such as /var/lib/pyvgpu" in done.stderr


def command(*options):
    return subprocess.run(
        [Path(sys.executable).with_name("pyvgpu"), "control-nodes", *options],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
