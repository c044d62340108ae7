"""The webhook's HTTPS server with real clients, benign and hostile."""

import base64
import contextlib
import json
import socket
import ssl
import threading

import https_server
import pod_objects as make
import pytest
import small_kubelet
from https_server import JSON, SECONDS, WANTED

from pyvgpu.controller.certs import certificates, serving_certificate
from pyvgpu.controller.webhook import review, transform
from pyvgpu.controller.webhook.shell import server
from pyvgpu.http import tls_server


def broken(request):
    raise ZeroDivisionError


def refusing(request):
    return review.Review(refusal="not here")


ROUTES = {
    "/sidecars": transform.mutation(transform.Admission(), lambda: None),
    "/broken": broken,
    "/refusing": refusing,
}


def made_of(routes):
    return https_server.HttpsServer(
        lambda address, *more: server.WebhookServer(address, routes, *more)
    )


@pytest.fixture
def running():
    made = made_of(ROUTES)
    yield made
    made.close()


@pytest.fixture
def client(running):
    made = running.connect()
    yield made
    made.close()


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
    response = post(client, make.asked(job()))
    assert response["allowed"]
    changed = small_kubelet.apply(job(), json.loads(base64.b64decode(response["patch"])))
    assert changed["metadata"]["labels"] == {"pyvgpu.io/sidecars": "managed"}
    assert changed["spec"]["containers"][1]["command"] == ["$(START_COMMAND_0)"]


def test_a_pod_that_was_changed_is_not_changed_again(client):
    first = post(client, make.asked(job()))
    changed = small_kubelet.apply(job(), json.loads(base64.b64decode(first["patch"])))
    assert post(client, make.asked(changed)) == {"uid": "u-1", "allowed": True}


def test_a_dry_run_gets_the_same_answer(client):
    assert post(client, make.asked(job(), dryRun=True)) == post(client, make.asked(job()))


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
def test_other_objects_are_admitted_unchanged(client, more):
    assert post(client, make.asked(job(), **more)) == {"uid": "u-1", "allowed": True}


def test_a_failed_mutation_admits_the_object(client, running):
    response = post(client, make.asked(job()), "/broken")
    assert response["allowed"]
    assert response["warnings"]
    assert post(client, make.asked(job()))["patch"]  # the next request is served
    assert running.count(2) == [("/broken", "failed"), ("/sidecars", "changed")]


def test_a_malformed_pod_is_admitted(client):
    nonsense = {"spec": {"containers": [7, {"env": 7}], "restartPolicy": []}, "metadata": {}}
    assert post(client, make.asked(nonsense))["allowed"]


def test_a_mutation_may_refuse(client):
    response = post(client, make.asked(job()), "/refusing")
    assert (response["allowed"], response["status"]["message"]) == (False, "not here")


def test_a_pod_of_3_mib_is_answered(client):
    pod = job()
    pod["metadata"]["annotations"] = {"a": "<" * (3 << 20)}
    response = post(client, make.asked(pod))
    assert "no room" in response["warnings"][0]


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "code"),
    [
        ("POST", "/sidecars", b"garbage", JSON, 400),
        ("POST", "/sidecars", b"{}", JSON, 400),
        ("POST", "/elsewhere", b"{}", JSON, 404),
        ("POST", "/sidecars", b"{}", {"Content-Type": "text/html"}, 415),
        ("POST", "/sidecars", b"", JSON | {"Content-Length": str(1 << 40)}, 413),
        ("POST", "/sidecars", b"", JSON | {"Content-Length": "9" * 5000}, 400),
        ("POST", "/sidecars", b"", JSON | {"Content-Length": "-1"}, 400),
        ("POST", "/sidecars", b"", JSON | {"Transfer-Encoding": "chunked"}, 411),
        ("GET", "/sidecars", None, {}, 405),
        ("GET", "/", None, {}, 404),
        ("TRACE", "/sidecars", None, {}, 501),
    ],
)
def test_an_invalid_http_request_is_refused(running, method, path, body, headers, code):
    client = running.connect()
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
    fresh = running.connect()
    assert post(fresh, make.asked(job()))["patch"]
    fresh.close()


def test_a_silent_connection_does_not_block_others(running):
    silent = [socket.create_connection(running.address) for _ in range(20)]
    client = running.connect()
    assert post(client, make.asked(job()))["patch"]
    for connection in (*silent, client):
        connection.close()


def test_a_silent_connection_is_closed_after_a_timeout(monkeypatch):
    monkeypatch.setattr(tls_server, "HANDSHAKE_SECONDS", 0.1)
    with (
        contextlib.closing(made_of(ROUTES)) as running,
        socket.create_connection(running.address, timeout=SECONDS) as silent,
    ):
        assert silent.recv(1) == b""


SILENT = {
    "before the handshake": lambda running: socket.create_connection(running.address),
    "after it": lambda running: running.connect().sock,
}


@pytest.mark.slow
@pytest.mark.parametrize("silent", SILENT.values(), ids=SILENT)
def test_the_longest_silent_connection_is_closed_for_a_new_one(running, silent):
    with contextlib.ExitStack() as stack:
        for _ in range(tls_server.MOST_CONNECTIONS + 8):
            stack.enter_context(contextlib.closing(silent(running)))
        client = stack.enter_context(contextlib.closing(running.connect()))
        assert post(client, make.asked(job()))["patch"]


def test_a_connection_beyond_the_limit_is_rejected_while_all_are_busy(monkeypatch):
    monkeypatch.setattr(tls_server, "MOST_CONNECTIONS", 2)
    entered, go_on = threading.Semaphore(0), threading.Event()

    def wait(request):
        entered.release()
        assert go_on.wait(SECONDS)
        return review.Review()

    with contextlib.closing(made_of({"/wait": wait})) as running, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(contextlib.closing(running.connect())) for _ in range(2)]
        for client in clients:
            client.request("POST", "/wait", json.dumps(make.asked(job())), JSON)
            assert entered.acquire(timeout=SECONDS)
        with pytest.raises((ConnectionError, ssl.SSLError)):
            running.connect()
        go_on.set()
        assert [client.getresponse().status for client in clients] == [200, 200]
        late = stack.enter_context(contextlib.closing(running.connect()))
        late.request("POST", "/wait", json.dumps(make.asked(job())), JSON)
        assert late.getresponse().status == 200


def test_a_new_certificate_applies_to_new_connections(running, client):
    old = running.bundle
    running.bundle = certificates.make(WANTED, serving_certificate.utc(), old)
    assert post(client, make.asked(job()))["patch"]  # the existing connection
    with pytest.raises(ssl.SSLCertVerificationError):
        running.connect(old.authorities)
    fresh = running.connect()  # trusts the old and the new certificate
    assert post(fresh, make.asked(job()))["patch"]
    fresh.close()


def test_connections_are_closed_before_shutdown(running, client):
    running.listener.draining = True
    client.request("POST", "/sidecars", json.dumps(make.asked(job())), JSON)
    answer = client.getresponse()
    assert (answer.status, answer.getheader("Connection")) == (200, "close")
    answer.read()
