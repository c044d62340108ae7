"""Binding pods with their choice: no device is reserved twice, whatever request is lost."""

import threading

import pytest
import scheduling_api as make
from scheduling_api import KEY

from pyvgpu import errors
from pyvgpu.allocator import annotations, placement_explanation
from pyvgpu.controller.scheduler import cache, node_annotation_reader, pod_request
from pyvgpu.controller.scheduler.shell import binding

NODE = "node-1"


class BinderRig:
    """A binder, its cache, and the API server."""

    def __init__(self, api, connection):
        self.api = api
        self.leads = True
        self.cache = cache.Cache()
        self.binder = binding.Binder(connection, self.cache, lambda: [KEY], lambda: self.leads)
        self.see_node(make.node(NODE))

    def see_node(self, node):
        report = node_annotation_reader.read(node)
        self.cache.see_node(node["metadata"]["name"], report.published, report.trouble)

    def make(self, name, *ask, **more):
        self.api.put(make.path(name), make.pod(name, *ask, **more))
        return self.evaluate(name)

    def evaluate(self, name):
        return binding.EvaluatedPod.of(self.api.read(make.path(name)), [KEY])

    def watch(self, name):
        """Update the cache with the API server's state of a pod."""
        thing = self.api._objects.get(make.path(name))
        self.cache.see_pod(f"n/{name}", pod_request.read(thing, [KEY]) if thing else None)

    def free(self):
        return [room.vcore for room in self.cache.nodes[NODE].free]


@pytest.fixture
def rig(cluster):
    return BinderRig(*cluster)


def test_a_pod_is_bound_with_its_choice_in_one_request(rig):
    rig.binder.bind(rig.make("a", noted={"keep": "1", "pyvgpu.io/devices": "forged"}), NODE)
    choice = rig.api.choice("a")
    (share,) = choice.containers["main"]
    assert (share.vcore, share.vmemory) == (50, 8 * make.UNIT)
    assert rig.api.read(make.path("a"))["metadata"]["annotations"]["keep"] == "1"
    assert rig.api.asked == [("POST", f"{make.path('a')}/binding")]
    before = rig.free()
    rig.watch("a")
    assert rig.free() == before == [50, 100]


def of_gaia(name, vcore, units):
    asked = {"tencent.com/vcuda-core": str(vcore), "tencent.com/vcuda-memory": str(units)}
    return {"name": name, "resources": {"limits": asked, "requests": asked}}


GAIA = "tencent.com/predicate-"
MINORS = {f"GPU-{NODE}-{at}": at + 4 for at in range(2)}


@pytest.mark.parametrize("minors", [MINORS, {}], ids=["known", "unknown"])
def test_a_pod_with_gpu_managers_resources_gets_its_annotations_too(rig, minors):
    published = annotations.Published(make.UNIT, make.devices(NODE), minors)
    rig.cache.see_node(NODE, published)
    thing = make.pod("a", noted={f"{GAIA}gpu-idx-{index}": "9" for index in (0, 1)})
    none, one, two = make.container("log", 0, 0), of_gaia("one", 30, 4), of_gaia("two", 200, 0)
    thing["spec"]["containers"] = [none, one]
    thing["spec"]["initContainers"] = [two]  # gpu-manager does not support it
    rig.api.put(make.path("a"), thing)
    rig.binder.bind(rig.evaluate("a"), NODE)
    noted = rig.api.read(make.path("a"))["metadata"]["annotations"]
    (share,) = rig.api.choice("a").containers["one"]
    assert noted[f"{GAIA}gpu-idx-1"] == (str(minors[share.uuid]) if minors else "")
    assert noted[f"{GAIA}gpu-idx-0"] == "", "of a container without devices"
    assert (noted[f"{GAIA}node"], noted["tencent.com/gpu-assigned"]) == (NODE, "false")
    assert int(noted[f"{GAIA}time"]) > 0
    assert f"{GAIA}gpu-idx-2" not in noted


def test_a_pod_with_our_resources_gets_no_gpu_manager_annotations(rig):
    rig.binder.bind(rig.make("a"), NODE)
    noted = rig.api.read(make.path("a"))["metadata"]["annotations"]
    assert set(noted) == {"pyvgpu.io/devices"}


def test_two_pods_never_get_the_same_of_a_device(rig):
    for name in ("a", "b", "c", "d"):
        rig.binder.bind(rig.make(name), NODE)
    assert rig.free() == [0, 0]
    with pytest.raises(placement_explanation.Refused):
        rig.binder.bind(rig.make("e"), NODE)
    assert len(rig.api.bound) == 4


@pytest.mark.parametrize("change", ["gone", "another", "bound elsewhere", "leaving"])
def test_a_pod_that_is_no_longer_pending_is_not_bound_and_holds_nothing(rig, change):
    evaluated = rig.make("a")
    thing = make.pod("a")
    if change == "gone":
        rig.api.delete(make.path("a"))
    elif change == "another":
        thing["metadata"]["uid"] = "other"
    elif change == "bound elsewhere":
        thing["spec"]["nodeName"] = "node-9"
    else:
        thing["metadata"]["deletionTimestamp"] = "2026-11-22T04:00:00Z"
    if change != "gone":
        rig.api.put(make.path("a"), thing)
    with pytest.raises(binding.NotBoundError):
        rig.binder.bind(evaluated, NODE)
    assert rig.free() == [100, 100]


def test_a_modified_pod_is_read_again_and_bound(rig):
    evaluated = rig.make("a")
    changed = make.pod("a")
    changed["metadata"]["labels"] = {"x": "y"}
    rig.api.put(make.path("a"), changed)
    rig.binder.bind(evaluated, NODE)
    assert rig.api.bound == [("a", NODE)]


def test_a_pod_whose_request_has_changed_is_not_bound(rig):
    evaluated = rig.make("a")
    rig.api.put(make.path("a"), make.pod("a", 60))
    with pytest.raises(binding.NotBoundError):
        rig.binder.bind(evaluated, NODE)
    assert rig.free() == [100, 100]


@pytest.mark.parametrize("code", [400, 403, 422, 429])
def test_a_refused_bind_releases_its_devices(rig, code):
    evaluated = rig.make("a")
    rig.api.refusing["POST"] = [code]
    with pytest.raises(binding.NotBoundError):
        rig.binder.bind(evaluated, NODE)
    assert rig.free() == [100, 100]
    rig.binder.bind(rig.evaluate("a"), NODE)
    assert rig.api.bound == [("a", NODE)]


@pytest.mark.parametrize("code", [500, 503, 504])
def test_a_bind_that_may_have_been_done_stays_reserved(rig, code):
    evaluated = rig.make("a")
    rig.api.refusing["POST"] = [code]
    with pytest.raises(binding.NotBoundError, match="unknown whether"):
        rig.binder.bind(evaluated, NODE)
    assert rig.free() == [50, 100]
    with pytest.raises(binding.NotBoundError, match="not known yet"):
        rig.binder.bind(rig.evaluate("a"), NODE)  # the first bind could still be done
    assert rig.free() == [50, 100]


def test_a_bind_whose_answer_was_lost_is_detected(rig):
    evaluated = rig.make("a")
    rig.api.lose = ["after"]
    with pytest.raises(binding.NotBoundError):
        rig.binder.bind(evaluated, NODE)
    rig.binder.bind(rig.evaluate("a"), NODE)
    assert rig.api.bound == [("a", NODE)]
    rig.watch("a")
    assert rig.free() == [50, 100]


def test_a_lost_bind_is_void_once_the_pod_has_changed(rig):
    evaluated = rig.make("a")
    rig.see_node(make.node("node-2"))
    rig.api.lose = ["before"]
    with pytest.raises(binding.NotBoundError):
        rig.binder.bind(evaluated, NODE)
    marked = make.pod("a")
    marked["status"]["conditions"] = [{"type": "PodScheduled", "status": "False"}]
    rig.api.put(make.path("a"), marked)  # like kube-scheduler in this case
    rig.binder.bind(rig.evaluate("a"), "node-2")
    assert rig.free() == [100, 100]
    assert rig.api.bound == [("a", "node-2")]


def test_an_unanswered_bind_is_resolved_after_its_deadline(rig, monkeypatch):
    evaluated = rig.make("a")
    rig.api.lose = ["before"]
    with pytest.raises(binding.NotBoundError):
        rig.binder.bind(evaluated, NODE)
    assert rig.binder.resolve() == 0  # before its deadline
    now = binding.time.monotonic()
    monkeypatch.setattr(binding.time, "monotonic", lambda: now + 20)
    assert rig.binder.resolve() == 0  # it could still be on its way
    assert rig.free() == [50, 100]
    monkeypatch.setattr(binding.time, "monotonic", lambda: now + 60)
    assert rig.binder.resolve() == 1
    assert rig.free() == [100, 100]


def test_a_replica_that_lost_the_lease_binds_nothing(rig):
    evaluated = rig.make("a")
    rig.leads = False
    with pytest.raises(binding.NotBoundError, match="another replica is the leader"):
        rig.binder.bind(evaluated, NODE)
    assert rig.free() == [100, 100]
    assert not rig.api.asked


def test_of_two_concurrent_binds_of_a_pod_one_is_refused(rig):
    evaluated = rig.make("a")
    entered, go_on = threading.Event(), threading.Event()
    reserve = rig.cache.reserve

    def slow(*given):
        entered.set()
        assert go_on.wait(30)
        return reserve(*given)

    rig.cache.reserve = slow
    thread = threading.Thread(target=rig.binder.bind, args=(evaluated, NODE))
    thread.start()
    assert entered.wait(30)
    with pytest.raises(binding.NotBoundError, match="already"):
        rig.binder.bind(evaluated, NODE)
    go_on.set()
    thread.join()
    rig.binder.drain()
    assert rig.api.bound == [("a", NODE)]


def test_pods_without_devices_are_bound_without_a_choice(rig):
    rig.api.put(make.path("plain"), make.pod("plain", 0, 0))
    rig.binder.bind_without("n", "plain", "uid-plain", NODE)
    assert rig.api.read(make.path("plain"))["metadata"]["annotations"] == {}
    with pytest.raises(errors.UnavailableError):
        rig.binder.bind_without("n", "gone", "uid-gone", NODE)
