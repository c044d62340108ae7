"""gRPC servers on Unix sockets of the node: their socket files, limits and recovery."""

import concurrent.futures
import contextlib
import os
import socket
import stat
import threading

import crowded
import grpc
import listeners
import pytest
from waiting import PROMPT, wait_until

from pyvgpu import errors
from pyvgpu.deviceplugin import grpc_socket

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.sock"


def adding(**methods):
    """Return a function that adds these methods, of bytes and a context, to a server."""
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(method)
        if name != "Listen"
        else grpc.unary_stream_rpc_method_handler(method)
        for name, method in methods.items()
    }
    handler = grpc.method_handlers_generic_handler("test.Test", handlers)
    return lambda made: made.add_generic_rpc_handlers((handler,))


@contextlib.contextmanager
def served(path, **methods):
    made = grpc_socket.listen(path, adding(**methods))
    try:
        yield made
    finally:
        made.stop()


@contextlib.contextmanager
def called(path, **more):
    """Yield a function that calls a method by name with a request."""
    with grpc_socket.channel(path, **more) as channel:
        yield lambda name, request, timeout=PROMPT: channel.unary_unary(f"/test.Test/{name}")(
            request, timeout=timeout
        )


def test_a_server_replaces_any_existing_entry(tmp_path):
    path = tmp_path / "made" / "s.sock"
    add = adding(Call=lambda request, _: request)
    with pytest.raises(
        errors.UnavailableError, match=r"s\.sock: cannot listen there: No such file"
    ):
        grpc_socket.listen(path, add)
    first = grpc_socket.listen(path, add, folder_mode=0o700)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert first.serves()
    second = grpc_socket.listen(path, add)
    assert (first.serves(), second.serves()) == (False, True)
    first.stop()
    with called(path) as call:
        assert call("Call", b"one") == b"one"
    assert list(path.parent.iterdir()) == [path]
    path.unlink()
    assert not second.serves()
    second.stop()
    path.write_text("a file")
    with served(path) as third:
        assert third.serves()
    assert not path.exists()


def test_a_server_removes_only_its_own_socket(path):
    with served(path):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


def test_its_socket_has_the_mode_that_the_umask_leaves(path):
    before = os.umask(0o077)
    try:
        with served(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
    finally:
        os.umask(before)


def test_a_path_that_is_too_long_is_refused_and_leaves_nothing(tmp_path):
    path = tmp_path / ("s" * (108 - len(str(tmp_path))))
    with pytest.raises(errors.UnavailableError, match="listen there: AF_UNIX path too long"):
        grpc_socket.listen(path, adding())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [0, 1, 70_000, 5 << 20])
def test_messages_of_any_size_are_transferred(path, size):
    content = bytes(number % 251 for number in range(997)) * (size // 997 + 1)
    with served(path, Echo=lambda request, _: request), called(path) as call:
        assert call("Echo", content[:size]) == content[:size]


def test_a_message_that_is_too_long_is_refused_at_both_ends(path):
    with (
        served(path, Echo=lambda request, _: request),
        called(path, receive_bytes=1000) as call,
    ):
        for content in (bytes(grpc_socket.RECEIVE_BYTES + 1), bytes(1001)):
            with pytest.raises(grpc.RpcError) as failed:
                call("Echo", content)
            assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call("Echo", b"short") == b"short"


def test_waiting_calls_do_not_block_others_and_are_bounded(path, monkeypatch):
    monkeypatch.setattr(grpc_socket, "_CALLS", 30)
    begun, gate = threading.Semaphore(0), threading.Event()

    def wait(request, _):
        begun.release()
        assert gate.wait(PROMPT)
        return request

    with (
        served(path, Wait=wait, Quick=lambda asked, _: asked) as made,
        called(path) as call,
        concurrent.futures.ThreadPoolExecutor(30) as pool,
    ):
        waiting = [pool.submit(call, "Wait", b"%d" % number) for number in range(29)]
        for _ in waiting:
            assert begun.acquire(timeout=PROMPT)
        assert call("Quick", b"1") == b"1"
        waiting.append(pool.submit(call, "Wait", b"29"))
        assert begun.acquire(timeout=PROMPT)
        with pytest.raises(grpc.RpcError) as refused:
            call("Quick", b"2")
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert made.serves()  # it answers that it is busy
        gate.set()
        assert [future.result() for future in waiting] == [b"%d" % number for number in range(30)]


def test_a_client_that_does_not_read_does_not_block_others(path):
    def stream(_, context):
        while context.is_active():
            yield bytes(1 << 20)

    with (
        served(path, Listen=stream, Quick=lambda request, _: request) as made,
        grpc_socket.channel(path) as slow,
        called(path) as call,
    ):
        heard = slow.unary_stream("/test.Test/Listen")(b"")
        assert len(next(heard)) == 1 << 20
        assert call("Quick", b"1") == b"1"
        assert made.serves()


def test_stop_ends_open_streams(path):
    left = threading.Event()

    def stream(_, context):
        assert context.add_callback(left.set)
        yield b"one"
        assert left.wait(PROMPT)

    with grpc_socket.channel(path) as channel:
        with served(path, Listen=stream):
            heard = channel.unary_stream("/test.Test/Listen")(b"")
            assert next(heard) == b"one"
        with pytest.raises(grpc.RpcError) as failed:
            next(heard)
        assert failed.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert left.wait(PROMPT)
    assert not path.exists()


def test_a_server_stops_though_a_call_does_not_return(path):
    begun, gate = threading.Event(), threading.Event()

    def wait(*_):
        begun.set()
        assert gate.wait(PROMPT)
        return b""

    with grpc_socket.channel(path) as channel:
        with served(path, Wait=wait):
            waiting = channel.unary_unary("/test.Test/Wait").future(b"", timeout=PROMPT)
            assert begun.wait(PROMPT)
        assert waiting.exception(PROMPT).code() is not grpc.StatusCode.DEADLINE_EXCEEDED
    gate.set()


def test_each_channel_connects_to_the_current_server(path):
    with called(path) as call, pytest.raises(grpc.RpcError, match="No such file"):
        call("Call", b"")
    with served(path, Call=lambda *_: b"first"), called(path) as call:
        assert call("Call", b"") == b"first"
    with served(path, Call=lambda *_: b"second"), called(path) as call:
        assert call("Call", b"") == b"second"


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP/1"),
        pytest.param(PREFACE + b"\xff" * 64, id="a frame that is too long"),
        pytest.param(PREFACE[:9], id="cut short"),
    ],
)
def test_a_client_that_does_not_speak_http2_does_not_affect_others(path, said):
    with served(path, Echo=lambda request, _: request) as made, called(path) as call:
        with socket.socket(socket.AF_UNIX) as theirs:
            theirs.settimeout(PROMPT)
            theirs.connect(str(path))
            with contextlib.suppress(BrokenPipeError):
                theirs.sendall(said)
                theirs.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                while theirs.recv(65536):
                    pass
        assert call("Echo", b"x") == b"x"
        assert made.serves()


def test_connections_that_are_aborted_before_they_are_accepted_do_not_end_serving(path):
    with served(path, Echo=lambda request, _: request) as made, called(path) as call:
        for _ in range(200):
            with socket.socket(socket.AF_UNIX) as theirs:
                theirs.connect(str(path))
        assert made.serves()
        assert call("Echo", b"x") == b"x"


@pytest.mark.slow
def test_serving_resumes_when_file_descriptors_are_available(path):
    with (
        crowded.starved("grpc", str(path)) as (starved, _),
        grpc_socket.channel(path) as channel,
    ):
        waiting = channel.unary_unary("/test.Test/Call").future(b"", timeout=PROMPT)
        starved.problem()  # grpcio's own, that it could not accept the connection
        starved.poll()  # logging it frees them
        assert waiting.exception(PROMPT).code() is grpc.StatusCode.UNIMPLEMENTED  # an answer
        starved.poll()
        said, well = starved.report()
    assert well
    assert said == [f"cannot check whether {path} answers: Too many open files"]


def test_a_server_whose_listening_socket_is_broken_does_not_claim_to_serve(path):
    with served(path) as made:
        assert made.serves()
        assert listeners.shut_down(path.parent) == 1
        wait_until(lambda: not made.serves())
        assert path.exists()
