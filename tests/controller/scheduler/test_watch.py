"""The cache follows the API server through everything that may happen to a watch."""

import threading

import pytest
import scheduling_api as make
import waiting
from scheduling_api import KEY

from pyvgpu.controller.scheduler import cache, node_annotation_reader, pod_request
from pyvgpu.controller.scheduler.shell import cache_check, cache_watch
from pyvgpu.kube import informer

PATHS = (cache_watch.NODES, cache_watch.PODS, cache_watch.BUDGETS)


class Followed:
    """A running watch, and the number of times that devices may have been freed."""

    def __init__(self, connection):
        self.cache, self.freed = cache.Cache(), 0
        self.stop = threading.Event()
        self.watch = cache_watch.ClusterWatch(connection, self.cache, lambda: [KEY], self._free)
        self.drift = cache_check.Drift(connection, self.cache, lambda: [KEY], self.watch.relist)
        for part in self.watch.parts:
            threading.Thread(target=part, args=(self.stop,), daemon=True).start()
        waiting.wait_until(lambda: not self.watch.missing)

    def _free(self):
        self.freed += 1

    def until(self, true):
        waiting.wait_until(lambda: true(self.cache))


@pytest.fixture
def follow(cluster):
    api, connection = cluster
    made = []

    def begin():
        made.append(Followed(connection))
        for path in PATHS:
            api.wait_for("WATCH", path)
        return made[-1]

    yield begin
    for follower in made:
        follower.stop.set()


def bind(api, name, node="node-1", device=0):
    from pyvgpu.allocator import annotations, datatypes

    thing = make.pod(name)
    share = datatypes.NodeShare(f"GPU-{node}-{device}", 50, 8 * make.UNIT)
    choice = annotations.DeviceChoice(thing["metadata"]["uid"], node, {"main": (share,)})
    thing["metadata"]["annotations"] = {"pyvgpu.io/devices": annotations.seal(choice, KEY)}
    thing["spec"]["nodeName"] = node
    api.put(make.path(name), thing)


def free(known, node="node-1"):
    info = known.nodes.get(node)
    return [room.vcore for room in info.free] if info else []


def test_existing_objects_are_known(cluster, follow):
    api, _ = cluster
    api.put("/api/v1/nodes/node-1", make.node("node-1"))
    bind(api, "a")
    api.put(make.path("plain"), make.pod("plain", 0, 0))
    followed = follow()
    assert free(followed.cache) == [50, 100]
    assert set(followed.cache.pods) == {"n/a"}


GOES = {
    "deleted": lambda api: api.delete(make.path("a")),
    "succeeded": lambda api: api.put(make.path("a"), ended(api, "Succeeded")),
    "failed": lambda api: api.put(make.path("a"), ended(api, "Failed")),
    "another of its name": lambda api: api.put(make.path("a"), another()),
}


def ended(api, phase):
    return {**api.read(make.path("a")), "status": {"phase": phase}}


def another():
    thing = make.pod("a")
    thing["metadata"]["uid"] = "uid-another"
    return thing


@pytest.mark.parametrize("goes", GOES.values(), ids=GOES)
def test_a_pod_that_is_gone_frees_its_device_and_notifies(cluster, follow, goes):
    api, _ = cluster
    api.put("/api/v1/nodes/node-1", make.node("node-1"))
    bind(api, "a")
    followed = follow()
    before = followed.freed
    goes(api)
    followed.until(lambda known: free(known) == [100, 100])
    waiting.wait_until(lambda: followed.freed > before)


@pytest.mark.slow
def test_a_pod_deleted_while_the_watch_was_lost_is_gone(cluster, follow):
    api, _ = cluster
    api.put("/api/v1/nodes/node-1", make.node("node-1"))
    bind(api, "a")
    bind(api, "b", device=1)
    followed = follow()
    api.delete(make.path("a"))
    api.forget()
    followed.until(lambda known: free(known) == [100, 50])


def test_a_heartbeat_of_a_node_is_no_change(cluster, follow):
    api, _ = cluster
    node = make.node("node-1")
    api.put("/api/v1/nodes/node-1", node)
    followed = follow()
    before = followed.freed
    seen = []
    followed.cache.see_node = lambda *given: seen.append(given)
    api.put("/api/v1/nodes/node-1", {**node, "status": {"beat": 1}})
    api.put("/api/v1/nodes/node-2", make.node("node-2"))
    waiting.wait_until(lambda: followed.freed > before)
    assert [seen_node[0] for seen_node in seen] == ["node-2"]
    assert followed.freed == before + 1


def test_a_node_with_an_invalid_annotation_has_the_reason(cluster, follow):
    api, _ = cluster
    broken = make.node("node-1")
    broken["metadata"]["annotations"]["pyvgpu.io/node-devices"] = '{"v": 9}'
    api.put("/api/v1/nodes/node-1", broken)
    followed = follow()
    assert "has version 9" in followed.cache.nodes["node-1"].trouble
    api.put("/api/v1/nodes/node-1", make.node("node-1"))
    followed.until(lambda known: free(known) == [100, 100])
    api.delete("/api/v1/nodes/node-1")
    followed.until(lambda known: not known.nodes)


def test_drift_is_counted_and_corrected(cluster, follow, monkeypatch):
    api, _ = cluster
    monkeypatch.setattr(cache_check, "AGAIN_SECONDS", 0.01)
    api.put("/api/v1/nodes/node-1", make.node("node-1"))
    bind(api, "a")
    followed = follow()
    followed.drift.poll(followed.stop)
    assert followed.drift.count == 0
    followed.cache.see_pod("n/a", None)  # as if a watch event had been lost
    ghost = make.pod("ghost", nodeName="node-1")
    followed.cache.see_pod("n/ghost", pod_request.read(ghost))
    followed.drift.poll(followed.stop)
    assert followed.drift.count == 2
    for path in PATHS:
        api.bookmark(path)
    followed.until(lambda known: free(known) == [50, 100])
    followed.drift.poll(followed.stop)
    assert followed.drift.count == 0


class Turns:
    """The lock of a cache; counts the nodes and pods that are looked up while it is held."""

    def __init__(self, known):
        self._lock, self._depth = known.lock, 0
        self.most = self.all = self._now = 0
        known.lock, known.nodes, known.pods = self, Counted(known.nodes), Counted(known.pods)
        known.nodes.turns = known.pods.turns = self

    def __enter__(self):
        self._lock.__enter__()
        if not self._depth:
            self._now = 0
        self._depth += 1

    def __exit__(self, *raised):
        self._depth -= 1
        self.most = max(self.most, self._now)
        self._lock.__exit__(*raised)

    def count(self):
        if self._depth:
            self._now += 1
            self.all += 1


class Counted(dict):
    def get(self, *key):
        self.turns.count()
        return super().get(*key)


@pytest.mark.parametrize("lost", ["nothing", "all pods", "all objects"])
def test_comparison_holds_the_lock_for_one_object_at_a_time(monkeypatch, lost):
    """The event loop that answers kube-scheduler waits for that lock."""
    monkeypatch.setattr(cache_check, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(cache_check, "_PAUSE_SECONDS", 0.0)
    nodes = [make.node(f"node-{number}") for number in range(23)]
    pods = [make.pod(f"p{number}", nodeName=f"node-{number % 23}") for number in range(47)]
    known = cache.Cache()
    for node in nodes:
        report = node_annotation_reader.read(node)
        known.see_node(informer.key_of(node), report.published, report.trouble)
    for pod in pods:
        known.see_pod(informer.key_of(pod), pod_request.read(pod))

    class Lists:
        def each(self, path, query, size):
            if lost == "all objects" or (path == cache_watch.PODS and lost == "all pods"):
                return []
            return {cache_watch.NODES: nodes, cache_watch.PODS: pods}[path]

    turns = Turns(known)
    relists = []
    drift = cache_check.Drift(Lists(), known, lambda: [KEY], lambda: relists.append(1))
    drift.poll(threading.Event())
    assert turns.all >= len(nodes) + len(pods)
    assert turns.most <= 2
    assert drift.count == {"nothing": 0, "all pods": 47, "all objects": 70}[lost]
    assert len(relists) == (lost != "nothing")
    assert len(known.pods) == (47 if lost == "nothing" else 0)


def test_it_compares_at_the_set_interval_until_it_ends(cluster, follow):
    followed = follow()
    followed.cache.settings = cache.SchedulerSettings(resync_seconds=0.01)
    thread = threading.Thread(target=followed.drift.run, args=(followed.stop,))
    thread.start()
    waiting.wait_until(lambda: followed.drift.comparisons > 2)
    followed.stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert followed.drift.count == 0


def test_informer_and_cache_use_the_same_key(cluster):
    assert informer.key_of(make.pod("a")) == pod_request.read(make.pod("a")).key


def test_comparison_reads_small_pages(small, monkeypatch):
    api, connection = small
    answer, asked = api.answer, []

    def recorded(method, path, query, body):
        asked.append((path, query.get("limit")))
        return answer(method, path, query, body)

    monkeypatch.setattr(api, "answer", recorded)
    drift = cache_check.Drift(connection, cache.Cache(), lambda: [KEY], lambda: None)
    drift.poll(threading.Event())
    assert {(path, limit) for path, limit in asked if path.endswith(("nodes", "pods"))} == {
        ("/api/v1/nodes", "100"),
        ("/api/v1/pods", "100"),
    }
