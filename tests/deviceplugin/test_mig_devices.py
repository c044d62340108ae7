"""MIG devices are devices of the agent: offered, granted with their capabilities, watched."""

import json
import re
import subprocess
import sys

import node_process
import pytest
import simulated_node
from fake_kubelet import VCORE, StartError, container, pod

from pyvgpu import device, nvml
from pyvgpu.simulation import mig, simulator

pytestmark = pytest.mark.slow

UNIT = 256 << 20
CAPS = 235  # a major number


def capabilities(proc, state, minor_of=lambda gpu: gpu):
    """Write the driver's capability files of these instances below *proc*, as it numbers them.

    *minor_of* gives the minor number of a GPU's index.
    """
    base = proc / "driver/nvidia/capabilities"
    proc.mkdir(exist_ok=True)
    (proc / "devices").write_text(f"Character devices:\n  1 mem\n{CAPS} nvidia-caps\n")

    def write(path, minor):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")

    write(base / "mig/config", 1)
    write(base / "mig/monitor", 2)
    for found in state.instances:
        gpu = minor_of(found.gpu)
        own = base / f"gpu{gpu}/mig/gi{found.gpu_instance}"
        minor = 3 + 135 * gpu + 9 * found.gpu_instance
        write(own / "access", minor)
        write(own / f"ci{found.compute_instance}/access", minor + 1 + found.compute_instance)


@pytest.fixture(name="node")
def fixture_node(kubelet, tmp_path):
    """A node with a GPU in MIG mode with two instances, and a whole GPU."""
    machine = simulator.open_machine("h100:mig=3g.40gb+2g.20gb,t4", tmp_path / "machines")
    root = simulated_node.make(tmp_path / "root", simulated_node.nodes(2))
    capabilities(root / "proc", simulator.mig_state(machine))
    with node_process.contextlib.ExitStack() as stack:
        yield node_process.Node(kubelet, machine, root, tmp_path, stack)


def states(node):
    _, text = node.ask("/status.json")
    return {found["uuid"]: (found["state"], found["why"]) for found in json.loads(text)["devices"]}


def nodes_of(node, answer):
    return {found["path"]: (found["major"], found["minor"])
            for found in node.specification(answer)["deviceNodes"]}  # fmt: skip


def test_each_mig_device_is_offered_and_granted_with_its_own_capabilities(node):
    kubelet = node.kubelet
    first, second = simulator.mig_state(node.machine).instances
    node.start()
    kubelet.until_offered()
    assert len(kubelet.healthy(VCORE)) == 300, "two MIG devices and a whole one"
    given = {}
    for name in "abc":
        one = kubelet.admit(pod(name, container("x", 60, 4)))
        answer = kubelet.start_container(one, "x")
        vcore, units, uuid = node.quota(answer)
        assert (vcore, units) == (60, 4)
        given[uuid] = nodes_of(node, answer)
    assert given.keys() == {first.uuid, second.uuid, node.machine.devices[1].uuid}
    for found in (first, second):
        minor = 3 + 9 * found.gpu_instance
        caps = {path for path in given[found.uuid] if "nvidia-cap" in path}
        assert caps == {
            f"/dev/nvidia-caps/nvidia-cap{minor}",
            f"/dev/nvidia-caps/nvidia-cap{minor + 1}",
        }, "its own two, and no other tenant's"
        assert given[found.uuid][f"/dev/nvidia-caps/nvidia-cap{minor}"] == (CAPS, minor)
        assert "/dev/nvidia0" in given[found.uuid]
        assert "/dev/nvidia1" not in given[found.uuid]
    whole = given[node.machine.devices[1].uuid]
    assert "/dev/nvidia1" in whole
    assert not any("nvidia-cap" in path for path in whole)


def test_capabilities_are_found_by_the_minor_number_not_by_the_index(node):
    """As after a GPU was removed: index 0 has the minor number 1, whose files are these."""
    kubelet = node.kubelet
    state = simulator.mig_state(node.machine)
    capabilities(node.root / "proc", state, lambda gpu: 1 - gpu)
    simulator.set_faults(node.machine, "minor 0 1", "minor 1 0")
    node.start()
    kubelet.until_offered()
    by_uuid = {found.uuid: found for found in state.instances}
    for name in "abc":
        one = kubelet.admit(pod(name, container("x", 60, 4)))
        answer = kubelet.start_container(one, "x")
        paths = nodes_of(node, answer).keys()
        found = by_uuid.pop(node.quota(answer)[2], None)
        caps = {path for path in paths if "nvidia-cap" in path}
        if found is None:
            assert caps == set()
            assert "/dev/nvidia0" in paths
            continue
        minor = 3 + 135 + 9 * found.gpu_instance
        assert caps == {
            f"/dev/nvidia-caps/nvidia-cap{minor}",
            f"/dev/nvidia-caps/nvidia-cap{minor + 1}",
        }
        assert "/dev/nvidia1" in paths
        assert "/dev/nvidia0" not in paths
    assert by_uuid == {}


def test_whole_mig_device_is_given_with_all_its_memory(node):
    kubelet = node.kubelet
    node.start()
    kubelet.until_offered()
    one = kubelet.admit(pod("p", container("x", 100, 0)))
    answer = kubelet.start_container(one, "x")
    caps = [path for path in nodes_of(node, answer) if "nvidia-cap" in path]
    assert len(caps) in (0, 2)


def test_several_devices_for_a_container_are_never_mig_devices(node):
    kubelet = node.kubelet
    node.start()
    kubelet.until_offered()
    one = kubelet.admit(pod("p", container("x", 200, 0)))
    with pytest.raises(StartError, match="MIG device, of which a process sees only one"):
        kubelet.start_container(one, "x")


def test_gpu_without_mig_devices_is_reported_until_there_are_some(node):
    kubelet = node.kubelet
    folder = node.machine.folder
    gpu = node.machine.devices[0].uuid
    full = (folder / mig.FILE).read_text()
    (folder / mig.FILE).write_text("gpu 0\n")
    node.start("--listen", "127.0.0.1:0", "--recover-seconds", "1")
    kubelet.until_offered()
    assert len(kubelet.healthy(VCORE)) == 100, "the whole GPU alone"
    assert states(node)[gpu] == ("unhealthy", nvml.MIG_MODE)
    (folder / ".new").write_text(full)
    (folder / ".new").replace(folder / mig.FILE)
    node.until(lambda: len(kubelet.healthy(VCORE)) == 300)
    instances = simulator.mig_state(node.machine).instances
    node.until(lambda: set(states(node)) == {
        *(found.uuid for found in instances), node.machine.devices[1].uuid
    })  # fmt: skip


def test_grant_never_gets_the_capabilities_of_a_later_instance(node):
    """The instances of another layout have the same ids, and so the same capability nodes."""
    kubelet = node.kubelet
    file = node.machine.folder / mig.FILE
    node.start("--recover-seconds", "1", "--listen", "127.0.0.1:0")
    kubelet.until_offered()
    one = kubelet.admit(pod("p", container("x", 60, 64)))
    uuid = node.quota(kubelet.start_container(one, "x"))[2]
    assert uuid in {found.uuid for found in simulator.mig_state(node.machine).instances}
    other = f"{uuid[:-4]}ffff"
    (file.parent / ".new").write_text(file.read_text().replace(uuid, other))
    (file.parent / ".new").replace(file)
    node.until(lambda: other in states(node))
    assert uuid not in states(node)
    with pytest.raises(StartError, match=uuid):
        kubelet.start_container(one, "x")


def test_xid_of_an_instance_affects_its_mig_device_only(node):
    first, second = simulator.mig_state(node.machine).instances
    node.start("--listen", "127.0.0.1:0", "--recover-seconds", "3600")
    node.kubelet.until_offered()
    node.until(lambda: "healthy" in states(node)[first.uuid])
    simulator.set_faults(node.machine, f"xid 0 95 {second.gpu_instance} {second.compute_instance}")
    node.until(lambda: states(node)[second.uuid][0] == "unhealthy")
    assert states(node)[first.uuid] == ("healthy", "")
    simulator.set_faults(node.machine, "xid 0 79")
    node.until(lambda: states(node)[first.uuid][0] == "unhealthy")
    assert states(node)[node.machine.devices[1].uuid] == ("healthy", "")


def test_load_of_a_mig_device_is_unknown_not_zero(node):
    first, _ = simulator.mig_state(node.machine).instances
    node.start("--listen", "127.0.0.1:0")
    node.kubelet.until_offered()
    whole = node.machine.devices[1].uuid
    node.until(lambda: f'pyvgpu_device_used_ratio{{uuid="{whole}"' in node.ask("/metrics")[1])
    _, text = node.ask("/metrics")
    assert f'pyvgpu_device_memory_bytes{{uuid="{first.uuid}"' in text
    node.until(
        lambda: f'pyvgpu_device_used_ratio{{uuid="{first.uuid}"' not in node.ask("/metrics")[1]
    )
    found = {one["uuid"]: one for one in json.loads(node.ask("/status.json")[1])["devices"]}
    assert found[first.uuid]["used"] is None
    assert found[first.uuid]["memoryBytes"] == first.memory_bytes
    assert found[whole]["used"] == 0


def test_simulated_and_asked_devices_are_the_same(node, tmp_path):
    """The inventory from the machine's file is what NVML says."""
    import machine_room

    source = (
        "import json, sys, pathlib; from pyvgpu import device\n"
        "print(json.dumps([[d.uuid, d.index, d.name, d.memory_bytes, d.mig, d.place,\n"
        "  d.instance and [d.instance.parent, d.instance.gpu_instance, d.instance.sm_percent]]\n"
        "  for d in device.installed(pathlib.Path(sys.argv[1]))]))"
    )
    library = machine_room.driver_folder(node.machine) / "libnvidia-ml.so.1"
    done = subprocess.run(
        [sys.executable, "-c", source, str(library)],
        env=machine_room.environment(node.machine),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [
        [
            found.uuid,
            found.index,
            found.name,
            found.memory_bytes,
            found.mig,
            found.place,
            found.instance
            and [found.instance.parent, found.instance.gpu_instance, found.instance.sm_percent],
        ]
        for found in device.simulated(node.machine)
    ]
    assert [found.place for found in device.simulated(node.machine)] == ["0:0", "0:1", "1"]
    assert [found.instance.sm_percent for found in device.simulated(node.machine)[:2]] == [45, 24]
    assert re.fullmatch(r".* MIG 3g\.40gb", device.simulated(node.machine)[0].name)
