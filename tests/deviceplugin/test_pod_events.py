"""A pod that can never start gets an event, and is evicted if it has an owner."""

import contextlib
import dataclasses
import http.server
import json
import threading

import grant_room
import http_listener
import pytest
import waiting
from fake_kubelet import StartError, container, pod
from kubernetes import client

from pyvgpu.deviceplugin.cluster import node_pods, pod_events
from pyvgpu.deviceplugin.grants import events
from pyvgpu.kube import apiserver, backoff

OWNED = [{"kind": "ReplicaSet", "name": "r", "uid": "o"}]


class Server:
    """An API server with some pods, which records writes."""

    def __init__(self, *pods):
        self.pods = {listed["metadata"]["name"]: listed for listed in pods}
        self.written = []
        self.deleted = []  # the names of pods
        self.failing = []
        self.refused = {}  # number of refusals still to come, by kind
        self.changed = threading.Condition()

    def answer(self, method, path, body):
        with self.changed:
            name = path.partition("?")[0].rpartition("/")[2]
            kind = name if method == "POST" else "deletion"
            if method != "GET" and self.failing:
                return self.failing.pop(0), {"message": "not now"}
            if method != "GET" and self.refused.get(kind):
                return self.refused[kind].pop(0), {"message": "not now"}
            if method != "GET":
                self.written.append((kind, body))
                self.deleted += [name] if method == "DELETE" else []
                self.changed.notify_all()
                return 201, {}
            if name == "pods":
                return 200, {"items": list(self.pods.values())}
            return (200, self.pods[name]) if name in self.pods else (404, {"message": "no pod"})

    def until(self, *kinds):
        with self.changed:
            assert self.changed.wait_for(
                lambda: [kind for kind, _ in self.written] == list(kinds), timeout=waiting.PROMPT
            ), self.written
        return [body for _, body in self.written]

    def until_all(self, *kinds):
        """Wait for writes of these kinds, in any order."""
        with self.changed:
            assert self.changed.wait_for(
                lambda: sorted(kind for kind, _ in self.written) == sorted(kinds),
                timeout=waiting.PROMPT,
            ), self.written


@contextlib.contextmanager
def served(server):
    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            assert self.headers["Authorization"] == "Bearer secret"
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.loads(content) if content else None
            status, found = server.answer(self.command, self.path, body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        do_GET = do_POST = do_DELETE = answer  # noqa: N815 - as the library calls them

        def log_message(self, *_):
            pass

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with http_listener.serving(listening):
        yield f"127.0.0.1:{listening.server_port}"


@contextlib.contextmanager
def recording(server, **limits):
    with served(server) as host:
        chosen = dataclasses.replace(pod_events.LIMITS, **limits)
        recorder = pod_events.PodEvents(connected(host), "node-1", limits=chosen)
        with running(recorder):
            yield recorder


@contextlib.contextmanager
def running(recorder):
    threads = [threading.Thread(target=run) for run in recorder.runs.values()]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        recorder.stop()
        for thread in threads:
            thread.join(waiting.PROMPT)
            assert not thread.is_alive()


@pytest.fixture
def soon(monkeypatch):
    """Failed calls are retried soon."""
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(pod_events, "DELETE_AGAIN_SECONDS", 0.01)


def connected(host):
    """Return the pods of that server, without a watch: each is read."""
    settings = client.Configuration(
        host=f"http://{host}",
        api_key={"BearerToken": "secret"},
        api_key_prefix={"BearerToken": "Bearer"},
    )
    return node_pods.Pods(apiserver.ApiServer(client.ApiClient(settings)), "node-1")


def refused(uid, namespace, name, text):
    return events.GrantEvent(uid, namespace, name, text, evict=True)


def object_of(name, uid, **meta):
    return {"metadata": {"name": name, "namespace": "default", "uid": uid, **meta}}


def test_owned_pod_gets_an_event_and_is_evicted_by_uid():
    server = Server(object_of("p", "u", ownerReferences=OWNED))
    with recording(server) as recorder:
        for _ in range(2):
            recorder.record(refused("u", "default", "p", "there is no room"))
        event, eviction = server.until("events", "deletion")
    assert (event["reason"], event["message"]) == ("VGPURefused", "there is no room")
    assert event["involvedObject"]["uid"] == "u"
    assert eviction == {"preconditions": {"uid": "u"}}


def test_static_pod_gets_an_event_through_its_mirror():
    of = {"kubernetes.io/config.mirror": "b2f1" * 8}
    node = [{"kind": "Node", "name": "node-1", "uid": "o"}]
    mirror = object_of("p", "its own", annotations=of, ownerReferences=node)
    server = Server(mirror, object_of("q", "v"))
    with recording(server) as recorder:
        recorder.record(refused("b2f1" * 8, "default", "p", "there is no room"))
        first, *_ = server.until("events")
        recorder.record(refused("v", "", "", "nor here"))
        server.until("events", "events")
    assert first["involvedObject"]["uid"] == "its own"  # by which `kubectl describe` selects


def test_bare_pod_gets_only_an_event():
    server = Server(object_of("p", "u"), object_of("q", "v"))
    with recording(server) as recorder:
        recorder.record(refused("u", "default", "p", "there is no room"))
        recorder.record(refused("v", "", "", "nor here"))
        _, second = server.until("events", "events")
    assert second["involvedObject"]["name"] == "q"


def test_later_pod_of_the_same_name_is_untouched():
    server = Server(object_of("p", "another", ownerReferences=OWNED), object_of("q", "v"))
    with recording(server) as recorder:
        recorder.record(refused("u", "default", "p", "there is no room"))
        recorder.record(refused("u", "default", "gone", "there is no room at all"))
        recorder.record(refused("v", "default", "q", "last"))
        (event,) = server.until("events")
    assert event["message"] == "last"


@pytest.mark.usefixtures("soon")
def test_failed_event_is_retried():
    server = Server(object_of("p", "u", ownerReferences=OWNED))
    server.failing = [500, 429]
    with recording(server) as recorder:
        recorder.record(refused("u", "default", "p", "there is no room"))
        server.until("events", "deletion")


def of_node(name):
    text = f"node {name} offers no device"
    return events.GrantEvent("uid-n", "", name, text, events.Reason.NOT_OFFERED, of_node=True)


@pytest.mark.parametrize("status", [400, 403, 422])
def test_event_refused_for_good_is_dropped(caplog, status):
    server = Server(object_of("p", "u"), object_of("q", "v"))
    server.failing = [status, status]
    with recording(server) as recorder:
        recorder.record(of_node("node-1"))
        recorder.record(refused("u", "default", "p", "there is no room"))
        recorder.record(refused("v", "default", "q", "nor here"))
        (event,) = server.until("events")
    assert event["message"] == "nor here"
    node, one = [message for message in caplog.messages if message.startswith("gave up")]
    assert node.startswith("gave up VGPUNotOffered of node node-1: POST ")
    assert one.startswith("gave up VGPURefused of pod p: POST ")


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("status", [401, 429, 500])
def test_failed_node_event_is_retried(status):
    server = Server()
    server.failing = [status]
    with recording(server) as recorder:
        recorder.record(of_node("node-1"))
        (event,) = server.until("events")
    assert event["involvedObject"]["name"] == "node-1"


def waits(uid, text="the API server cannot be asked"):
    return events.GrantEvent(uid, "default", "p", text, events.Reason.WAITS)


@pytest.mark.usefixtures("soon")
def test_withdrawn_event_is_not_written():
    """Before it is posted, and during a post."""
    server = Server(object_of("p", "u"), object_of("q", "v"))
    with served(server) as host:
        recorder = pod_events.PodEvents(connected(host), "node-1")
        recorder.record(waits("u"))
        recorder.withdraw("u", events.Reason.WAITS)
        recorder.record(events.GrantEvent("v", "default", "q", "tried", events.Reason.WAITS))
        answer = server.answer

        def refuse(method, path, body):
            if method != "POST":
                return answer(method, path, body)
            server.answer = answer
            recorder.withdraw("v", events.Reason.WAITS)
            recorder.record(refused("v", "default", "q", "last"))
            return 500, {"message": "not now"}

        server.answer = refuse
        with running(recorder):
            (event,) = server.until("events")
    assert event["message"] == "last"


def resized(text):
    return events.GrantEvent("u", "default", "p", text, events.Reason.RESIZED)


@pytest.mark.slow
def test_events_of_a_pod_and_reason_are_rate_limited():
    server = Server(object_of("p", "u"))
    with recording(server, least_seconds=0.5) as recorder:
        recorder.record(resized("vcore 1"))
        server.until("events")
        for vcore in range(2, 6):
            recorder.record(resized(f"vcore {vcore}"))
        recorder.record(refused("u", "default", "p", "another reason"))
        server.until("events", "events", "events")
    assert [body["message"] for _, body in server.written] == [
        "vcore 1",
        "another reason",
        "vcore 5",
    ]
    assert {body["type"] for _, body in server.written} == {"Normal", "Warning"}


def test_same_event_is_repeated_only_after_a_while():
    server = Server(object_of("p", "u"))
    with recording(server, least_seconds=0.0) as recorder:
        for text in ("vcore 1", "vcore 1", "vcore 2"):
            recorder.record(resized(text))
            server.until(*["events"] * int(text[-1]))


def test_pod_is_evicted_for_no_other_event():
    """The event that announces the eviction is refused for good; a later one is of no eviction."""
    server = Server(object_of("p", "u", ownerReferences=OWNED), object_of("q", "v"))
    server.failing = [403]
    with recording(server) as recorder:
        recorder.record(refused("u", "default", "p", "there is no room"))
        recorder.record(resized("vcore 1"))
        server.until("events")
        recorder.record(refused("v", "default", "q", "last"))
        server.until("events", "events")


@pytest.mark.usefixtures("soon")
def test_delayed_eviction_writes_its_event_once():
    server = Server(object_of("p", "u", ownerReferences=OWNED))
    server.refused["deletion"] = [429, 429]
    with recording(server) as recorder:
        recorder.record(refused("u", "default", "p", "there is no room"))
        server.until("events", "deletion")


def test_deferred_deletion_of_one_pod_delays_no_other(monkeypatch):
    monkeypatch.setattr(pod_events, "DELETE_AGAIN_SECONDS", 600.0)
    names = ("p", "q", "r")
    server = Server(*(object_of(name, f"uid-{name}", ownerReferences=OWNED) for name in names))
    server.refused["deletion"] = [429]
    with recording(server) as recorder:
        recorder.record(refused("uid-p", "default", "p", "there is no room"))
        server.until("events")
        recorder.record(refused("uid-q", "default", "q", "nor here"))
        recorder.record(refused("uid-r", "default", "r", "nor there"))
        server.until_all("events", "events", "events", "deletion", "deletion")
    assert sorted(server.deleted) == ["q", "r"]


@pytest.mark.slow
def test_final_refusal_evicts_at_once_and_a_doubt_after_its_deadline(kubelet, tmp_path):
    now = [1000.0]
    sizes = {"clock": lambda: now[0]}
    posted = []
    with grant_room.running(kubelet, tmp_path, grant_room.devices(1), **sizes) as room:
        room.grant_manager.observers.reported.add(posted.append)
        big = kubelet.admit(pod("big", container("a", 30, 2), container("b", 10, 0)))
        with pytest.raises(StartError):
            room.start(big, "a")
        assert [(event.uid, event.namespace, event.name) for event in posted] == [
            (big.uid, "default", "big")
        ]
        doubted = kubelet.admit(pod("p", container("a", 30, 2)))
        kubelet.refuse_lists = 10**6
        with pytest.raises(StartError):
            room.start(doubted, "a")
        assert len(posted) == 1
        now[0] += 61
        with pytest.raises(StartError):
            room.start(doubted, "a")
        assert posted[-1].uid == doubted.uid
        kubelet.refuse_lists = 0
        room.start(doubted, "a")
        now[0] += 61
        room.grant_manager.collect()
        assert len(room.checkpoint.grants) == 3
