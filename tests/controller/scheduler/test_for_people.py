"""`pyvgpu explain POD` for waiting pods, and `pyvgpu simulate-schedule FILE`."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import scheduling_api as make
import small_api
import yaml

from pyvgpu import cli, names
from pyvgpu.allocator import annotations, datatypes


@pytest.fixture
def ask(cluster, tmp_path, capsys):
    """Run a command with a small API server; return its exit code, stdout and stderr."""
    api, connection = cluster
    for name in ("node-1", "node-2"):
        api.put(f"/api/v1/nodes/{name}", make.node(name))
    written = tmp_path / "kubeconfig"
    small_api.write_kubeconfig(written, connection, namespace="n")

    def run(*arguments):
        code = cli.main([*map(str, arguments), "--kubeconfig", str(written)])
        return code, *capsys.readouterr()

    return run


def bind(api, name, vcore, node, device):
    """Create a pod that was bound by a scheduler with another key."""
    thing = make.pod(name, vcore, 8, nodeName=node)
    share = datatypes.NodeShare(f"GPU-{node}-{device}", vcore, 8 * make.UNIT)
    choice = annotations.DeviceChoice(thing["metadata"]["uid"], node, {"main": (share,)})
    thing["metadata"]["annotations"] = {
        "pyvgpu.io/devices": annotations.seal(choice, b"another scheduler's 32-byte key!")
    }
    api.put(make.path(name), thing)


def fill(api):
    for node in ("node-1", "node-2"):
        for device, vcore in enumerate((60, 70)):
            bind(api, f"{node}-{device}", vcore, node, device)


def test_explain_lists_each_device_for_a_waiting_pod(cluster, ask):
    api, _ = cluster
    fill(api)
    api.put(make.path("a"), make.pod("a", 50, 8))
    code, out, _ = ask("explain", "a")
    assert code == 0
    assert out.splitlines() == [
        "n/a asks for 50 vcore and 2GiB",
        "  no device for 50 vcore and 2GiB: 2 nodes: not enough left on each device",
        "  nearest: node-1 gpu0 needs 50 vcore, has 40 free (n/node-1-0 60 vcore 2GiB); it would "
        "fit if n/node-1-0 ended, or if it asked for 40 vcore and 2GiB",
        "NODE    DEVICE  CONTAINER  WHY NOT",
        "node-1  gpu0    main       needs 50 vcore, has 40 free (n/node-1-0 60 vcore 2GiB)",
        "node-1  gpu1    main       needs 50 vcore, has 30 free (n/node-1-1 70 vcore 2GiB)",
        "node-2  gpu0    main       needs 50 vcore, has 40 free (n/node-2-0 60 vcore 2GiB)",
        "node-2  gpu1    main       needs 50 vcore, has 30 free (n/node-2-1 70 vcore 2GiB)",
    ]


def test_explain_prints_json_for_a_waiting_pod(cluster, ask):
    api, _ = cluster
    fill(api)
    api.put(make.path("a"), make.pod("a", 50, 8))
    document = json.loads(ask("explain", "a", "--json")[1])
    assert document["asks"] == "50 vcore and 2GiB"
    assert [node["name"] for node in document["nodes"]] == ["node-1", "node-2"]
    assert document["nearest"]["node"] == "node-1"


def test_where_there_is_room_explain_names_the_scheduler_configuration(cluster, ask):
    cluster[0].put(make.path("a"), make.pod("a", 50, 8))
    _, out, _ = ask("explain", "a")
    assert "2 nodes would fit, such as node-1" in out
    assert "percentageOfNodesToScore: 100" in out


def test_explain_reports_an_invalid_request(cluster, ask):
    cluster[0].put(make.path("a"), make.pod("a", 150, 8))
    code, out, _ = ask("explain", "a")
    assert code == 0
    assert "above 100 it must be a multiple of 100" in out


@pytest.mark.parametrize("what", ["nodes", "pods"])
def test_missing_list_permission_names_the_rbac_rule(cluster, ask, what):
    api, _ = cluster
    api.put(make.path("a"), make.pod("a", 50, 8))
    api.forbidden = (f"/api/v1/{what}",)
    code, _, err = ask("explain", "a")
    assert code == 69
    assert f"you may not list {what}" in err


def write(folder, name, *things):
    path = folder / name
    path.write_text(yaml.safe_dump_all(things))
    return path


def wanted(name, *asked, **more):
    made = make.pod(name, *asked, **more)
    return {"apiVersion": "v1", "kind": "Pod", **made}


def test_pods_are_placed_one_after_the_other(cluster, ask, tmp_path):
    fill(cluster[0])
    file = write(tmp_path, "pods.yaml", *(wanted(f"p{n}", 40, 8) for n in range(3)))
    code, out, _ = ask("simulate-schedule", file)
    assert code == 1
    assert out.splitlines() == [
        "n/p0: node-1: main gpu0 40 vcore 2048 MiB",
        "n/p1: node-2: main gpu0 40 vcore 2048 MiB",
        "n/p2: waits: no device for 40 vcore and 2GiB: 2 nodes: not enough left on each "
        "device; nearest: node-1 gpu1 needs 40 vcore, has 30 free (n/node-1-1 70 vcore 2GiB); it "
        "would fit if n/node-1-0 ended, or if it asked for 30 vcore and 2GiB",
    ]
    assert not cluster[0].bound


def test_a_saved_cluster_works_and_node_selectors_apply(cluster, ask, tmp_path):
    nodes = [{"kind": "Node", **make.node(name)} for name in ("a", "b", "c")]
    nodes[1]["metadata"]["labels"] = {"zone": "z"}
    nodes[2]["metadata"]["labels"] = {"zone": "z"}
    nodes[2]["spec"] = {"unschedulable": True}
    saved = write(tmp_path, "cluster.json", {"kind": "List", "items": nodes})
    file = write(tmp_path, "pod.yaml", wanted("p", 50, 8, nodeSelector={"zone": "z"}))
    code, out, _ = ask("simulate-schedule", file, "--cluster", saved, "--json")
    assert code == 0
    (placed,) = json.loads(out)["pods"]
    assert (placed["node"], placed["why"]) == ("b", "")
    assert not cluster[0].asked


@pytest.mark.parametrize(("policy", "nodes"), [("binpack", 1), ("spread", 2)])
def test_the_policy_option_chooses_among_nodes(cluster, ask, tmp_path, policy, nodes):
    file = write(tmp_path, "pods.yaml", *(wanted(f"p{n}", 40, 8) for n in range(2)))
    _, out, _ = ask("simulate-schedule", file, "--policy", policy)
    assert len({line.split(": ")[1] for line in out.splitlines()}) == nodes


BILLION_LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{last}'] * 9)}]\n"
    for last, name in itertools.pairwise("abcdefghi")
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "contains no pod"),
        ("[1, 2", "must be objects as kubectl writes them"),
        ("just words", "which is not an object"),
        ("kind: Job\nmetadata: {name: j}\n", "a Job: must be a Pod"),
        ("{", "must be objects as kubectl writes them"),
        ("a: &a [*a]\n", "repeats itself without end by YAML aliases"),
        (BILLION_LAUGHS, "repeats itself without end by YAML aliases"),
        ("{a: " * 400 + "}" * 400, "must be objects as kubectl writes them"),
        ("kind: Pod\nmetadata: {name: p}\n", "pod p: spec.containers: must be a list of at least"),
        ("spec: {containers: {name: main}}\n", "pod pod-0: spec.containers: must be a list"),
        ("spec: {containers: [main]}\n", "spec.containers: must be a list"),
        (
            "spec: {containers: [{name: main, resources: {limits: [vcore]}}]}\n",
            "container main: resources.limits: must have names and amounts, such as {pyvgpu.io/v",
        ),
    ],
)
def test_an_invalid_file_is_refused(ask, tmp_path, text, why):
    file = tmp_path / "pods.yaml"
    file.write_text(text)
    code, _, err = ask("simulate-schedule", file)
    assert code == 65
    assert why in err


def test_kubectl_finds_its_plugin():
    program = Path(sys.executable).with_name("kubectl-vgpu")
    done = subprocess.run([program, "top", "--output", "yaml"], capture_output=True, text=True)
    assert done.returncode == 64
    assert "must be wide or json" in done.stderr


MEANT = {
    "4Gi": "main: pyvgpu.io/vmemory '4Gi': counts units of 256MiB and takes a number without a "
    "suffix; 4Gi is 16 (or pyvgpu.io/vmemory-mib: 4096)",
    "4096": "main: pyvgpu.io/vmemory '4096': 4096 units of 256MiB are 1TiB; no GPU has that much; "
    "4096 MiB are 16 units (or pyvgpu.io/vmemory-mib: 4096)",
}


@pytest.mark.parametrize("written", MEANT)
@pytest.mark.parametrize("nodes", [True, False])
def test_memory_in_a_wrong_unit_is_explained(cluster, ask, tmp_path, written, nodes):
    api, _ = cluster
    if not nodes:
        for name in ("node-1", "node-2"):
            api.delete(f"/api/v1/nodes/{name}")
    file = write(tmp_path, "pod.yaml", wanted("p", 30, written))
    code, out, _ = ask("simulate-schedule", file)
    assert (code, out) == (1, f"n/p: waits: container {MEANT[written]}\n")
    api.put(make.path("p"), make.pod("p", 30, written))
    code, out, _ = ask("explain", "p")
    assert (code, out) == (0, f"n/p: container {MEANT[written]}\n")


@pytest.mark.parametrize(
    ("annotation", "value", "why"),
    [
        (names.VCORE_POLICY_ANNOTATION, "elastik", "'elastik': must be"),
        (names.VCORE_LIMIT_ANNOTATION, "20", "'20': must be from"),
        (names.PRIORITY_ANNOTATION, "urgent", "'urgent': must be"),
    ],
)
def test_simulation_refuses_annotations_like_the_webhook(
    cluster, ask, tmp_path, annotation, value, why
):
    pod = wanted("p", 30, 8)
    noted = {names.VCORE_POLICY_ANNOTATION: "elastic", annotation: value}
    pod["metadata"]["annotations"] = {**pod["metadata"].get("annotations", {}), **noted}
    code, out, _ = ask("simulate-schedule", write(tmp_path, "pod.yaml", pod))
    assert code == 1
    assert f"waits: {annotation} {why}" in out


def in_mebibytes(written):
    pod = wanted("p", 30, 0)
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    limits[names.VMEMORY_MIB_RESOURCE] = written
    limits.pop(names.VMEMORY_RESOURCE, None)
    return pod


def test_simulation_converts_mebibytes_like_the_webhook(cluster, ask, tmp_path):
    code, out, _ = ask("simulate-schedule", write(tmp_path, "pod.yaml", in_mebibytes("4000")))
    assert code == 0
    assert "30 vcore 4096 MiB" in out
    code, out, _ = ask("simulate-schedule", write(tmp_path, "pod.yaml", in_mebibytes("4Gi")))
    assert code == 1
    assert "waits: container main: pyvgpu.io/vmemory-mib '4Gi': " in out
    assert out.endswith("4Gi is 4096\n")


def test_mebibytes_that_the_webhook_did_not_see_are_explained(cluster, ask):
    api, _ = cluster
    pod = make.pod("p", 30, 4)
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    limits[names.VMEMORY_MIB_RESOURCE] = limits.pop(names.VMEMORY_RESOURCE)
    api.put(make.path("p"), pod)
    code, out, _ = ask("explain", "p")
    assert code == 0
    assert "container main: pyvgpu.io/vmemory-mib: no node has that resource; the admission" in out


def test_a_large_number_of_small_units_is_valid(cluster, ask, tmp_path):
    api, _ = cluster
    api.put("/api/v1/nodes/node-1", make.node("node-1", unit=1 << 20))
    api.delete("/api/v1/nodes/node-2")
    file = write(tmp_path, "pod.yaml", wanted("p", 30, 4096))
    code, out, _ = ask("simulate-schedule", file)
    assert (code, out) == (0, "n/p: node-1: main gpu0 30 vcore 4096 MiB\n")
