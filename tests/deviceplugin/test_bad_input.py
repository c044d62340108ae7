"""Bad input from kubelet, pods or the node gives a clear error and no partial grant.

Other tests of the same are where their part is: the checkpoint's, PodResources', the scheduler's.
"""

import contextlib
import itertools
import socket
import sys
import threading
import time
import types

import grant_room
import grpc
import pytest
import small_disks
from fake_kubelet import (
    VCORE,
    VMEMORY,
    AdmissionError,
    Container,
    StartError,
    container,
    pod,
)
from waiting import PROMPT, started

from pyvgpu.deviceplugin.kubelet import device_ids, offers
from pyvgpu.deviceplugin.plugin import plugin_server, registration


@pytest.fixture
def room(kubelet, tmp_path):
    with grant_room.running(kubelet, tmp_path, grant_room.devices(2)) as made:
        yield made


def holds_nothing(room):
    assert not room.folders.made
    assert not any(grant.bound for grant in room.checkpoint.grants.values())


# --- requests of pods --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        pytest.param({VCORE: 30, VMEMORY: 0}, "vcore 30 without vmemory", id="vmemory of zero"),
        pytest.param({VCORE: 0, VMEMORY: 4}, "vmemory without vcore", id="vcore of zero"),
        pytest.param({VCORE: 30, VMEMORY: 17}, "4.2GiB of one device are asked", id="more memory"),
        pytest.param({VCORE: 100, VMEMORY: 20}, "4GiB in all, 5GiB", id="of a whole one"),
    ],
)
def test_impossible_limits_are_refused_at_the_start(room, limits, words):
    """Kubelet itself refuses to start a request of zero: it tries resources in any order."""
    one = pod("p", Container("a", limits))
    room.kubelet.admit(one)
    said = ""
    for _ in range(64):
        with pytest.raises(StartError) as caught:
            room.start(one, "a")
        said = str(caught.value)
        if "no devices found allocated in local cache" not in said:
            break
    assert words in said
    holds_nothing(room)


def test_kubelet_refuses_more_devices_than_exist(room):
    with pytest.raises(AdmissionError, match="requested number of devices unavailable"):
        room.kubelet.admit(pod("p", container("a", 300, 4)))
    holds_nothing(room)


# --- calls and answers of kubelet --------------------------------------------------------------

NONSENSE = [
    pytest.param(b"\x0a\xff\xff", id="cut short"),
    pytest.param(b"\xff" * 64, id="no field"),
    pytest.param(b"\x08\x01", id="a number for a text"),
    pytest.param(b"\x0a\x04\x0a\x02\xff\xfe", id="no UTF-8"),
    pytest.param(b"\x4a\xf0\xa2\x04" + b"x" * 70_000, id="another field"),
    pytest.param(b"", id="nothing"),
]


@pytest.mark.parametrize("content", NONSENSE)
@pytest.mark.parametrize("method", ["Allocate", "PreStartContainer", "GetPreferredAllocation"])
def test_malformed_calls_are_answered_and_grant_nothing(room, method, content):
    channel = room.kubelet.endpoints[VCORE].channel
    with contextlib.suppress(grpc.RpcError):
        channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")(content, timeout=PROMPT)
    holds_nothing(room)
    assert room.run(pod("p", container("a", 30, 2)), "a") == "30 2 GPU-0"


def test_unknown_ids_grant_nothing_usable(room):
    strange = frozenset({"c99999", "x", "", "c-1"})
    room.grant_manager.allocate(device_ids.ResourceKind.VCORE, strange)
    with pytest.raises(Exception, match="the pod of this container is not known yet"):
        started(
            lambda done: room.grant_manager.start(device_ids.ResourceKind.VCORE, strange, done)
        )
    holds_nothing(room)
    assert room.run(pod("p", container("a", 100, 0)), "a") == "100 16 GPU-0"


class Babble:
    """A socket in kubelet's place that sends malformed answers."""

    def __init__(self, path, said):
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._said = said
        self.heard = threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        with contextlib.suppress(OSError):
            while True:
                talking, _ = self._listening.accept()
                with talking, contextlib.suppress(ConnectionError):  # a mere probe has closed it
                    talking.sendall(self._said)
                self.heard.release()

    def close(self):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400\r\n\r\n", b"\0" * 9, b"\xff" * 4096])
def test_malformed_kubelet_answers_are_retried(kubelet, said):
    kubelet.stop()
    path = kubelet.folder / registration.KUBELET_SOCKET
    path.unlink(missing_ok=True)
    talker = Babble(path, said)
    plugin = plugin_server.Plugin(kubelet.folder, offers.Offer(device_ids.OURS[0], 4), None)
    registrar = registration.Registrar(kubelet.folder, [plugin])
    thread = threading.Thread(target=registrar.run)
    thread.start()
    try:
        with contextlib.closing(talker):
            for _ in range(3):  # a probe whether it listens, a call, and a retry
                assert talker.heard.acquire(timeout=PROMPT)
        kubelet.start()  # which removes all sockets first
        kubelet.until(lambda: len(kubelet.healthy(VCORE)) == 4)
    finally:
        registrar.stop()
        thread.join()


# --- the node ----------------------------------------------------------------------------------


def test_changes_of_the_wall_clock_have_no_effect(kubelet, tmp_path, monkeypatch):
    """The clock jumps back and forth by years, between any two readings."""
    year = 365 * 86_400
    jumps = itertools.cycle([0, 40 * year, -40 * year, year])
    jumping = types.SimpleNamespace(**vars(time))
    jumping.time = lambda: time.time() + next(jumps)
    for name, module in list(sys.modules.items()):
        if name.startswith(("pyvgpu.deviceplugin.", "pyvgpu.volumes.")) and hasattr(
            module, "time"
        ):
            monkeypatch.setattr(module, "time", jumping)
    with grant_room.running(kubelet, tmp_path, grant_room.devices(2)) as room:
        first = kubelet.admit(pod("p", container("a", 30, 2)))
        grant = room.start(first, "a")
        for _ in range(4):
            room.grant_manager.collect()
            assert room.start(first, "a") == grant
        room.grant_manager.allocate(
            device_ids.ResourceKind.VCORE, frozenset({"c150"})
        )  # no container uses it
        room.grant_manager.collect()
        assert len(room.checkpoint.grants) == 2
        kubelet.remove(first)
        room.grant_manager.collect()
        assert grant.id not in room.checkpoint.grants


@pytest.mark.slow
def test_full_disk_refuses_until_there_is_space(node, small_disk):
    kubelet = node.kubelet
    node.start("--run", small_disk / "run")
    kubelet.until_offered()
    one = kubelet.admit(pod("p", container("a", 30, 2)))
    small_disks.fill(small_disk)
    with pytest.raises(StartError, match="files of the grant cannot be changed: No space left on"):
        kubelet.start_container(one, "a")
    assert not list(node.specifications.iterdir())
    small_disks.empty(small_disk)
    assert node.quota(kubelet.start_container(one, "a"))[:2] == (30, 2)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["--state", "--run"])
def test_agent_without_write_access_exits_with_a_message(node, small_disk, place):
    small_disks.allow_writing(small_disk, allowed=False)
    assert node.start(place, small_disk / "here").wait(PROMPT) == 77
    assert "Read-only file system" in node.log.read_text()


@pytest.mark.slow
def test_forged_annotations_give_no_more_than_requested(node, cluster):
    """All annotations that the agent reads; it ignores the scheduler's where it chooses itself."""
    forged = {
        "pyvgpu.io/devices": '{"v": 1, "containers": {"a": [{"uuid": "GPU-x", "vcore": 100}]}}',
        "tencent.com/predicate-gpu-idx-0": "0,1",
        "pyvgpu.io/grant": "0" * 16,
        "pyvgpu.io/node-devices": "{}",
    }
    node.start("--kubeconfig", cluster.kubeconfig)
    node.kubelet.until_offered()
    one = node.kubelet.admit(pod("p", container("a", 30, 2)))
    cluster.add(one, forged)
    assert node.quota(node.kubelet.start_container(one, "a"))[:2] == (30, 2)
