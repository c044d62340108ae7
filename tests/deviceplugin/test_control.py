"""The agent gets the nodes of all devices without privilege, and nobody else gets them."""

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
from pyvgpu.deviceplugin import control

AGENT = Container("agent", {names.CONTROL_RESOURCE: 1})


@pytest.fixture
def root(tmp_path):
    return simulated_node.make(tmp_path / "root", simulated_node.nodes(2))


@contextlib.contextmanager
def serving(kubelet, root, folder):
    """Run what gives the nodes, until kubelet knows of it and to the end."""
    one = control.Control(
        control.Settings("pyvgpu-agent", kubelet.folder, kubelet.pod_resources, folder, root)
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
    """Return what CDI would do for a container that starts with *answer*."""
    (device,) = answer.cdi_devices
    kind, _, name = device.partition("=")
    document = json.loads((specifications / f"pyvgpu.io-control-{name}.json").read_text())
    (only,) = document["devices"]
    assert (document["kind"], only["name"]) == (kind, name)
    return only["containerEdits"]


def agent_of(kubelet, name="agent-1"):
    return kubelet.admit(Pod(name, (AGENT,), "pyvgpu-agent"))


def test_the_agent_has_the_nodes_of_all_devices(kubelet, specifications):
    answer = kubelet.start_container(agent_of(kubelet), "agent")
    found = {it["path"] for it in edits(specifications, answer)["deviceNodes"]}
    assert found == {f"/dev/{it}" for it in simulated_node.nodes(2)}
    assert not answer.nodes


def test_what_is_admitted_and_not_started_has_none(kubelet, specifications):
    agent_of(kubelet)
    assert not list(specifications.iterdir())


def test_a_pod_of_another_namespace_has_none(kubelet, specifications):
    other = kubelet.admit(Pod("agent-1", (AGENT,), "default"))
    with pytest.raises(StartError, match="for pods of namespace pyvgpu-agent alone"):
        kubelet.start_container(other, "agent")
    assert not list(specifications.iterdir())


def test_an_init_container_of_another_namespace_has_none(kubelet, specifications):
    init = Container("agent", AGENT.limits, init=True)
    other = kubelet.admit(Pod("agent-1", (init,), "default"))
    with pytest.raises(StartError, match="alone"):
        kubelet.start_container(other, "agent")
    assert not list(specifications.iterdir())


def test_there_is_one_and_the_next_agent_has_it_anew(kubelet, specifications):
    first = agent_of(kubelet)
    kubelet.start_container(first, "agent")
    with pytest.raises(AdmissionError):
        agent_of(kubelet, "agent-2")
    kubelet.remove(first)
    second = kubelet.start_container(agent_of(kubelet, "agent-2"), "agent")
    assert edits(specifications, second)["deviceNodes"]
    assert len(list(specifications.iterdir())) == 1


def test_a_container_that_starts_again_has_the_nodes_that_there_are_then(
    kubelet, specifications, root
):
    pod = agent_of(kubelet)
    kubelet.start_container(pod, "agent")
    (root / "dev/nvidia1").unlink()
    again = kubelet.start_container(pod, "agent")
    paths = {it["path"] for it in edits(specifications, again)["deviceNodes"]}
    assert paths == {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"}


def test_the_agent_ends_to_start_again_where_there_are_other_nodes(
    kubelet, specifications, root, monkeypatch
):
    answer = kubelet.start_container(agent_of(kubelet), "agent")
    (variable,) = edits(specifications, answer)["env"]
    monkeypatch.setenv(*variable.split("=", 1))
    looks = []

    def wait(_seconds):
        looks.append(None)
        if len(looks) == 3:
            (root / "dev/nvidia1").unlink()
        return len(looks) == 10

    with pytest.raises(errors.UnavailableError, match="it must start again"):
        control.stay(root, wait)
    assert len(looks) == 4


def test_an_agent_that_was_given_the_nodes_that_there_are_stays(
    kubelet, specifications, root, monkeypatch
):
    answer = kubelet.start_container(agent_of(kubelet), "agent")
    (variable,) = edits(specifications, answer)["env"]
    monkeypatch.setenv(*variable.split("=", 1))
    ended = iter((False, False, True))
    control.stay(root, lambda _: next(ended))
    assert not list(ended)


def test_an_agent_that_opens_what_it_likes_stays_whatever_comes(root, monkeypatch):
    monkeypatch.delenv(control.VARIABLE, raising=False)

    def wait(_seconds):
        (root / "dev/nvidia1").unlink(missing_ok=True)
        return True

    control.stay(root, wait)


def test_a_second_one_is_refused(kubelet, specifications, root):
    done = command(
        *("--namespace", "pyvgpu-agent", "--device-plugin-path", kubelet.folder),
        *("--pod-resources", kubelet.pod_resources, "--cdi", specifications),
        *("--driver-root", root),
    )
    assert done.returncode == 69
    assert "another one serves this kubelet here; one is enough" in done.stderr


def test_whose_namespace_it_is_must_be_known():
    done = command()
    assert done.returncode == 64
    assert "--namespace '': must name the agent's, such as pyvgpu-agent" in done.stderr


@pytest.mark.parametrize(
    "option", ["--device-plugin-path", "--pod-resources", "--cdi", "--driver-root"]
)
def test_a_place_must_be_named(option):
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
