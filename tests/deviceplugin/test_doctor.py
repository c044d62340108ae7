"""The doctor in a grant's container, and on an agent's node."""

import json
import os
import subprocess
import sys

import granted
import pytest
import rights
from granted import GIB, grant_of, share_of

from pyvgpu import shim
from pyvgpu.deviceplugin.devices import simulated_devices
from pyvgpu.doctor import CheckState, inside
from pyvgpu.doctor import node_checks as nodes
from pyvgpu.http import endpoints
from pyvgpu.simulation import simulator

MAIN = "import sys, pyvgpu.cli; sys.exit(pyvgpu.cli.main())"


def ask(edits, root):
    """Run the doctor in a container; return its exit code and document."""
    root.mkdir(exist_ok=True)
    done = subprocess.run(
        granted.command(edits, root, sys.executable, "-c", MAIN, "doctor", "--json"),
        env=granted.variables(edits),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    return done.returncode, document["place"], {row["check"]: row for row in document["checks"]}


def edits_of(places, driver, grant):
    places.make(grant, driver)
    return granted.edits_of(places.specification(grant.id))


@pytest.mark.slow
@rights.needs_mounts
def test_doctor_proves_the_quota_of_a_container(places, machine, driver, tmp_path):
    edits = edits_of(places, driver, grant_of(share_of(machine, vcore=25, size=2 * GIB)))
    code, place, rows = ask(edits, tmp_path / "root")
    assert (code, place) == (0, "container"), rows
    assert rows["quota"]["found"] == f"container: {machine.devices[0].uuid} 25 vcore 2GiB"
    assert rows["libcuda.so.1"]["state"] == "ok"
    assert rows["clock"]["state"] == "limited"  # since no agent runs
    assert rows[inside.MEMORY]["state"] == "ok"
    assert rows[inside.TIME]["state"] in ("ok", "limited")


@pytest.mark.slow
@rights.needs_mounts
def test_doctor_names_a_driver_that_bypasses_the_shim(places, machine, driver, tmp_path):
    edits = edits_of(places, driver, grant_of(share_of(machine, vcore=25, size=2 * GIB)))
    rival = tmp_path / "rival"
    rival.mkdir()
    (library,) = shim.simulator_libraries().glob("libcuda.so.*")
    (rival / "libcuda.so.1").write_bytes(library.read_bytes())
    edits["env"].append(f"LD_LIBRARY_PATH={rival}")
    code, _, rows = ask(edits, tmp_path / "root")
    assert code == 69
    assert rows["libcuda.so.1"]["state"] == "missing"
    assert str(rival) in rows["libcuda.so.1"]["found"]
    assert "LD_LIBRARY_PATH" in rows["libcuda.so.1"]["remedy"]
    for proof in (inside.MEMORY, inside.TIME):
        assert rows[proof]["state"] == "missing", rows
        assert "not enforced" in rows[proof]["found"]


@rights.needs_mounts
def test_doctor_sees_no_quota_for_whole_devices(places, machine, driver, tmp_path):
    edits = edits_of(places, driver, grant_of(share_of(machine, vcore=100)))
    code, place, rows = ask(edits, tmp_path / "root")
    assert (code, place) == (0, "container of whole devices")
    assert rows["libcuda.so.1"]["found"].endswith(": the driver")
    assert inside.MEMORY not in rows


@rights.needs_mounts
def test_doctor_names_a_revoked_grant(places, machine, driver, tmp_path):
    grant = grant_of(share_of(machine))
    edits = edits_of(places, driver, grant)
    places.revoke(grant.id)
    code, _, rows = ask(edits, tmp_path / "root")
    assert code == 69
    assert "revoked" in rows["quota"]["found"]


def test_doctor_lists_everything_that_an_empty_node_lacks(tmp_path):
    rows = {row.check: row for row in nodes.examine(empty(tmp_path), {})}
    for name in ("mirror of the driver", "devices", "kubelet", "pod resources", "agent"):
        assert rows[name].state is CheckState.MISSING, name
    assert rows["kubelet"].found == f"{tmp_path}/kubelet/device-plugins/kubelet.sock: " + (
        "No such file or directory"
    )
    assert rows["CDI"].state is CheckState.LIMITED
    assert rows["shim"].state is CheckState.OK


def empty(folder, agent="127.0.0.1:9"):
    return nodes.NodePaths(folder / "state", folder / "kubelet", folder / "cdi", agent)


def test_doctor_finds_the_agents_simulated_machine(tmp_path):
    assert simulated_devices.environment(tmp_path) == {}
    machine = simulator.open_machine("t4:2", tmp_path / "simulated" / "machines")
    assert simulated_devices.environment(tmp_path) == machine.environment


@pytest.mark.parametrize(
    ("wrong", "state", "found"),
    [
        pytest.param("", CheckState.OK, "ready", id="ready"),
        pytest.param(
            "kubelet is away", CheckState.MISSING, "not ready: kubelet is away", id="not"
        ),
    ],
)
def test_doctor_reads_the_agents_readiness(tmp_path, wrong, state, found):
    with endpoints.serving("127.0.0.1:0", endpoints.Pages(bytes, ready=lambda: wrong)) as port:
        rows = nodes.examine(empty(tmp_path, f"127.0.0.1:{port}"), {})
    (row,) = (line for line in rows if line.check == "agent")
    assert row.state is state
    assert found in row.found


@pytest.mark.slow
def test_doctor_reports_another_plugin_as_limited(node, cluster):
    path = "/api/v1/nodes/node-1"
    counted = {"status": {"capacity": {"nvidia.com/gpu": "2"}}}
    cluster.api.put(path, {**cluster.api.read(path), **counted})
    node.start("--listen", "127.0.0.1:0", "--kubeconfig", cluster.kubeconfig)
    node.until(lambda: node.ask("/readyz")[0] == 200)
    port = node.log.read_text().rpartition("answering on port ")[2].split()[0]
    rows = nodes.examine(empty(node.folder / "none", f"127.0.0.1:{port}"), {})
    (row,) = (line for line in rows if line.check == "agent")
    assert row.state is CheckState.LIMITED
    assert "none is offered: another device plugin (nvidia.com/gpu: 2)" in row.found
    assert "--beside-nvidia" in row.remedy


@pytest.mark.slow
def test_doctor_finds_nothing_missing_on_a_ready_node(node, tmp_path):
    node.start("--listen", "127.0.0.1:0")
    node.kubelet.until_offered()
    answering = "answering on port "
    node.until(lambda: answering in node.log.read_text())
    port = node.log.read_text().rpartition(answering)[2].split()[0]
    root = tmp_path / "kubelet-root"
    (root / "pod-resources").mkdir(parents=True)
    (root / "device-plugins").symlink_to(node.kubelet.folder)
    (root / "pod-resources" / "kubelet.sock").symlink_to(node.kubelet.pod_resources)
    options = ("--state", node.state, "--kubelet", root, "--cdi", node.specifications)
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "doctor", "--json", "--node", *options, "--agent", port],
        env={**os.environ, **node.machine.environment},
        capture_output=True,
        text=True,
    )
    document = json.loads(done.stdout)
    assert {row["check"]: row["state"] for row in document["checks"]} == {
        "system": "ok",
        "shim": "ok",
        "shim's glibc": "ok",
        "mirror of the driver": "ok",
        "devices": "ok",
        "kubelet": "ok",
        "pod resources": "ok",
        "CDI": "ok",
        "agent": "ok",
    }, document
    assert (document["place"], done.returncode) == ("node", 0)
