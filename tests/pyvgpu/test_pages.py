"""What is answered about figures and health, and to whom."""

import asyncio
import contextlib
import errno
import http.client
import socket
import struct
import threading

import crowded
import pytest
import waiting

from pyvgpu import errors, httpserver, pages


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
    shown = pages.Pages(lambda: b"up 1\n", lambda: says["alive"], lambda: says["ready"])
    with pages.serving("0", shown) as port:
        yield port, says


def test_figures_are_there_and_all_is_well(served):
    port, _ = served
    assert ask(port, "/metrics") == (200, "up 1\n")
    assert ask(port, "/healthz") == ask(port, "/readyz?verbose") == (200, "ok\n")


def test_one_of_our_programs_asks_another_and_reads_so_much(served):
    where = ("127.0.0.1", served[0])
    answer = pages.ask(where, "/metrics", waiting.PROMPT, 4)
    assert (answer.code, answer.kind, answer.content) == (200, pages.FIGURES, b"up 1")


def test_where_nobody_answers_is_said_to_who_asks():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(errors.UnavailableError, match="refused"):
            pages.ask(closed.getsockname(), "/metrics", waiting.PROMPT, 4)


def test_who_is_not_ready_says_why_and_is_not_restarted(served):
    port, says = served
    says["ready"] = "has not read the pods"
    assert ask(port, "/readyz") == (503, "has not read the pods\n")
    assert ask(port, "/healthz")[0] == 200


def test_who_is_not_well_is_not_ready_either(served):
    port, says = served
    says["alive"] = "a thread has died"
    assert ask(port, "/healthz") == ask(port, "/readyz") == (503, "a thread has died\n")


def test_a_file_that_a_page_cannot_read_is_a_fault_of_ours(caplog):
    def fail():
        raise FileNotFoundError("a figure's file")

    with pages.serving("0", pages.Pages(fail)) as port:
        assert ask(port, "/metrics")[0] == 500
    assert caplog.messages == ["could not answer /metrics"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_nothing_can_be_changed(served, method):
    assert ask(served[0], "/metrics", method)[0] == 501


def test_other_pages_are_not_there_and_head_has_no_body(served):
    port, _ = served
    assert ask(port, "/")[0] == 404
    assert ask(port, "/../etc/passwd")[0] == 404
    assert ask(port, "/metrics", "HEAD") == (200, "")


def test_a_reader_who_says_nothing_holds_nobody(served):
    port, _ = served
    with socket.create_connection(("127.0.0.1", port)):
        assert ask(port, "/healthz")[0] == 200


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET /metr", id="half a line"),
        pytest.param(b"GET /metrics HTTP/1.1\r\nHost: node", id="half a header"),
        pytest.param(b"GET /metrics HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", id="keeps it"),
    ],
)
def test_readers_who_keep_their_places_make_room_for_who_asks(served, said):
    port, _ = served
    with contextlib.ExitStack() as stack:
        for _ in range(3 * pages.MOST_READERS):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            with contextlib.suppress(OSError):  # it had to make room already
                idle.sendall(said)
            assert ask(port, "/healthz") == (200, "ok\n")


def test_readers_who_do_not_read_make_room_for_who_asks():
    shown = pages.Pages(lambda: bytes(32 << 20))
    with pages.serving("0", shown) as port, contextlib.ExitStack() as stack:
        for _ in range(pages.MOST_READERS):
            lazy = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            lazy.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert lazy.recv(1)
        assert ask(port, "/healthz") == (200, "ok\n")


def test_who_leaves_in_between_is_no_news(served, caplog, capfd):
    port, _ = served
    with socket.create_connection(("127.0.0.1", port)) as rude:
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        rude.sendall(b"GET /met")
    assert ask(port, "/healthz")[0] == 200
    assert (caplog.text, capfd.readouterr().err) == ("", "")


def test_a_program_may_have_more_pages():
    more = {"/usage": pages.Page(pages.JSON, lambda: b"{}")}
    with pages.serving("0", pages.Pages(lambda: b"", more=more)) as port:
        assert ask(port, "/usage") == (200, "{}")
        assert ask(port, "/")[1] == "there are /metrics, /healthz, /readyz, /usage\n"


def test_a_fault_in_one_page_is_logged_and_the_others_are_there(caplog):
    with pages.serving("0", pages.Pages(lambda: 1 / 0)) as port:
        assert ask(port, "/metrics") == (500, "internal error, see the log\n")
        assert ask(port, "/healthz")[0] == 200
    assert caplog.messages == ["could not answer /metrics"]


def test_so_many_may_ask_at_once_and_no_more():
    entered, go_on = threading.Semaphore(0), threading.Event()

    def wait():
        entered.release()
        assert go_on.wait(30)
        return b"up 1\n"

    with pages.serving("0", pages.Pages(wait)) as port:
        asking = [
            threading.Thread(target=ask, args=(port, "/metrics"))
            for _ in range(pages.MOST_READERS)
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
    with pages.serving(None, pages.Pages(lambda: b"")) as port:
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
    assert pages.read_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "9470x", ":9470", "70000", "::1:9470", "a:", "-1", "٣"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(errors.UsageError, match="such as 9470"):
        pages.read_address(text)


def test_an_address_that_is_taken_is_said():
    shown = pages.Pages(lambda: b"")
    with (
        pages.serving("0", shown) as port,
        pytest.raises(errors.UnavailableError, match="use another port"),
        pages.serving(str(port), shown),
    ):
        pass


def test_it_answers_again_once_there_are_file_descriptors():
    with crowded.starved("http") as (starved, port):
        assert ask(int(port), "/metrics") == (200, "figures")
        said, _ = starved.report()
    assert sum("cannot accept connections at 127.0.0.1" in it for it in said) == 1


def test_while_there_are_none_it_pauses_between_attempts_and_can_be_stopped(monkeypatch):
    monkeypatch.setattr(httpserver, "PAUSE_SECONDS", 3600)
    tried = []

    async def exhausted(_loop, _listening):
        tried.append(None)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio.selector_events.BaseSelectorEventLoop, "sock_accept", exhausted)
    service = httpserver.Service(lambda _: 0, lambda *_: httpserver.Answer(b""))
    with httpserver.Server(("127.0.0.1", 0), service, httpserver.Limits(4)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with socket.create_connection(server.server_address):
            waiting.wait_until(lambda: tried)
            server.shutdown()
        thread.join(waiting.PROMPT)
        assert not thread.is_alive()
        assert len(tried) == 1
