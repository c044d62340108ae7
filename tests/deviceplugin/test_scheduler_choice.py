"""A pod gets the devices in its scheduler's sealed choice, or none."""

import dataclasses
import json

import grant_room
import pytest
import waiting
from cluster_of_one import KEY, NODE
from fake_kubelet import StartError, container, pod
from grant_room import UNIT

from pyvgpu import errors, names
from pyvgpu.allocator import annotations, datatypes
from pyvgpu.deviceplugin.cluster import scheduler_choice
from pyvgpu.deviceplugin.grants import interfaces

OTHER = b"o" * 32
NAME = names.DEVICES_ANNOTATION
CLASSES = names.DEVICE_CLASSES_ANNOTATION


@pytest.fixture
def room(kubelet, tmp_path, cluster):
    keys = [KEY]
    chooser = scheduler_choice.Sealed(cluster.pods, NODE, lambda: tuple(keys))
    policy = interfaces.StartPolicy(choose=chooser.choose)
    with grant_room.running(kubelet, tmp_path, grant_room.devices(2), policy=policy) as made:
        made.keys = keys
        made.posted = []
        made.grant_manager.observers.reported.add(made.posted.append)
        yield made


def sealed(one, key=KEY, node=NODE, uid=None, **containers):
    """Return the annotation of a pod whose containers get e.g. a="30 2 GPU-1"."""
    shares = {}
    for name, text in containers.items():
        vcore, units, uuid = text.split()
        shares[name] = (datatypes.NodeShare(uuid, int(vcore), int(units) * UNIT),)
    return {NAME: annotations.seal(annotations.DeviceChoice(uid or one.uid, node, shares), key)}


def test_pod_gets_exactly_the_chosen_devices(room, cluster):
    one = room.kubelet.admit(pod("p", container("a", 30, 2), container("b", 40, 4)))
    cluster.add(one, sealed(one, a="30 2 GPU-1", b="40 4 GPU-0"))
    assert grant_room.text(room.start(one, "a")) == "30 2 GPU-1"  # alone it would be GPU-0
    assert grant_room.text(room.start(one, "b")) == "40 4 GPU-0"
    assert all(grant.chosen for grant in room.checkpoint.grants.values())


def test_choice_includes_init_containers(room, cluster):
    one = pod("p", container("i", 60, 8, init=True), container("a", 30, 2))
    room.kubelet.admit(one)
    cluster.add(one, sealed(one, i="60 8 GPU-0", a="30 2 GPU-1"))
    assert grant_room.text(room.start(one, "i")) == "60 8 GPU-0"
    assert grant_room.text(room.start(one, "a")) == "30 2 GPU-1"


def test_restarted_container_needs_no_choice(room, cluster):
    one = room.kubelet.admit(pod("p", container("a", 30, 2)))
    cluster.add(one, sealed(one, a="30 2 GPU-1"))
    first = room.start(one, "a")
    cluster.api.go_down()
    assert room.start(one, "a") == first


def nothing(one):
    return {}


def by_another(one):
    return sealed(one, OTHER, a="30 2 GPU-1")


def of_another_pod(one):
    return sealed(one, uid="another", a="30 2 GPU-1")


def of_another_node(one):
    return sealed(one, node="node-2", a="30 2 GPU-1")


def changed_afterwards(one):
    document = json.loads(sealed(one, a="30 2 GPU-0")[NAME])
    document["containers"]["a"][0]["uuid"] = "GPU-1"
    return {NAME: json.dumps(document)}


def without_a_seal(one):
    document = json.loads(sealed(one, a="30 2 GPU-0")[NAME])
    del document["sig"]
    return {NAME: json.dumps(document)}


def with_a_seal_that_is_no_text(one):
    return {NAME: sealed(one, a="30 2 GPU-0")[NAME].replace('"sig":"', '"sig":"\\ud800')}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("notes", "words"),
    [
        pytest.param(nothing, "it has no pyvgpu.io/devices", id="none"),
        pytest.param(by_another, "is not sealed by this cluster's scheduler", id="other key"),
        pytest.param(of_another_pod, "is for pod another on node-1", id="other pod"),
        pytest.param(of_another_node, "on node-2, but this is", id="other node"),
        pytest.param(changed_afterwards, "is not sealed by", id="changed"),
        pytest.param(without_a_seal, "is not sealed by", id="no seal"),
        pytest.param(with_a_seal_that_is_no_text, "is not sealed by", id="half a letter"),
        pytest.param(lambda one: {NAME: "{"}, "is damaged", id="garbage"),
        pytest.param(lambda one: {NAME: '{"v": 2}'}, "has version 2", id="another version"),
        pytest.param(
            lambda one: sealed(one, a="40 2 GPU-1"),
            "asks for 30 vcore and 512MiB, 40 vcore and 512MiB were chosen",
            id="more than it asks",
        ),
        pytest.param(
            lambda one: sealed(one, a="30 2 GPU-9"),
            "is not a device of this node",
            id="no such device",
        ),
        pytest.param(
            lambda one: sealed(one, b="30 2 GPU-1"), "a: asks for 1 devices", id="not for it"
        ),
    ],
)
def test_pod_without_a_valid_choice_is_refused_for_good(room, cluster, notes, words):
    one = room.kubelet.admit(pod("p", container("a", 30, 2)))
    cluster.add(one, notes(one))
    with pytest.raises(StartError) as caught:
        room.start(one, "a")
    assert words in str(caught.value)
    assert not room.folders.made
    assert not any(grant.bound for grant in room.checkpoint.grants.values())
    assert [(event.uid, words in event.text) for event in room.posted] == [(one.uid, True)]


def test_pod_waits_for_room_on_the_chosen_device(room, cluster):
    first, second = (room.kubelet.admit(pod(name, container("a", 60, 2))) for name in "pq")
    for one in (first, second):
        cluster.add(one, sealed(one, a="60 2 GPU-1"))
    room.start(first, "a")
    with pytest.raises(StartError, match="gpu1 has 40 vcore and 3.5GiB free"):
        room.start(second, "a")
    assert [(event.uid, event.evict) for event in room.posted] == [(second.uid, False)]


def test_unavailable_api_server_is_no_final_refusal(room, cluster):
    one = room.kubelet.admit(pod("p", container("a", 30, 2)))
    cluster.add(one, sealed(one, a="30 2 GPU-1"))
    cluster.api.failing += [500]
    with pytest.raises(StartError, match="its choice of devices cannot be read yet"):
        room.start(one, "a")
    assert [(event.reason, event.evict) for event in room.posted] == [("VGPUWaits", False)]
    assert grant_room.text(room.start(one, "a")) == "30 2 GPU-1"


def test_old_and_new_key_are_valid_during_rotation(room, cluster):
    one, two = (room.kubelet.admit(pod(name, container("a", 30, 2))) for name in "pq")
    cluster.add(one, sealed(one, KEY, a="30 2 GPU-1"))
    cluster.add(two, sealed(two, OTHER, a="30 2 GPU-1"))
    room.keys[:] = [OTHER, KEY]
    assert grant_room.text(room.start(one, "a")) == "30 2 GPU-1"
    assert grant_room.text(room.start(two, "a")) == "30 2 GPU-1"


def test_pod_waits_for_the_first_key_without_eviction(kubelet, tmp_path, cluster, caplog):
    secret = tmp_path / "secret"
    secret.mkdir()
    keys = scheduler_choice.KeyFile(secret)
    late = iter(range(0, 100_000, 1000))  # seconds; each reading advances by a thousand
    policy = interfaces.StartPolicy(
        choose=scheduler_choice.Sealed(cluster.pods, NODE, keys.read).choose
    )
    with grant_room.running(
        kubelet, tmp_path, grant_room.devices(2), policy=policy, clock=lambda: next(late)
    ) as room:
        posted = []
        room.grant_manager.observers.reported.add(posted.append)
        one = room.kubelet.admit(pod("p", container("a", 30, 2)))
        cluster.add(one, sealed(one, a="30 2 GPU-1"), owned=True)
        for _ in range(3):
            with pytest.raises(StartError, match="there is no key yet; the scheduler creates it"):
                room.start(one, "a")
        assert {(event.reason, event.evict) for event in posted} == {("VGPUWaits", False)}
        assert room.grant_manager.waiting == set(room.checkpoint.grants)
        withdrawn = []
        room.grant_manager.observers.withdrawn.add(
            lambda uid, reason: withdrawn.append((uid, reason))
        )
        assert [
            message for message in caplog.messages if message.startswith("pods whose devices")
        ] == [f"pods whose devices the scheduler chose cannot start: {keys.trouble}"]
        (secret / "key").write_bytes(KEY)
        assert keys.trouble == ""
        assert grant_room.text(room.start(one, "a")) == "30 2 GPU-1"
        assert not room.grant_manager.waiting
        assert withdrawn == [(one.uid, "VGPUWaits")]


def test_keys_are_read_from_a_file_or_a_secret_folder(tmp_path):
    file, secret = tmp_path / "key", tmp_path / "secret"
    file.write_bytes(KEY)
    (secret / "..data").mkdir(parents=True)
    (secret / "a").write_bytes(KEY)
    (secret / "b").write_bytes(OTHER)
    assert scheduler_choice.read_keys(file) == (KEY,)
    assert scheduler_choice.read_keys(secret) == (KEY, OTHER)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"short", "a key of 5 bytes: must have from 32 to 4096, such as `head -c 32"),
        (bytes(5000), "a key of 4097 bytes"),
        (None, "the key cannot be read: No such file"),
    ],
)
def test_invalid_key_is_refused(tmp_path, content, words):
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(errors.DataError) as caught:
        scheduler_choice.read_keys(file)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)


def test_empty_file_is_no_key_yet(tmp_path):
    file, secret = tmp_path / "key", tmp_path / "secret"
    file.touch()
    secret.mkdir()
    assert scheduler_choice.read_keys(file) == scheduler_choice.read_keys(secret) == ()
    (secret / "a").touch()
    (secret / "b").write_bytes(KEY)
    assert scheduler_choice.read_keys(secret) == (KEY,)


# --- the user's selection, where the agent chooses -------------------------------------------


@pytest.fixture
def selecting(kubelet, tmp_path, cluster):
    slow, fast = grant_room.devices(2)
    fast = dataclasses.replace(fast, compute_class="fast")
    policy = interfaces.StartPolicy(choose=scheduler_choice.UserSelection(cluster.pods).choose)
    with grant_room.running(kubelet, tmp_path, (slow, fast), policy=policy) as made:
        made.posted = []
        made.grant_manager.observers.reported.add(made.posted.append)
        yield made


def run_selecting(room, cluster, one, notes):
    cluster.add(room.kubelet.admit(one), notes)
    return grant_room.text(room.start(one, "a"))


def test_pod_gets_a_device_of_the_requested_class(selecting, cluster):
    plain, wants = (pod(name, container("a", 30, 2)) for name in "pq")
    assert run_selecting(selecting, cluster, plain, {}) == "30 2 GPU-0"
    assert run_selecting(selecting, cluster, wants, {CLASSES: "fast"}) == "30 2 GPU-1"
    assert not any(grant.chosen for grant in selecting.checkpoint.grants.values())


def test_pod_is_spread_over_the_requested_devices(selecting, cluster):
    one = pod("p", container("a", 60, 4))
    notes = {names.DEVICE_COUNT_ANNOTATION: "2"}
    assert run_selecting(selecting, cluster, one, notes) == "30 2 GPU-0 + 30 2 GPU-1"


@pytest.mark.parametrize(
    ("text", "words"),
    [("huge", "gpu0 is of class none, not huge"), ("fast,", "'fast,': must be words")],
)
def test_pod_without_a_matching_device_is_refused_for_good(selecting, cluster, text, words):
    with pytest.raises(StartError, match=words):
        run_selecting(selecting, cluster, pod("p", container("a", 30, 2)), {CLASSES: text})
    (event,) = selecting.posted
    assert event.evict


def test_pod_unknown_to_the_api_server_is_retried(selecting, cluster):
    one = selecting.kubelet.admit(pod("p", container("a", 30, 2)))
    with pytest.raises(StartError, match="the pod no longer exists in the API server"):
        selecting.start(one, "a")
    assert not selecting.posted
    cluster.add(one, {CLASSES: "fast"})
    assert grant_room.text(selecting.start(one, "a")) == "30 2 GPU-1"


def test_static_pod_starts_without_the_api_server(selecting, cluster):
    static = dataclasses.replace(pod("p", container("a", 30, 2)), uid="b2f1" * 8)
    selecting.kubelet.admit(static)
    cluster.api.go_down()
    assert grant_room.text(selecting.start(static, "a")) == "30 2 GPU-0"


# --- the whole agent --------------------------------------------------------------------------


@pytest.fixture
def key(tmp_path):
    file = tmp_path / "key"
    file.write_bytes(KEY)
    return file


@pytest.mark.slow
def test_agent_follows_the_extender_and_evicts_other_pods(node, cluster, key):
    kubelet, (_, second) = node.kubelet, [device.uuid for device in node.machine.devices]
    node.start(
        "--kubeconfig", cluster.kubeconfig, "--placement", "extender", "--placement-key", key
    )
    kubelet.until_offered()
    one, forged = (kubelet.admit(pod(name, container("a", 30, 2))) for name in "pq")
    cluster.add(one, sealed(one, a=f"30 2 {second}"))
    cluster.add(forged, sealed(forged, OTHER, a=f"30 2 {second}"), owned=True)
    assert node.quota(kubelet.start_container(one, "a")) == (30, 2, second)
    with pytest.raises(StartError, match="is not sealed by this cluster's scheduler"):
        kubelet.start_container(forged, "a")
    node.until(lambda: cluster.evictions(forged))
    (said,) = cluster.events(forged)
    assert "is not sealed by this cluster's scheduler, which alone may write it" in said
    node.until(lambda: cluster.text)
    assert not cluster.published.placed  # the scheduler's choice is in the pod's annotation


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "the key cannot be read"), (b"k", "must have from 32 to 4096")],
)
def test_agent_with_an_invalid_key_does_not_start(node, cluster, key, content, words):
    key.unlink()
    if content:
        key.write_bytes(content)
    started = node.start(
        *("--kubeconfig", cluster.kubeconfig, "--placement", "extender", "--placement-key", key)
    )
    assert started.wait(waiting.PROMPT) == 65
    assert words in node.log.read_text()


@pytest.mark.slow
def test_agent_waits_for_the_schedulers_first_key(node, cluster, tmp_path):
    """The Secret is mounted before a scheduler is leader for the first time."""
    secret, (_, second) = tmp_path / "secret", [device.uuid for device in node.machine.devices]
    secret.mkdir()
    more = ("--kubeconfig", cluster.kubeconfig, "--listen", "127.0.0.1:0")
    started = node.start(*more, "--placement", "extender", "--placement-key", secret)
    node.kubelet.until_offered()
    assert node.ask("/readyz")[0] == 503
    assert "there is no key yet; the scheduler creates it" in node.ask("/readyz")[1]
    assert node.ask("/healthz")[0] == 200
    one = node.kubelet.admit(pod("p", container("a", 30, 2)))
    cluster.add(one, sealed(one, a=f"30 2 {second}"), owned=True)
    with pytest.raises(StartError, match="there is no key yet"):
        node.kubelet.start_container(one, "a")
    assert node.log.read_text().count("pods whose devices the scheduler chose cannot start") == 1
    (secret / "key").write_bytes(KEY)
    assert node.quota(node.kubelet.start_container(one, "a")) == (30, 2, second)
    node.until(lambda: node.ask("/readyz")[0] == 200)
    assert not cluster.evictions(one)
    (secret / "key").write_bytes(OTHER)  # key rotation
    two = node.kubelet.admit(pod("q", container("a", 30, 2)))
    cluster.add(two, sealed(two, OTHER, a=f"30 2 {second}"))
    assert node.quota(node.kubelet.start_container(two, "a")) == (30, 2, second)
    assert started.poll() is None


def test_extender_placement_without_api_server_does_not_start(node, key):
    started = node.start("--placement", "extender", "--placement-key", key)
    assert started.wait(waiting.PROMPT) == 64
    assert "--placement extender: needs the API server" in node.log.read_text()


@pytest.mark.parametrize("scheduler", ["volcano", "yunikorn", "default-scheduler"])
def test_pod_that_any_scheduler_bound_starts_if_a_device_has_room(
    kubelet, tmp_path, cluster, scheduler
):
    policy = interfaces.StartPolicy(choose=scheduler_choice.UserSelection(cluster.pods).choose)
    with grant_room.running(kubelet, tmp_path, grant_room.devices(2), policy=policy) as room:
        one = kubelet.admit(pod("p", container("a", 30, 2)))
        cluster.add(one, {"scheduling.k8s.io/group-name": "train"}, owned=True)
        bound = cluster.api.read(cluster.path_of(one))
        bound["spec"]["schedulerName"] = scheduler
        cluster.api.put(cluster.path_of(one), bound)
        assert grant_room.text(room.start(one, "a")) == "30 2 GPU-0"
