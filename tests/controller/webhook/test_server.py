"""The webhook's server before real clients, friendly and not."""

import base64
import datetime
import http.client
import json
import socket
import ssl
import threading

import pod_objects as make
import pytest
import small_kubelet
import waiting

from pyvgpu.controller.webhook import certificates, identity, review, server, sidecars, transform

HOST = "pyvgpu-webhook.pyvgpu.svc"
JSON = {"Content-Type": "application/json"}
SECONDS = 30


def broken(request):
    raise ZeroDivisionError


def refusing(request):
    return review.Answer(refusal="not here")


class Door:
    """A server, and what its clients know."""

    def __init__(self):
        self.bundle = certificates.make(HOST, datetime.datetime.now(datetime.UTC))
        self.seen = []
        routes = {
            "/sidecars": sidecars.mutation(transform.Admission(), lambda: None),
            "/broken": broken,
            "/refusing": refusing,
        }
        self.listener = server.Server(("127.0.0.1", 0), routes, self.context, self.observe)
        threading.Thread(target=self.listener.serve_forever, daemon=True).start()

    def context(self):
        return identity._context(self.bundle)

    def observe(self, path, result, seconds):
        self.seen.append((path, result))

    @property
    def address(self):
        return self.listener.server_address

    def connect(self, authorities=None):
        trust = ssl.create_default_context(cadata=authorities or self.bundle.authorities)
        plain = socket.create_connection(self.address, timeout=SECONDS)
        made = http.client.HTTPConnection(HOST)
        made.sock = trust.wrap_socket(plain, server_hostname=HOST)
        return made

    def end(self):
        self.listener.shutdown()
        self.listener.server_close()


@pytest.fixture
def door():
    made = Door()
    yield made
    made.end()


@pytest.fixture
def client(door):
    made = door.connect()
    yield made
    made.close()


def asked(pod, **more):
    request = {
        "uid": "u-1",
        "operation": "CREATE",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "team",
        "object": pod,
        **more,
    }
    return {"apiVersion": review.API_VERSION, "kind": review.KIND, "request": request}


def post(client, document, path="/sidecars"):
    client.request("POST", path, json.dumps(document), JSON)
    answer = client.getresponse()
    content = answer.read()
    assert answer.status == 200, content
    response = json.loads(content)["response"]
    assert response["uid"] == document["request"]["uid"]
    return response


def job(*more):
    pod = make.pod(make.container("main"), make.sidecar(command=["/opt/log"]), *more)
    pod["metadata"] = {"generateName": "train-"}
    return pod


def test_a_pod_is_changed(client):
    response = post(client, asked(job()))
    assert response["allowed"]
    changed = small_kubelet.apply(job(), json.loads(base64.b64decode(response["patch"])))
    assert changed["metadata"]["labels"] == {"pyvgpu.io/sidecars": "managed"}
    assert changed["spec"]["containers"][1]["command"] == ["$(START_COMMAND_0)"]


def test_asked_again_with_what_it_answered_it_changes_nothing(client):
    first = post(client, asked(job()))
    changed = small_kubelet.apply(job(), json.loads(base64.b64decode(first["patch"])))
    assert post(client, asked(changed)) == {"uid": "u-1", "allowed": True}


def test_a_dry_run_is_answered_like_any_other(client):
    assert post(client, asked(job(), dryRun=True)) == post(client, asked(job()))


@pytest.mark.parametrize(
    "more",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None},
        {"subResource": "ephemeralcontainers"},
        {"resource": {"group": "apps", "version": "v1", "resource": "deployments"}},
        {"object": None},
        {"object": []},
        {"object": {"spec": None, "metadata": None}},
    ],
)
def test_what_does_not_concern_us_is_admitted_as_it_is(client, more):
    assert post(client, asked(job(), **more)) == {"uid": "u-1", "allowed": True}


def test_a_mutation_that_fails_admits_the_object(client, door):
    response = post(client, asked(job()), "/broken")
    assert response["allowed"]
    assert response["warnings"]
    assert post(client, asked(job()))["patch"]  # and the next is served
    assert door.seen == [("/broken", "failed"), ("/sidecars", "changed")]


def test_nonsense_in_a_pod_admits_it(client):
    nonsense = {"spec": {"containers": [7, {"env": 7}], "restartPolicy": []}, "metadata": {}}
    assert post(client, asked(nonsense))["allowed"]


def test_a_mutation_may_refuse(client):
    response = post(client, asked(job()), "/refusing")
    assert (response["allowed"], response["status"]["message"]) == (False, "not here")


def test_a_pod_of_three_mebibytes_is_answered(client):
    pod = job()
    pod["metadata"]["annotations"] = {"a": "<" * (3 << 20)}
    response = post(client, asked(pod))
    assert "no room" in response["warnings"][0]


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "code"),
    [
        ("POST", "/sidecars", b"garbage", JSON, 400),
        ("POST", "/sidecars", b"{}", JSON, 400),
        ("POST", "/elsewhere", b"{}", JSON, 404),
        ("POST", "/sidecars", b"{}", {"Content-Type": "text/html"}, 415),
        ("POST", "/sidecars", b"", JSON | {"Content-Length": str(1 << 40)}, 413),
        ("POST", "/sidecars", b"", JSON | {"Content-Length": "9" * 5000}, 413),
        ("POST", "/sidecars", b"", JSON | {"Content-Length": "-1"}, 411),
        ("POST", "/sidecars", b"", JSON | {"Transfer-Encoding": "chunked"}, 411),
        ("GET", "/sidecars", None, {}, 405),
        ("GET", "/", None, {}, 404),
        ("TRACE", "/sidecars", None, {}, 501),
    ],
)
def test_what_nobody_should_send_is_refused(door, method, path, body, headers, code):
    client = door.connect()
    client.putrequest(method, path)
    for name, value in headers.items():
        client.putheader(name, value)
    if body and "Content-Length" not in headers:
        client.putheader("Content-Length", str(len(body)))
    client.endheaders(body)
    answer = client.getresponse()
    answer.read()
    assert (answer.status, answer.getheader("Connection")) == (code, "close")
    client.close()
    fresh = door.connect()
    assert post(fresh, asked(job()))["patch"]
    fresh.close()


def test_who_says_nothing_keeps_nobody_waiting(door):
    silent = [socket.create_connection(door.address) for _ in range(20)]
    client = door.connect()
    assert post(client, asked(job()))["patch"]
    for it in (*silent, client):
        it.close()


def test_who_says_nothing_is_given_up(door, monkeypatch):
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 0.1)
    with socket.create_connection(door.address, timeout=SECONDS) as silent:
        assert silent.recv(1) == b""


def test_too_many_connections_are_refused_and_then_again_served(door, monkeypatch):
    monkeypatch.setattr(door.listener, "_free", threading.BoundedSemaphore(1))
    first = door.connect()
    with pytest.raises((ConnectionError, ssl.SSLError)):
        door.connect()
    assert post(first, asked(job()))["patch"]
    first.close()
    waiting.wait_until(lambda: door.listener._free._value)  # the thread of the first has ended
    second = door.connect()
    assert post(second, asked(job()))["patch"]
    second.close()


def test_a_certificate_that_changes_holds_for_new_connections(door, client):
    old = door.bundle
    now = datetime.datetime.now(datetime.UTC)
    door.bundle = certificates.make(HOST, now, old.authorities)
    assert post(client, asked(job()))["patch"]  # the connection that was there
    with pytest.raises(ssl.SSLCertVerificationError):
        door.connect(old.authorities)
    fresh = door.connect()  # trusts the old one and the new
    assert post(fresh, asked(job()))["patch"]
    fresh.close()


def test_before_the_end_connections_are_given_up(door, client):
    door.listener.draining = True
    client.request("POST", "/sidecars", json.dumps(asked(job())), JSON)
    answer = client.getresponse()
    assert (answer.status, answer.getheader("Connection")) == (200, "close")
    answer.read()
