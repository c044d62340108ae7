"""A device in MIG mode is not offered, and comes back when MIG is off."""

import json

import claiming_kubelet
import pytest
from fake_kubelet import VCORE, AdmissionError, container, pod
from node_process import ended

from pyvgpu import names, nvml
from pyvgpu.deviceplugin.kubelet import device_ids
from pyvgpu.simulation import simulator

pytestmark = pytest.mark.slow

GAIA = (names.GAIA_VCORE_RESOURCE, names.GAIA_VMEMORY_RESOURCE)
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@pytest.fixture
def uuids(node):
    return [device.uuid for device in node.machine.devices]


def published(cluster):
    """Return why each device is unhealthy, from the node's annotation."""
    return (
        {device.uuid: device.unhealthy for device in cluster.published.devices}
        if cluster.text
        else {}
    )


@pytest.mark.parametrize(
    ("options", "resources"),
    [
        pytest.param((), (our.name for our in device_ids.OURS), id="pyvgpu"),
        pytest.param(("--profile", "gaia"), GAIA, id="gaia"),
    ],
)
def test_mig_device_is_not_offered_until_mig_is_off(node, cluster, uuids, options, resources):
    vcore, vmemory = resources
    kubelet = node.kubelet
    simulator.set_faults(node.machine, "mig 0")
    node.start("--kubeconfig", cluster.kubeconfig, "--recover-seconds", "1", *options)
    kubelet.until_offered((vcore, vmemory))
    assert len(kubelet.healthy(vcore)) == 100
    assert f"device {uuids[0]} is unhealthy: it is in MIG mode" in node.log.read_text()
    node.until(lambda: published(cluster) == {uuids[0]: nvml.MIG_MODE, uuids[1]: ""})
    simulator.set_faults(node.machine)
    node.until(lambda: len(kubelet.healthy(vcore)) == 200)
    node.until(lambda: published(cluster) == dict.fromkeys(uuids, ""))


def test_pods_are_placed_on_the_other_device(node, uuids):
    kubelet = node.kubelet
    simulator.set_faults(node.machine, "mig 0")
    node.start()
    kubelet.until_offered()
    first = kubelet.admit(pod("p", container("a", 60, 4)))
    assert node.quota(kubelet.start_container(first, "a"))[2] == uuids[1]
    with pytest.raises(AdmissionError):
        kubelet.admit(pod("q", container("a", 60, 4)))


def test_running_container_keeps_its_grant_in_mig_mode(node, cluster, uuids):
    kubelet = node.kubelet
    node.start("--kubeconfig", cluster.kubeconfig, "--recover-seconds", "1")
    kubelet.until_offered()
    one = pod("p", container("a", 30, 4))
    cluster.add(kubelet.admit(one), {}, owned=True)
    answer = kubelet.start_container(one, "a")
    assert node.quota(answer) == (30, 4, uuids[0])
    simulator.set_faults(node.machine, "mig 0")
    node.until(lambda: len(kubelet.healthy(VCORE)) == 100)
    node.until(lambda: cluster.events(one))
    (said,) = cluster.events(one)
    assert f"device {uuids[0]}, which this pod uses, is unhealthy: it is in MIG mode" in said
    assert node.quota(answer) == (30, 4, uuids[0])
    assert not cluster.evictions(one)


def test_status_page_and_metrics_show_mig_mode(node, uuids):
    simulator.set_faults(node.machine, "mig 1")
    node.start("--listen", "127.0.0.1:0")
    node.kubelet.until_offered()
    _, text = node.ask("/metrics")
    (line,) = (
        candidate
        for candidate in text.splitlines()
        if candidate.startswith(f'pyvgpu_device_healthy{{uuid="{uuids[1]}"')
    )
    assert float(line.split()[-1]) == 0
    _, text = node.ask("/status.json")
    found = {
        device["uuid"]: (device["state"], device["why"]) for device in json.loads(text)["devices"]
    }
    assert found == {uuids[0]: ("healthy", ""), uuids[1]: ("unhealthy", nvml.MIG_MODE)}


def test_mig_device_is_not_in_the_slice(node, cluster, uuids):
    """Not even by a claim that tolerates the taint of unhealthy devices."""
    claiming = claiming_kubelet.ClaimingKubelet(node.kubelet.folder.parent)
    more = ("--kubeconfig", cluster.kubeconfig, "--recover-seconds", "1", *claiming.options)

    def devices():
        return {
            device["name"]
            for one in cluster.api.under(SLICES)
            for device in one["spec"]["devices"]
        }

    simulator.set_faults(node.machine, "mig 0")
    process = node.start("--allocation-api", "dra", *more)
    node.until(claiming.listens)
    claiming.meet()
    node.until(devices)
    assert devices() == {uuids[1].lower()}
    simulator.set_faults(node.machine)
    node.until(lambda: devices() == {uuid.lower() for uuid in uuids})
    ended(process)
