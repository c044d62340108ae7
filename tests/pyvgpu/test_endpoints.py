"""HTTP server for metrics and health: pages, limits, recovery."""

import asyncio
import contextlib
import errno
import http.client
import re
import socket
import struct
import threading

import crowded
import pytest
import waiting

from pyvgpu import errors
from pyvgpu.http import endpoints, http_server


def ask(port, path, method="GET", host="127.0.0.1"):
    connection = http.client.HTTPConnection(host, port, timeout=30)
    connection.request(method, path)
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, content


@pytest.fixture
def served():
    says = {"alive": "", "ready": ""}
    shown = endpoints.Pages(lambda: b"up 1\n", lambda: says["alive"], lambda: says["ready"])
    with endpoints.serving("0", shown) as port:
        yield port, says


def test_metrics_and_health(served):
    port, _ = served
    assert ask(port, "/metrics") == (200, "up 1\n")
    assert ask(port, "/healthz") == ask(port, "/readyz?verbose") == (200, "ok\n")


def test_ask_reads_at_most_the_given_bytes(served):
    where = ("127.0.0.1", served[0])
    answer = endpoints.ask(where, "/metrics", waiting.PROMPT, 4)
    assert (answer.code, answer.kind, answer.content) == (200, endpoints.FIGURES, b"up 1")


def test_refused_connection_raises_unavailable():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(errors.UnavailableError, match="^connection refused$"):
            endpoints.ask(closed.getsockname(), "/metrics", waiting.PROMPT, 4)


def test_readyz_fails_with_the_reason_while_healthz_succeeds(served):
    port, says = served
    says["ready"] = "has not read the pods"
    assert ask(port, "/readyz") == (503, "has not read the pods\n")
    assert ask(port, "/healthz")[0] == 200


def test_readyz_fails_when_healthz_fails(served):
    port, says = served
    says["alive"] = "a thread has died"
    assert ask(port, "/healthz") == ask(port, "/readyz") == (503, "a thread has died\n")


def test_an_unreadable_file_of_a_page_is_an_internal_error(caplog):
    def fail():
        raise FileNotFoundError("a figure's file")

    with endpoints.serving("0", endpoints.Pages(fail)) as port:
        assert ask(port, "/metrics")[0] == 500
    assert caplog.messages == ["could not answer /metrics"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_other_methods_are_refused(served, method):
    assert ask(served[0], "/metrics", method)[0] == 501


def test_other_pages_are_not_found_and_head_has_no_body(served):
    port, _ = served
    assert ask(port, "/")[0] == 404
    assert ask(port, "/../etc/passwd")[0] == 404
    assert ask(port, "/metrics", "HEAD") == (200, "")


def test_a_silent_client_does_not_block_others(served):
    port, _ = served
    with socket.create_connection(("127.0.0.1", port)):
        assert ask(port, "/healthz")[0] == 200


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET /metr", id="half a line"),
        pytest.param(b"GET /metrics HTTP/1.1\r\nHost: node", id="half a header"),
        pytest.param(b"GET /metrics HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", id="keep-alive"),
    ],
)
def test_idle_connections_are_closed_for_new_clients(served, said):
    port, _ = served
    with contextlib.ExitStack() as stack:
        for _ in range(3 * endpoints.MOST_READERS):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            with contextlib.suppress(OSError):  # it may be closed already
                idle.sendall(said)
            assert ask(port, "/healthz") == (200, "ok\n")


@pytest.mark.slow
def test_clients_that_do_not_read_are_closed_for_new_clients():
    shown = endpoints.Pages(lambda: bytes(32 << 20))
    with endpoints.serving("0", shown) as port, contextlib.ExitStack() as stack:
        for _ in range(endpoints.MOST_READERS):
            lazy = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            lazy.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert lazy.recv(1)
        assert ask(port, "/healthz") == (200, "ok\n")


def test_an_aborted_connection_is_not_logged(served, caplog, capfd):
    port, _ = served
    with socket.create_connection(("127.0.0.1", port)) as rude:
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        rude.sendall(b"GET /met")
    assert ask(port, "/healthz")[0] == 200
    assert (caplog.text, capfd.readouterr().err) == ("", "")


def test_a_program_may_have_more_pages():
    more = {"/usage": endpoints.Page(endpoints.JSON, lambda: b"{}")}
    with endpoints.serving("0", endpoints.Pages(lambda: b"", more=more)) as port:
        assert ask(port, "/usage") == (200, "{}")
        assert ask(port, "/")[1] == "there are /metrics, /healthz, /readyz, /usage\n"


def test_an_error_of_one_page_is_logged_and_the_others_work(caplog):
    with endpoints.serving("0", endpoints.Pages(lambda: 1 / 0)) as port:
        assert ask(port, "/metrics") == (500, "internal error, see the log\n")
        assert ask(port, "/healthz")[0] == 200
    assert caplog.messages == ["could not answer /metrics"]


def test_concurrent_requests_are_limited():
    entered, go_on = threading.Semaphore(0), threading.Event()

    def wait():
        entered.release()
        assert go_on.wait(30)
        return b"up 1\n"

    with endpoints.serving("0", endpoints.Pages(wait)) as port:
        asking = [
            threading.Thread(target=ask, args=(port, "/metrics"))
            for _ in range(endpoints.MOST_READERS)
        ]
        for thread in asking:
            thread.start()
        for _ in asking:
            assert entered.acquire(timeout=30)
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(port, "/metrics")
        go_on.set()
        for thread in asking:
            thread.join()
        waiting.wait_until(lambda: answers(port))


def answers(port):
    try:
        return ask(port, "/metrics") == (200, "up 1\n")
    except (OSError, http.client.HTTPException):
        return False


def test_without_an_address_nothing_listens():
    with endpoints.serving(None, endpoints.Pages(lambda: b"")) as port:
        assert port == 0


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9470", ("127.0.0.1", 9470)),
        ("0.0.0.0:9470", ("0.0.0.0", 9470)),
        ("[::]:9470", ("::", 9470)),
        ("node-1:80", ("node-1", 80)),
    ],
)
def test_addresses(text, address):
    assert endpoints.read_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "9470x", ":9470", "70000", "::1:9470", "a:", "-1", "٣"])
def test_invalid_addresses_are_refused(text):
    with pytest.raises(errors.UsageError, match="such as 5678"):
        endpoints.read_address(text)


def test_address_of_ipv6_is_in_brackets_where_it_is_refused():
    shown = endpoints.Pages(lambda: b"")
    with endpoints.serving("[::1]:0", shown) as port:
        at = f"[::1]:{port}"
        with (
            pytest.raises(errors.UnavailableError, match=re.escape(f"--listen {at}: ")),
            endpoints.serving(at, shown),
        ):
            pass


def test_an_address_in_use_is_refused():
    shown = endpoints.Pages(lambda: b"")
    with (
        endpoints.serving("0", shown) as port,
        pytest.raises(errors.UnavailableError, match="use another port"),
        endpoints.serving(str(port), shown),
    ):
        pass


def test_an_address_of_another_machine_is_refused():
    rule = r"203.0.113.1:5678: .*; must be an address of this machine, such as 127.0.0.1:5678$"
    with (
        pytest.raises(errors.UnavailableError, match=rule),
        endpoints.serving("203.0.113.1:5678", endpoints.Pages(lambda: b"")),
    ):
        pass


def test_serving_resumes_when_file_descriptors_are_available():
    with crowded.starved("http") as (starved, port):
        assert ask(int(port), "/metrics") == (200, "figures")
        said, _ = starved.report()
    assert sum("cannot accept connections at 127.0.0.1" in line for line in said) == 1


def test_without_file_descriptors_the_server_pauses_and_can_be_stopped(monkeypatch):
    monkeypatch.setattr(http_server, "PAUSE_SECONDS", 3600)
    tried = []

    async def exhausted(_loop, _listening):
        tried.append(None)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio.selector_events.BaseSelectorEventLoop, "sock_accept", exhausted)
    service = http_server.Service(lambda _: 0, lambda *_: http_server.HttpResponse(b""))
    with http_server.HttpServer(("127.0.0.1", 0), service, http_server.ServerLimits(4)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with socket.create_connection(server.server_address):
            waiting.wait_until(lambda: tried)
            server.shutdown()
        thread.join(waiting.PROMPT)
        assert not thread.is_alive()
        assert len(tried) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_every_address_is_that_of_both_families(host):
    shown = endpoints.Pages(lambda: b"", str, str)
    with endpoints.serving("[::]:0", shown) as port:
        assert ask(port, "/healthz", host=host) == (200, "ok\n")


def test_every_address_is_that_of_ipv4_if_the_kernel_has_no_ipv6(monkeypatch):
    create = socket.create_server

    def without_ipv6(address, *, family, **more):
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return create(address, family=family, **more)

    monkeypatch.setattr(socket, "create_server", without_ipv6)
    shown = endpoints.Pages(lambda: b"", str, str)
    with endpoints.serving("[::]:0", shown) as port:
        assert endpoints.ask(("127.0.0.1", port), "/healthz", 5.0, 100).code == 200
