"""An agent killed at any step of kubelet's calls never grants a share twice."""

import base64
import contextlib
import itertools
import json

import dying
import pytest
from granted import GIB
from waiting import started

from pyvgpu import names, region
from pyvgpu._api import pod_resources_pb2 as api
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin.containers import backend, store
from pyvgpu.deviceplugin.grants import grant_log, interfaces, manager
from pyvgpu.deviceplugin.kubelet import checkpoint_file, device_ids, offers, pod_resources
from pyvgpu.deviceplugin.plugin import plugin_server

pytestmark = pytest.mark.slow

RESOURCES = {our.kind: our.name for our in device_ids.OURS}
IDS = {  # each pod gets those of the one before it
    device_ids.ResourceKind.VCORE: frozenset(f"c{number}" for number in range(60)),
    device_ids.ResourceKind.VMEMORY: frozenset(f"m{number}" for number in range(40)),
}


def answered(grant_manager, kind, own):
    return plugin_server.as_message(grant_manager.allocate(kind, own)).SerializeToString()


class Kubelet:
    """A kubelet's state of pods with one container each, all of it in its checkpoint."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self._write([])

    def admit(self, grant_manager, uid):
        """Allocate the ids of the previous pod, which has ended, to a new one."""
        self._write(
            [
                {
                    "PodUID": uid,
                    "ContainerName": "main",
                    "ResourceName": RESOURCES[kind],
                    "DeviceIDs": {"-1": sorted(own)},
                    "AllocResp": base64.b64encode(answered(grant_manager, kind, own)).decode(),
                }
                for kind, own in IDS.items()
            ]
        )

    def life(self):
        return pod_resources.Life(0, 0, 0)

    def listing(self):
        kinds = {name: kind for kind, name in RESOURCES.items()}
        devices = [
            api.ContainerDevices(resource_name=RESOURCES[kind], device_ids=own)
            for kind, own in IDS.items()
        ]
        pods = []
        for uid in self.admitted:
            pod = api.PodResources(name=uid, namespace="team")
            pod.containers.add(name="main", devices=devices)
            pods.append(pod_resources.ListedPod(pod.SerializeToString(), kinds))
        return pod_resources.Listing(self.life(), tuple(pods))

    @property
    def admitted(self):
        found = json.loads((self.folder / checkpoint_file.FILE).read_bytes())["Data"][
            "PodDeviceEntries"
        ]
        return {entry["PodUID"] for entry in found}

    def _write(self, entries):
        draft = self.folder / "draft"
        draft.write_text(json.dumps({"Data": {"PodDeviceEntries": entries}}))
        draft.replace(self.folder / checkpoint_file.FILE)


@pytest.fixture
def kubelet(tmp_path):
    return Kubelet(tmp_path / "kubelet")


@pytest.fixture
def agent(tmp_path, machine, driver, kubelet):
    """Return a function that starts an agent with one device, which fits one pod, not two."""
    one = machine.devices[0]
    has = (datatypes.NodeDevice(one.uuid, 0, one.memory_bytes),)

    @contextlib.contextmanager
    def begin():
        with (
            grant_log.Checkpoint(tmp_path, "node") as kept,
            contextlib.closing(
                backend.GrantBackend(store.GrantStore(tmp_path / "grants", tmp_path / "cdi"))
            ) as made,
        ):
            made.driver = driver
            grant_manager = manager.GrantManager(
                kept,
                made,
                interfaces.KubeletSources(checkpoint_file.CheckpointFile(kubelet.folder), kubelet),
                interfaces.Sizes(GIB),
                {our.kind: offers.Offer(our) for our in device_ids.OURS},
                interfaces.StartPolicy(),
                interfaces.Observers(),
            )
            grant_manager.see(has)
            grant_manager.recover()
            yield grant_manager
            grant_manager.collect()
            made.collect(grant_manager.wanted)

    return begin


def start(grant_manager, kind, own):
    started(lambda done: grant_manager.start(kind, own, done))


def quotas(folder):
    """Return the vcore and GiB of each specification, on which containers could start now."""
    found = []
    for path in (folder / "cdi").glob("*.json"):
        grant_id = path.stem.rpartition("-")[2]
        with (folder / "grants" / grant_id / names.QUOTA_FILE).open("rb") as file:
            (one,) = region.read_limits(file.fileno()).devices
            found.append((one.vcore, one.vmemory // GIB))
    return found


def test_interrupted_calls_are_completed_exactly_once(tmp_path, agent, kubelet):
    died = 0
    for step in itertools.count(1):
        uid = f"pod-{step}"

        def live(uid=uid):
            with agent() as grant_manager:
                kubelet.admit(grant_manager, uid)
                for kind, own in IDS.items():
                    start(grant_manager, kind, own)

        if not dying.die_at(step, live):
            break
        died += 1
        assert quotas(tmp_path) in ([], [(60, 40)])  # one of them at most, before any recovery
        with agent() as grant_manager:
            assert not grant_manager.known or len(quotas(tmp_path)) <= 1
            if uid not in kubelet.admitted:  # the call has failed, and kubelet retries
                kubelet.admit(grant_manager, uid)
            for kind, own in IDS.items():
                start(grant_manager, kind, own)
            (bound,) = [grant for grant in grant_manager.known.values() if grant.bound]
            assert (bound.owner.uid, bound.owner.pod) == (uid, uid)
        assert quotas(tmp_path) == [(60, 40)]
    assert died > 50
    assert quotas(tmp_path) == [(60, 40)]
