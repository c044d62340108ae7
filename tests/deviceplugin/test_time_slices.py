"""Time slices: whole devices that several containers share, and never devices with shares."""

import json

import granted
import pytest
from cluster_of_one import NODE
from fake_kubelet import VCORE, AdmissionError, Container, StartError, container, pod

from pyvgpu import errors, names
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin import agent_settings
from pyvgpu.deviceplugin.allocation_api import Api, ApiState
from pyvgpu.deviceplugin.grants import interfaces, placement
from pyvgpu.deviceplugin.kubelet import checkpoint_file, device_ids, plugin_messages, pod_resources
from pyvgpu.deviceplugin.plugin import time_slice_service, time_slices
from pyvgpu.simulation import simulator

A, B = "GPU-a", "GPU-b"
SHARED = names.GPU_SHARED_RESOURCE
HELD = frozenset({f"{A}::1"})


def device(uuid=A, **more):
    return datatypes.NodeDevice(uuid, 0, 16 << 30, **more)


def test_ids_name_their_device_as_nvidias_plugin_does():
    assert time_slices.ids(A, 2) == ("GPU-a::0", "GPU-a::1")
    assert time_slices.devices_of(["GPU-b::1", "GPU-a::0", "GPU-b::0"]) == (A, B)


@pytest.mark.parametrize(
    ("state", "other", "more", "found"),
    [
        (ApiState(Api.PLUGIN, Api.PLUGIN), "", {}, ()),
        (ApiState(Api.PLUGIN, Api.TIME_SLICES), "", {}, ()),  # shares are still held
        (None, "", {}, ()),
        (ApiState(Api.TIME_SLICES, Api.TIME_SLICES), "", {}, (False, False)),
        (ApiState(Api.TIME_SLICES, Api.PLUGIN), "", {}, (False, True)),
        (ApiState(Api.TIME_SLICES, Api.TIME_SLICES), "NVIDIA's", {}, (False, True)),
        (ApiState(Api.TIME_SLICES, Api.TIME_SLICES), "", {"cordoned": True}, (False, True)),
        (ApiState(Api.TIME_SLICES, Api.TIME_SLICES), "", {"unhealthy": "lost"}, (True, False)),
    ],
)
def test_only_devices_of_time_slices_have_ids(state, other, more, found):
    expected = (time_slices.SlicedDevice(A, *found),) if found else ()
    assert time_slices.sliced([device(**more)], lambda _: state, other) == expected


@pytest.mark.parametrize(
    ("unhealthy", "closed", "expected"),
    [
        (False, False, set()),
        (False, True, {f"{A}::0", f"{A}::2"}),  # its containers may restart
        (True, False, {f"{A}::0", f"{A}::1", f"{A}::2"}),
    ],
)
def test_closed_device_keeps_the_ids_of_its_containers(unhealthy, closed, expected):
    devices = [time_slices.SlicedDevice(A, unhealthy, closed), time_slices.SlicedDevice(B)]
    assert time_slices.unavailable(devices, 3, HELD) == expected


@pytest.mark.parametrize(
    ("available", "must", "size", "expected"),
    [
        pytest.param([f"{A}::1", f"{B}::0", f"{B}::1"], [], 1, [f"{B}::0"], id="the emptiest"),
        pytest.param([f"{A}::0", f"{B}::0"], [], 2, [f"{A}::0", f"{B}::0"], id="two devices"),
        pytest.param(
            [f"{A}::0", f"{A}::1", f"{A}::10"], [], 2, [f"{A}::0", f"{A}::1"], id="one device"
        ),
        pytest.param(
            [f"{A}::0", f"{A}::1", f"{B}::3"],
            [f"{A}::0"],
            2,
            [f"{A}::0", f"{B}::3"],
            id="beside the given one",
        ),
        pytest.param([f"{A}::0"], [], 2, [f"{A}::0"], id="too few"),
    ],
)
def test_containers_are_spread_over_devices(available, must, size, expected):
    asked = plugin_messages.PreferredRequest(tuple(available), tuple(must), size)
    assert list(time_slices.preferred(asked)) == expected


def test_served_resources_are_stored_in_the_order_of_service(tmp_path):
    before = time_slices.ServedResources(tmp_path)
    assert before.replicas == {}
    before.forget()
    assert not list(tmp_path.iterdir())
    before.add("nvidia.com/gpu", 4)
    before.add(SHARED, 2)
    before.add("nvidia.com/gpu", 8)
    after = time_slices.ServedResources(tmp_path)
    assert list(after.replicas.items()) == [(SHARED, 2), ("nvidia.com/gpu", 8)]
    after.forget()
    assert time_slices.ServedResources(tmp_path).replicas == {}


def test_a_resource_is_served_until_no_device_needs_it(tmp_path):
    served = time_slices.ServedResources(tmp_path)
    off, on = agent_settings.TimeSlicing(), agent_settings.TimeSlicing(4, "a.b/c")
    assert time_slice_service.wanted(off, served, in_use=False) is None
    assert time_slice_service.wanted(off, served, in_use=True) == agent_settings.TimeSlicing(1)
    served.add("nvidia.com/gpu", 8)
    assert time_slice_service.wanted(on, served, in_use=False) == on
    found = time_slice_service.wanted(off, served, in_use=True)
    assert found == agent_settings.TimeSlicing(8, "nvidia.com/gpu")
    assert time_slice_service.wanted(off, served, in_use=False) is None
    assert served.replicas == {}


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": "b"}'])
def test_damaged_record_is_refused(tmp_path, text):
    (tmp_path / time_slices.FILE).write_text(text)
    with pytest.raises(errors.DataError, match="fix it, for example"):
        time_slices.ServedResources(tmp_path)


@pytest.mark.parametrize(
    ("resource", "foreign"), [(SHARED, False), ("nvidia.com/gpu.shared", True), ("a.b/c", True)]
)
def test_names_of_other_domains_may_belong_to_another_plugin(resource, foreign):
    assert agent_settings.TimeSlicing(4, resource).is_foreign is foreign


# --- with kubelet's state -----------------------------------------------------------------------


@pytest.fixture
def slices(kubelet):
    """Return a function that makes time slices on a node with the devices A and B."""

    def make(*, same_device=False, **more):
        resource = time_slices.resource(SHARED)
        sources = interfaces.KubeletSources(
            checkpoint_file.CheckpointFile(kubelet.folder, (*device_ids.EITHER, resource)),
            pod_resources.PodResources(kubelet.pod_resources, [resource], retry_seconds=0.0),
        )
        state = ApiState(Api.TIME_SLICES, Api.TIME_SLICES)
        view = {
            "devices": lambda: [device(A), device(B)],
            "state_of": lambda _: state,
            "other_plugin": lambda: "",
            "driver": lambda: None,
            "specifications": kubelet.folder,
            "claims_of": lambda _: False,
            "ready": lambda: None,
            **more,
        }
        return time_slices.TimeSlices(
            agent_settings.TimeSlicing(2, same_device=same_device),
            time_slices.TimeSliceNode(**view),
            sources,
        )

    return make


def hold(kubelet, one, *ids):
    """Let kubelet know a pod with these ids, without a plugin."""
    kubelet.pods[one.uid] = one
    kubelet.held[one.uid, "a", SHARED] = (frozenset(ids), b"")
    kubelet.write()


def test_devices_of_listed_containers_are_held(kubelet, slices):
    kubelet.write()
    assert slices().held() == set()
    hold(kubelet, sliced("p"), f"{A}::0")
    assert slices().held() == {A}
    kubelet.refuse_lists = 1
    assert slices().held() is None


def test_init_containers_hold_their_device_while_their_pod_is_alive(kubelet, slices):
    one = pod("p", Container("a", {SHARED: 1}, init=True))  # PodResources does not list it
    hold(kubelet, one, f"{B}::1")
    assert slices(is_alive=lambda uid: uid == one.uid).held() == {B}
    assert slices(is_alive=lambda _: False).held() == set()  # kubelet's checkpoint is old

    def unanswered(_uid):
        raise errors.UnavailableError("no API server")

    assert slices(is_alive=unanswered).held() is None


def test_unreadable_checkpoint_leaves_the_holders_unknown(kubelet, slices):
    (kubelet.folder / checkpoint_file.FILE).write_text("{")
    assert slices().held() is None


def started(made, *ids):
    made.start(device_ids.ResourceKind.TIME_SLICE, frozenset(ids), lambda _: None)


def test_pod_with_claims_gets_no_slices(kubelet, slices):
    one = sliced("p")
    hold(kubelet, one, f"{A}::0")
    with pytest.raises(placement.RefusedError, match="has devices through claims: it can have"):
        started(slices(claims_of=lambda uid: uid == one.uid), f"{A}::0")
    with pytest.raises(errors.UnavailableError, match="the node has no driver now"):
        started(slices(), f"{A}::0")


@pytest.mark.parametrize(
    ("more", "new", "again"),
    [
        ({"cordoned": True}, "takes no new containers", "no driver now"),
        ({"unhealthy": "lost"}, "is unhealthy", "is unhealthy"),
    ],
)
def test_only_restarts_are_allowed_on_a_closed_device(kubelet, slices, more, new, again):
    hold(kubelet, sliced("p"), f"{A}::0")
    made = slices(devices=lambda: [device(A, **more), device(B)])
    with pytest.raises(placement.RefusedError, match=new):
        made.allocate(device_ids.ResourceKind.TIME_SLICE, frozenset({f"{A}::1", f"{B}::0"}))
    with pytest.raises(errors.PyVgpuError, match=again):
        started(made, f"{A}::0")


def test_offer_follows_the_devices_without_a_checkpoint(kubelet, slices):
    devices = [device(A), device(B)]
    made = slices(devices=lambda: devices)
    made.poll()
    assert made.offer.everything == (f"{A}::0", f"{A}::1", f"{B}::0", f"{B}::1")
    assert not made.offer.unhealthy
    devices[0] = device(A, cordoned=True)
    made.poll()  # kubelet has not written one yet
    assert made.offer.unhealthy == {f"{A}::0", f"{A}::1"}
    hold(kubelet, sliced("p"), f"{A}::1")
    made.poll()
    assert made.offer.unhealthy == {f"{A}::0"}
    (kubelet.folder / checkpoint_file.FILE).write_text("{")
    devices[1] = device(B, unhealthy="lost")
    made.poll()
    assert made.offer.unhealthy == {f"{A}::0", f"{B}::0", f"{B}::1"}


def test_ids_of_another_device_are_refused(slices):
    with pytest.raises(placement.RefusedError, match="GPU-x is not allocated by time slices"):
        slices().allocate(device_ids.ResourceKind.TIME_SLICE, frozenset({"GPU-x::0"}))


def test_second_slice_of_a_device_is_refused(slices):
    with pytest.raises(placement.RefusedError) as raised:
        slices().allocate(device_ids.ResourceKind.TIME_SLICE, frozenset({f"{A}::0", f"{A}::1"}))
    assert raised.value.final
    assert str(raised.value).startswith(f"{SHARED} 2: a container gets no more of a device by a")
    assert str(raised.value).endswith(f"valid would be {SHARED} 1")
    both = frozenset({f"{A}::0", f"{B}::1"})
    assert slices().allocate(device_ids.ResourceKind.TIME_SLICE, both).cdi_devices


def test_second_slice_of_a_device_may_be_allowed(slices):
    made, kind = slices(same_device=True), device_ids.ResourceKind.TIME_SLICE
    once, twice = (
        made.allocate(kind, frozenset(f"{A}::{number}" for number in range(size)))
        for size in (1, 2)
    )
    assert twice == once


def test_pod_hears_of_a_second_slice_of_a_device(kubelet, slices, tmp_path):
    machine = simulator.open_machine("h100:2", tmp_path / "machines")
    first, second = (one.uuid for one in machine.devices)
    found = granted.driver_of(machine, tmp_path / "drivers")
    ended, twice, once = (sliced(name) for name in ("ended", "twice", "once"))
    reported = []
    made = slices(
        same_device=True,
        devices=lambda: [device(first), device(second)],
        driver=lambda: found,
        report=reported.append,
        is_alive=lambda uid: uid != ended.uid,
    )
    hold(kubelet, ended, f"{first}::0", f"{first}::1")  # kubelet keeps it for a while
    hold(kubelet, twice, f"{first}::0", f"{first}::1")
    hold(kubelet, once, f"{second}::0")
    for given in ((f"{first}::0", f"{first}::1"), (f"{second}::0",)):
        started(made, *given)
    (event,) = reported
    assert (event.uid, event.reason, event.kind) == (twice.uid, "VGPUSameDevice", "Warning")
    assert event.text.startswith(f"container a: {SHARED} 2: a container gets no more of a device")


# --- the whole agent ----------------------------------------------------------------------------

SLICES = ("--time-slicing-replicas", "4", "--allocation-switch-delay", "1")


def set_capacity(cluster, capacity):
    path = f"/api/v1/nodes/{NODE}"
    cluster.api.put(path, {**cluster.api.read(path), "status": {"capacity": capacity}})


def sliced(name, number=1, resource=SHARED):
    return pod(name, Container("a", {resource: number}))


def edits(node, answer):
    (name,) = answer.cdi_devices
    kind, _, device = name.partition("=")
    file = node.specifications / f"pyvgpu.io-time-slice-{device}.json"
    document = json.loads(file.read_text())
    (only,) = document["devices"]
    assert (document["kind"], only["name"]) == (kind, device) == (names.TIME_SLICE_KIND, device)
    return only["containerEdits"]


def held(kubelet, one, resource=SHARED):
    return set(time_slices.devices_of(kubelet.ids(one, "a", resource)))


@pytest.mark.slow
def test_containers_share_whole_devices_without_limits(node):
    kubelet = node.kubelet
    node.start(*SLICES)
    uuids = {device.uuid for device in node.machine.devices}
    kubelet.until(lambda: len(kubelet.healthy(SHARED)) == 8)
    assert set(time_slices.devices_of(kubelet.healthy(SHARED))) == uuids
    node.until(lambda: len(kubelet.devices.get(VCORE, {})) == 200)
    assert VCORE not in kubelet.ever_healthy
    pods = [kubelet.admit(sliced(f"p{number}")) for number in range(8)]
    for uuid in uuids:
        assert sum(held(kubelet, one) == {uuid} for one in pods) == 4
    with pytest.raises(AdmissionError):
        kubelet.admit(sliced("late"))
    found = edits(node, kubelet.start_container(pods[0], "a"))
    targets = {mount["containerPath"] for mount in found["mounts"]}
    assert "/usr/local/pyvgpu" in targets  # the driver
    assert not {"/etc/pyvgpu", "/run/pyvgpu/usage"} & targets  # no quota
    own = [each["path"] for each in found["deviceNodes"] if each["path"][-1].isdecimal()]
    assert len(own) == 1
    kubelet.remove(pods[0])
    kubelet.remove(pods[2])
    with pytest.raises(AdmissionError, match="by a second slice of it"):
        kubelet.admit(sliced("twice", 2))
    kubelet.remove(pods[1])
    several = kubelet.admit(sliced("several", 2))
    assert held(kubelet, several) == uuids
    nodes = edits(node, kubelet.start_container(several, "a"))["deviceNodes"]
    assert {"/dev/nvidia0", "/dev/nvidia1"} <= {each["path"] for each in nodes}


@pytest.mark.slow
def test_device_with_a_share_has_no_slices_until_that_has_ended(node):
    kubelet = node.kubelet
    first = node.start()
    kubelet.until_offered()
    share = kubelet.admit(pod("share", container("a", 30, 4)))
    _, _, uuid = node.quota(kubelet.start_container(share, "a"))
    first.terminate()
    first.wait()
    node.start(*SLICES)
    node.until(lambda: len(kubelet.healthy(SHARED)) == 4)
    assert uuid not in time_slices.devices_of(kubelet.healthy(SHARED))
    node.until(lambda: kubelet.healthy(VCORE) == kubelet.ids(share, "a", VCORE))
    kubelet.start_container(share, "a")  # it may restart
    with pytest.raises(AdmissionError):
        kubelet.admit(pod("late", container("a", 30, 4)))
    kubelet.remove(share)
    node.until(lambda: len(kubelet.healthy(SHARED)) == 8)
    assert not kubelet.healthy(VCORE)


@pytest.mark.slow
def test_device_with_a_slice_has_no_shares_until_that_has_ended(node, cluster):
    kubelet = node.kubelet
    more = ("--kubeconfig", cluster.kubeconfig)
    first = node.start(*SLICES, *more)
    kubelet.until(lambda: kubelet.healthy(SHARED))
    one = sliced("p")
    cluster.add(one, {})
    kubelet.admit(one)
    answer = kubelet.start_container(one, "a")
    first.terminate()
    first.wait()
    second = node.start("--allocation-switch-delay", "1", *more)  # no time slices any more
    node.until(lambda: len(kubelet.healthy(VCORE)) == 100)
    node.until(lambda: kubelet.healthy(SHARED) == kubelet.ids(one, "a", SHARED))
    with pytest.raises(AdmissionError):
        kubelet.admit(sliced("late"))
    assert kubelet.start_container(one, "a") == answer  # it may restart
    (free,) = {device.uuid for device in node.machine.devices} - held(kubelet, one)
    share = kubelet.admit(pod("share", container("a", 30, 4)))
    cluster.add(share, {})
    assert node.quota(kubelet.start_container(share, "a"))[2] == free
    kubelet.remove(one)
    cluster.api.delete(cluster.path_of(one))
    node.until(lambda: len(kubelet.healthy(VCORE)) == 200)
    second.terminate()
    second.wait()
    node.start(*more)
    node.until(lambda: json.loads((node.state / time_slices.FILE).read_text()) == {})


@pytest.mark.slow
def test_container_with_slices_and_a_share_does_not_start(node):
    kubelet = node.kubelet
    uuid = node.machine.devices[0].uuid
    node.start(*SLICES, "--allocation-api", "plugin", "--allocation-api", f"{uuid}=time-slices")
    kubelet.until(lambda: len(kubelet.healthy(SHARED)) == 4)
    kubelet.until_offered()
    both = container("a", 30, 4)
    mixed = kubelet.admit(pod("p", Container("a", {**both.limits, SHARED: 1})))
    with pytest.raises(StartError, match="container a asks for pyvgpu.io/gpu-shared and for"):
        kubelet.start_container(mixed, "a")
    assert not list(node.specifications.glob("*time-slice*"))
    beside = pod("q", container("a", 30, 4), Container("b", {SHARED: 1}))
    kubelet.admit(beside)  # in one pod, but in two containers
    kubelet.start_container(beside, "b")


@pytest.mark.slow
def test_nvidias_name_is_served_once_its_plugin_is_gone(node, cluster):
    kubelet = node.kubelet
    theirs = "nvidia.com/gpu"
    set_capacity(cluster, {theirs: "2"})
    options = (*SLICES, "--time-slicing-resource", theirs, "--kubeconfig", cluster.kubeconfig)
    first = node.start(*options)
    node.until(lambda: f"not serving {theirs} yet: another device plugin" in node.log.read_text())
    assert theirs not in kubelet.devices
    set_capacity(cluster, {theirs: "0"})
    node.until(lambda: len(kubelet.healthy(theirs)) == 8)
    set_capacity(cluster, {theirs: "8"})  # ours, as kubelet counts it
    first.terminate()
    first.wait()
    node.start(*options)
    node.until(lambda: len(kubelet.healthy(theirs)) == 8)
    one = sliced("p", resource=theirs)
    cluster.add(one, {})
    kubelet.admit(one)
    assert edits(node, kubelet.start_container(one, "a"))["deviceNodes"]
    set_capacity(cluster, {theirs: "8", "nvidia.com/mig-1g.10gb": "1"})  # another plugin's
    node.until(lambda: kubelet.healthy(theirs) == kubelet.ids(one, "a", theirs))
