"""Pods written for gpu-manager run unchanged: `pyvgpu device-plugin --profile gaia`."""

import json
from pathlib import Path

import pytest
import yaml
from fake_kubelet import AdmissionError, Container, Pod, StartError
from node_process import UNIT

from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin.gpu_manager import profile
from pyvgpu.deviceplugin.kubelet import device_ids, plugin_messages

pytestmark = pytest.mark.slow

CORE, MEMORY = (f"tencent.com/vcuda-{suffix}" for suffix in ("core", "memory"))
FIRST = "tencent.com/predicate-gpu-idx-0"

# As gpu-manager's users write them.
SHARE = """
apiVersion: v1
kind: Pod
metadata:
  name: share
  annotations:
    tencent.com/vcuda-core-limit: "80"
spec:
  restartPolicy: Never
  containers:
    - name: nvidia
      image: test-image
      command: [/usr/local/nvidia/bin/nvidia-smi]
      resources:
        requests:
          tencent.com/vcuda-core: 50
          tencent.com/vcuda-memory: 30
        limits:
          tencent.com/vcuda-core: 50
          tencent.com/vcuda-memory: 30
"""
WHOLE = SHARE.replace("name: share", "name: whole").replace("core: 50", "core: 100")


def pod_of(text):
    """Return the pod of a manifest, as kubelet sees it, and its annotations."""
    found = yaml.safe_load(text)
    containers = tuple(
        Container(container["name"], container["resources"]["limits"])
        for container in found["spec"]["containers"]
    )
    return Pod(found["metadata"]["name"], containers), found["metadata"]["annotations"]


@pytest.fixture
def agent(node, cluster):
    """A node whose agent replaces gpu-manager's, with the options of gpu-manager's image."""
    configuration = node.folder / "volume.conf"
    volume = {
        "base": "/etc/gpu-manager/vdriver",
        "mode": "ro",
        "components": {
            "binaries": ["nvidia-smi", "gpu-client"],
            "libraries": ["libnvidia-ml.so", "libcuda.so", "libcuda-control.so"],
        },
    }
    volumes = [{"name": name, **volume} for name in ("nvidia", "origin")]
    configuration.write_text(json.dumps({"volume": volumes}))
    extra = node.folder / "extra-config.json"
    extra.write_text('{"default": {"devices": ["/dev/extra", "/dev/none"]}}')
    (node.root / "dev" / "extra").symlink_to("nvidiactl")
    node.start(
        *("--profile", "gaia", "--kubeconfig", cluster.kubeconfig),
        *(f"--extra-config={extra}", "--v=4", "--hostname-override=node-1", "--share-mode=true"),
        *(f"--volume-config={configuration}", "--log-dir=/var/log/gpu-manager"),
        *("--incluster-mode=true", "--node-labels=pool=training"),
    )
    node.kubelet.until(lambda: node.kubelet.healthy(CORE) and node.kubelet.healthy(MEMORY))
    return node


def mounts(edits):
    return {mount["containerPath"]: Path(mount["hostPath"]) for mount in edits["mounts"]}


def test_share_is_as_from_gpu_manager(agent, cluster):
    one, notes = pod_of(SHARE)
    agent.kubelet.admit(one)
    cluster.add(one, notes)
    answer = agent.kubelet.start_container(one, "nvidia")
    assert agent.quota(answer)[:2] == (50, 30)
    assert answer.variables["LD_LIBRARY_PATH"].split(":")[0] == "/usr/local/nvidia/lib64"
    assert (answer.annotations[CORE], answer.annotations[MEMORY]) == ("50", str(30 * UNIT))
    edits = agent.specification(answer)
    assert not any(variable.startswith("LD_LIBRARY_PATH=") for variable in edits.get("env", ()))
    there = mounts(edits)
    assert there["/usr/local/nvidia"] == there["/usr/local/pyvgpu"]
    tree = there["/usr/local/nvidia"]
    assert (tree / "lib64/libcuda.so.1").samefile(tree / "lib64/libnvidia-ml.so.1")  # the shim
    assert {path.name for path in (tree / "lib64").iterdir()} == {  # as in volume.conf
        *("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so"),
    }
    nodes = [node["path"] for node in edits["deviceNodes"]]
    assert "/dev/extra" in nodes
    assert "/dev/none" not in nodes


def test_gpu_manager_annotations_are_followed_and_written(agent, cluster):
    uuids = [device.uuid for device in agent.machine.devices]
    one, notes = pod_of(SHARE)
    agent.kubelet.admit(one)
    cluster.add(one, {**notes, FIRST: "1", "tencent.com/gpu-assigned": "false"})
    answer = agent.kubelet.start_container(one, "nvidia")
    assert agent.quota(answer) == (50, 30, uuids[1])
    agent.until(lambda: cluster.notes(one)["tencent.com/gpu-assigned"] == "true")
    whole, notes = pod_of(WHOLE)
    agent.kubelet.admit(whole)
    cluster.add(whole, notes)
    edits = agent.specification(agent.kubelet.start_container(whole, "nvidia"))
    assert "/dev/nvidia0" in [node["path"] for node in edits["deviceNodes"]]
    assert "/etc/pyvgpu" not in mounts(edits)
    library = mounts(edits)["/usr/local/nvidia"] / "lib64/libcuda.so.1"
    assert not library.samefile(library.with_name("libnvidia-ml.so.1"))  # the driver itself
    agent.until(lambda: cluster.notes(whole).get(FIRST) == "0")


def test_invalid_requests_are_refused_with_a_reason(agent, cluster):
    one, notes = pod_of(SHARE.replace("          tencent.com/vcuda-memory: 30\n", ""))
    agent.kubelet.admit(one)
    cluster.add(one, notes)
    with pytest.raises(StartError, match="vcore 50 without vmemory"):
        agent.kubelet.start_container(one, "nvidia")
    odd, _ = pod_of(SHARE.replace("core: 50", "core: 150"))
    with pytest.raises(AdmissionError, match="vcore 150: above 100 it must be a multiple of 100"):
        agent.kubelet.admit(odd)


@pytest.mark.parametrize(
    ("model", "label"),
    [
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("GeForce GTX 1080 Ti", "GTX"),
        ("H100", "H100"),
        ("NVIDIA (engineering)", "engineering"),
        ("", None),
    ],
)
def test_model_label_of_the_node(model, label):
    found = profile.labels([datatypes.NodeDevice("GPU-0", 0, 1, model)])
    assert found == ({"gaia.tencent.com/gpu-model": label} if label else {})


def test_node_gets_its_labels(agent, cluster):
    agent.until(lambda: cluster.text)
    model = cluster.published.devices[0].model.split()[1]
    assert cluster.labels == {"gaia.tencent.com/gpu-model": model, "pool": "training"}


def test_options_with_another_meaning_are_logged_once(agent):
    said = [line for line in agent.log.read_text().splitlines() if "--log-dir is ignored" in line]
    assert len(said) == 1
    assert "--share-mode" not in agent.log.read_text()


def test_share_mode_false_gives_whole_devices_only(node):
    node.start("--profile", "gaia", "--share-mode=false")
    kubelet = node.kubelet
    kubelet.until(lambda: kubelet.healthy(CORE) and kubelet.healthy(MEMORY))
    with pytest.raises(
        AdmissionError,
        match=r"this node allocates whole devices only .*would "
        r"be 100",
    ):
        kubelet.admit(pod_of(SHARE)[0])
    kubelet.start_container(kubelet.admit(pod_of(WHOLE)[0]), "nvidia")


def test_without_cdi_everything_is_in_the_answer(node):
    node.start("--profile", "gaia", "--no-require-cdi")
    kubelet = node.kubelet
    kubelet.until(lambda: kubelet.healthy(CORE) and kubelet.healthy(MEMORY))
    answer = kubelet.start_container(kubelet.admit(pod_of(SHARE)[0]), "nvidia")
    there = {mount.inside: mount.outside for mount in answer.mounts}
    assert there["/usr/local/nvidia"] == there["/usr/local/pyvgpu"]
    assert (Path(there["/etc/pyvgpu"]) / "quota").exists()
    assert answer.variables["LD_LIBRARY_PATH"] == profile.LIBRARY_PATH


class Decider:
    """A decider without gpu-manager's additions."""

    def allocate(self, kind, given):
        return plugin_messages.AllocateResponse({"a": "b"}, ("device",), {"A": "B"})

    def start(self, kind, held):
        raise AssertionError

    def prefer(self, kind, asked):
        return ("c1",)


def test_wrapped_answer_keeps_the_agents_content():
    dressed = profile.Dressed(Decider(), UNIT)
    core = dressed.allocate(device_ids.ResourceKind.VCORE, frozenset({"c1", "c2"}))
    assert core.annotations == {"a": "b", CORE: "2"}
    assert core.variables == {"A": "B", "LD_LIBRARY_PATH": profile.LIBRARY_PATH}
    assert core.cdi_devices == ("device",)
    memory = dressed.allocate(device_ids.ResourceKind.VMEMORY, frozenset({"m1"}))
    assert (memory.annotations, memory.variables) == ({"a": "b", MEMORY: str(UNIT)}, {"A": "B"})
    assert dressed.prefer(device_ids.ResourceKind.VCORE, None) == ("c1",)
