"""Requests to the API server, and what comes of those that it does not answer as they wish."""

import datetime
import json
import socket

import pytest

from pyvgpu.controller import server

POD = "/api/v1/namespaces/n/pods/p"


@pytest.mark.row(16)
@pytest.mark.parametrize(("said", "seconds"), [("7", 7.0), ("", None), ("soon", None)])
def test_how_long_to_wait_is_the_servers_to_say(small, said, seconds):
    api, connection = small
    api.failing, api.retry_after = [429], said
    with pytest.raises(server.ServerError) as raised:
        connection.call("GET", POD)
    assert (raised.value.status, raised.value.retry_after) == (429, seconds)


@pytest.mark.parametrize("content", [None, ""])
def test_a_token_that_cannot_be_read_is_no_answer(small, tmp_path, content):
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
    api = server.Server(client, lambda *told: asked.append(told[:2]))
    with pytest.raises(server.ServerError, match=f"GET {POD}: .*(No such file|empty)") as raised:
        api.call("GET", POD)
    assert raised.value.status == 0
    assert asked == [("GET", 0)]


HEAD = b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"a"}'


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(HEAD + b',"items":[]}', id="as the API server writes it"),
        pytest.param(b'{"metadata": {"continue": "x", "more": {}}}', id="otherwise"),
        pytest.param(b'{"items": [%s}]}' % HEAD, id="in an item"),
    ],
)
def test_what_comes_next_is_read_at_the_head_of_a_page_or_not_at_all(content):
    found = server._HEAD.match(content)
    assert (json.loads(found[1])["continue"] if found else None) == (
        "a" if content.startswith(HEAD) else None
    )


@pytest.mark.row(16)
@pytest.mark.row(17)
def test_a_server_that_never_answers_is_given_up(monkeypatch):
    from kubernetes import client

    monkeypatch.setattr(server, "_SECONDS", 0.2)
    monkeypatch.setattr(server, "_SILENT_SECONDS", 0.2)
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = client.Configuration(host=f"http://127.0.0.1:{listener.getsockname()[1]}")
        connection = client.ApiClient(settings)
        api = server.Server(connection, lambda *told: asked.append(told))
        with pytest.raises(server.ServerError) as raised:
            api.call("GET", POD)
        assert raised.value.status == 0
        with pytest.raises(server.ServerError):
            list(api.watch("/api/v1/pods", {}, "1", 300))
        connection.rest_client.pool_manager.clear()
    assert [(method, status) for method, status, _ in asked] == [("GET", 0), ("GET", 0)]
