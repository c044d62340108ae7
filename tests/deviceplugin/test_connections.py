"""Questions go over connections that are kept; what changes anything has one of its own."""

import concurrent.futures
import http.server
import threading

import pytest
from waiting import PROMPT

from pyvgpu.deviceplugin import apiserver, connections


class Server:
    """An HTTP server that counts who connects, and hangs up when it is told to."""

    def __init__(self):
        self.connected = self.busy = self.most = 0
        self.heard = []
        self.hangs_up = self.drops = False
        self.changing = threading.Lock()
        self.gate = threading.Event()
        self.gate.set()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                super().setup()
                with server.changing:
                    server.connected += 1

            def answer(self):
                with server.changing:
                    server.heard.append((self.command, self.path))
                    server.busy += 1
                    server.most = max(server.most, server.busy)
                assert server.gate.wait(PROMPT)
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with server.changing:
                    server.busy -= 1
                if server.drops:
                    self.close_connection = True
                    return
                self.send_response(200)
                self.send_header("Content-Length", "13")
                self.end_headers()
                self.wfile.write(b'{"well":true}')
                self.close_connection = server.hangs_up

            do_GET = do_PATCH = do_POST = answer  # noqa: N815

            def log_message(self, *_):
                pass

        self.listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.api = apiserver.ApiServer(f"127.0.0.1:{self.listening.server_port}", None, lambda: "")


@pytest.fixture
def server():
    made = Server()
    with made.listening as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield made
        made.api = None  # so that whoever serves its connections ends
        listening.shutdown()
        thread.join()


def test_who_has_closed_its_connection_asks_over_another(server):
    for number in (1, 2):
        assert server.api.call("GET", "/a") == {"well": True}
        assert server.connected == number
        server.api.close()


def test_questions_share_a_connection_and_changes_have_their_own(server):
    for _ in range(5):
        assert server.api.call("GET", "/a", {"b": "c"}) == {"well": True}
    assert server.connected == 1
    for number in (2, 3):
        server.api.call("PATCH", "/a", body={})
        assert server.connected == number
    server.api.call("GET", "/a")
    assert server.connected == 3


def test_what_may_be_done_twice_goes_over_a_connection_that_is_kept(server):
    for _ in range(3):
        server.api.call("PATCH", "/a", body={}, again=True)
        server.api.call("GET", "/a")
    assert server.connected == 1


@pytest.mark.parametrize("how", [("GET", None), ("PATCH", {})], ids=lambda it: it[0])
def test_what_may_be_said_twice_is_where_the_server_had_hung_up(server, how):
    method, body = how
    server.hangs_up = True
    for number in (1, 2, 3):
        server.api.call(method, "/a", body=body, again=True)
        assert (server.connected, len(server.heard)) == (number, number)


def test_what_is_never_answered_is_said_and_a_change_is_not_sent_twice(server):
    server.drops = True
    for method in ("GET", "PATCH", "POST"):
        with pytest.raises(apiserver.ServerError, match=f"{method} /a: Remote end closed"):
            server.api.call(method, "/a")
    assert [it for it, _ in server.heard] == ["GET", "PATCH", "POST"]


def test_few_are_asked_at_once_and_their_connections_serve_the_others(server):
    server.gate.clear()
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(server.api.call, "GET", "/a") for _ in range(20)]
        threading.Timer(0.2, server.gate.set).start()
        assert all(it.result(PROMPT) == {"well": True} for it in asked)
    assert server.most <= connections.AT_ONCE
    assert server.connected <= connections.AT_ONCE


def test_a_connection_that_was_idle_too_long_is_not_used(server, monkeypatch):
    server.api.call("GET", "/a")
    monkeypatch.setattr(connections, "KEPT_SECONDS", -1.0)
    server.api.call("GET", "/a")
    assert server.connected == 2
    assert len(server.api._connections._kept) == 1
