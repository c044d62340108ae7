"""Requests to the API server: errors, retries, credentials, time limits."""

import contextlib
import datetime
import json
import socket
import threading

import pytest
import waiting

from pyvgpu.kube import apiserver, backoff

POD = "/api/v1/namespaces/n/pods/p"


@pytest.mark.row(16)
@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        pytest.param("7", 7.0, id="seconds"),
        pytest.param("Sun, 06 Nov 1994 08:49:37 GMT", 0.0, id="a date that has passed"),
        pytest.param("", None, id="empty"),
        pytest.param("soon", None, id="a word"),
        pytest.param("\xb2", None, id="a digit of another kind"),
    ],
)
def test_retry_after_is_read_from_the_response(small, said, seconds):
    api, connection = small
    api.failing, api.retry_after = [429], said
    with pytest.raises(apiserver.ServerError) as raised:
        connection.call("GET", POD)
    assert (raised.value.status, raised.value.retry_after) == (429, seconds)


@pytest.mark.parametrize("content", [None, ""])
def test_an_unreadable_token_is_an_error_without_a_status(small, tmp_path, content):
    from kubernetes.config import incluster_config

    token, asked = tmp_path / "token", []
    client = small[1]._client
    token.write_text("a token")
    at = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    loader = incluster_config.InClusterConfigLoader(str(token), str(token), environ=at)
    loader._token_refresh_period = datetime.timedelta(0)
    loader.load_and_set(client.configuration)
    if content is None:
        token.unlink()
    else:
        token.write_text(content)
    api = apiserver.ApiServer(client, lambda *request: asked.append(request[:2]))
    with pytest.raises(
        apiserver.ServerError, match=f"GET {POD}: .*(/token: no such file|empty)"
    ) as raised:
        api.call("GET", POD)
    assert raised.value.status == 0
    assert asked == [("GET", 0)]


@pytest.mark.parametrize("content", ["<html>sign in</html>", "[]", "{}"])
def test_a_response_that_is_not_a_list_is_an_error(small, content):
    api, connection = small
    api.texts["/api/v1/pods"] = content
    with pytest.raises(apiserver.ServerError, match="GET /api/v1/pods: the response is not"):
        connection.items("/api/v1/pods", {})
    if content != "{}":
        with pytest.raises(apiserver.ServerError, match="GET /api/v1/pods: the response is not"):
            connection.call("GET", "/api/v1/pods")


HEAD = b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"a"}'


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(HEAD + b',"items":[]}', id="as the API server writes it"),
        pytest.param(b'{"metadata": {"continue": "x", "more": {}}}', id="otherwise"),
        pytest.param(b'{"items": [%s}]}' % HEAD, id="in an item"),
    ],
)
def test_continue_token_is_read_only_from_the_head_of_a_page(content):
    found = apiserver._HEAD.match(content)
    assert (json.loads(found[1])["continue"] if found else None) == (
        "a" if content.startswith(HEAD) else None
    )


class Pages(apiserver.ApiServer):
    """Answers each request for a page from *texts*."""

    def __init__(self, *texts):
        super().__init__(None)
        self._texts = list(texts)

    def _read(self, request):
        return self._texts.pop(0)


LAST = b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"}'


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param([HEAD + b',"items":[1,2]}', LAST + b',"items":[3]}'], id="compact"),
        pytest.param([LAST + b' , "items": [ 1 , 2,\n3 ] }\n'], id="spaces"),
        pytest.param([HEAD + b',"items":[]}', LAST + b',"items":[1,2,3]}'], id="an empty page"),
        pytest.param([b'{"items":[1,2,3],%s' % LAST[1:] + b"}"], id="items first"),
        pytest.param([HEAD + b',"items":[1,2,3]}', LAST + b',"items":null}'], id="no items"),
    ],
)
def test_objects_of_a_list_are_decoded_one_by_one(texts):
    assert list(Pages(*texts).each("/api/v1/pods", {})) == [1, 2, 3]


@pytest.mark.parametrize("rest", [b',"items":[1,', b',"items":[1,2', b',"items":[1,\xff]}'])
def test_objects_of_a_malformed_page_are_an_error(rest):
    with pytest.raises(apiserver.ServerError, match="GET /api/v1/pods: the response is not JSON"):
        list(Pages(LAST + rest).each("/api/v1/pods", {}))


def test_an_object_is_decoded_when_it_is_due(monkeypatch):
    decoded = []
    found = apiserver._DECODER.raw_decode
    monkeypatch.setattr(apiserver, "_DECODER", Recorder(decoded, found))
    objects = Pages(LAST + b',"items":[1,2,3]}').each("/api/v1/pods", {})
    assert [(one, len(decoded)) for one in objects] == [(1, 1), (2, 2), (3, 3)]


class Recorder:
    """Records what it decodes."""

    def __init__(self, decoded, decode):
        self._decoded, self._decode = decoded, decode

    def raw_decode(self, text, at):
        self._decoded.append(at)
        return self._decode(text, at)


@pytest.mark.slow
@pytest.mark.row(16)
@pytest.mark.row(17)
def test_requests_to_a_silent_server_time_out(monkeypatch):
    from kubernetes import client

    monkeypatch.setattr(apiserver, "_SECONDS", 0.2)
    monkeypatch.setattr(apiserver, "_SILENT_SECONDS", 0.2)
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = client.Configuration(host=f"http://127.0.0.1:{listener.getsockname()[1]}")
        connection = client.ApiClient(settings)
        api = apiserver.ApiServer(connection, lambda *request: asked.append(request))
        with pytest.raises(apiserver.ServerError) as raised:
            api.call("GET", POD)
        assert raised.value.status == 0
        with pytest.raises(apiserver.ServerError):
            list(api.watch("/api/v1/pods", {}, "1", 300))
        connection.rest_client.pool_manager.clear()
    assert [(method, status) for method, status, _ in asked] == [("GET", 0), ("GET", 0)]


@contextlib.contextmanager
def answering(content):
    """Yield a connection to a server that sends *content* to each client, and hangs up."""
    from kubernetes import client

    def serve(listener):
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                accepted, _ = listener.accept()
                with accepted:
                    accepted.recv(1 << 16)
                    accepted.sendall(content)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        settings = client.Configuration(host=f"http://127.0.0.1:{listener.getsockname()[1]}")
        connection = client.ApiClient(settings)
        try:
            yield apiserver.ApiServer(connection)
        finally:
            connection.rest_client.pool_manager.clear()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("head", "body", "status"),
    [
        pytest.param("500 No\r\nContent-Length: 9", "{}", 500, id="an error breaks off"),
        pytest.param("500 No\r\nTransfer-Encoding: chunked", "zz", 500, id="its chunks do"),
        pytest.param("429 No\r\nContent-Length: 2", "[]", 429, id="an error of another form"),
        pytest.param("200 OK\r\nContent-Length: 9", "{}", 0, id="a response breaks off"),
        pytest.param("200 OK\r\nContent-Length: 4", "[1]\n", 0, id="a list"),
        pytest.param("200 OK\r\nContent-Length: 18", '{"type": "ADDED"}\n', 0, id="no object"),
    ],
)
def test_a_broken_or_malformed_response_is_an_error_of_the_server(head, body, status):
    with answering(f"HTTP/1.1 {head}\r\nConnection: close\r\n\r\n{body}".encode()) as api:
        with pytest.raises(apiserver.ServerError) as raised:
            api.items(POD, {})
        assert raised.value.status == status
        with pytest.raises(apiserver.ServerError) as raised:
            list(api.watch(POD, {}, "1", 5))
        assert raised.value.status == status


def patient(small, **more):
    """Return a connection to the same API server that retries."""
    return apiserver.ApiServer(small[1]._client, retry_seconds=60.0, **more)


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.001)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("method", "codes", "after", "times"),
    [
        pytest.param("GET", [429, 503, 500], "", 4, id="a read"),
        pytest.param("PATCH", [429, 429], "", 3, id="too many requests"),
        pytest.param("PATCH", [503, 504], "0", 3, id="Retry-After"),
    ],
)
def test_deferred_requests_are_retried(small, method, codes, after, times):
    api = small[0]
    api.put(POD, {"metadata": {"name": "p"}})
    api.failing, api.retry_after = list(codes), after
    found = patient(small).call(method, POD, body={}, kind=apiserver.MERGE_PATCH)
    assert found["metadata"]["name"] == "p"
    assert api.asked.count((method, POD)) == times


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("method", "code"),
    [
        pytest.param("PATCH", 500, id="possibly executed"),
        pytest.param("PATCH", 0, id="no response"),
        pytest.param("GET", 0, id="no response to a read: the outage may be long"),
        pytest.param("GET", 403, id="forbidden"),
        pytest.param("PATCH", 409, id="a conflict, which the caller resolves"),
        pytest.param("PATCH", 422, id="invalid"),
    ],
)
def test_refused_and_possibly_executed_requests_are_not_retried(small, method, code):
    api = small[0]
    api.put(POD, {"metadata": {"name": "p"}})
    api.failing = [code]
    with pytest.raises(apiserver.ServerError) as raised:
        patient(small).call(method, POD, body={}, kind=apiserver.MERGE_PATCH)
    assert raised.value.status == code
    assert api.asked.count((method, POD)) == 1


def test_a_retry_that_exceeds_the_patience_is_not_made(small):
    api = small[0]
    api.failing, api.retry_after = [429], "3600"
    with pytest.raises(apiserver.ServerError):
        patient(small).call("GET", POD)
    assert api.asked.count(("GET", POD)) == 1


def test_refused_credentials_are_reloaded_once(small):
    api, renewed = small[0], []

    def renew():
        from kubernetes import client

        renewed.append(
            client.ApiClient(client.Configuration(host=small[1]._client.configuration.host))
        )
        return renewed[-1]

    api.put(POD, {"metadata": {"name": "p"}})
    connection = patient(small, renew=renew)
    api.failing = [401]
    assert connection.call("GET", POD)["metadata"]["name"] == "p"
    api.failing = [401]
    with pytest.raises(apiserver.ServerError) as raised:  # they were reloaded just before
        connection.call("GET", POD)
    assert raised.value.status == 401
    assert len(renewed) == 1
    connection.close()


def test_end_watches_ends_open_watches(small):
    api, connection = small
    ended = []

    def watch():
        with pytest.raises(apiserver.ServerError):
            list(connection.watch("/api/v1/pods", {}, "0", 300))
        ended.append(True)

    thread = threading.Thread(target=watch)
    thread.start()
    api.wait_for("WATCH", "/api/v1/pods")
    waiting.wait_until(lambda: connection._watches)
    connection.end_watches()
    thread.join()
    assert ended
    with pytest.raises(apiserver.ServerError, match="watching has ended"):
        list(connection.watch("/api/v1/pods", {}, "0", 300))
