"""Calls are made as gRPC has it: who answers is grpcio, or nobody that makes sense."""

import concurrent.futures
import contextlib
import socket
import threading

import grpc
import pytest
from frames import frame
from waiting import PROMPT

from pyvgpu.rpc import client, status


@contextlib.contextmanager
def grpcio(path, answer):
    """Answer by grpcio."""
    pool = concurrent.futures.ThreadPoolExecutor(4)
    made = grpc.server(pool, options=[("grpc.max_receive_message_length", 64 << 20)])
    handlers = {"Call": grpc.unary_unary_rpc_method_handler(answer)}
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handlers),))
    made.add_insecure_port(f"unix:{path}")
    made.start()
    try:
        yield
    finally:
        made.stop(None).wait()
        pool.shutdown()


def ask(path, request, seconds=PROMPT, **more):
    return client.call(path, "/test.Test/Call", request, seconds=seconds, **more)


@pytest.mark.parametrize("size", [0, 1, 60_000])
def test_an_answer_comes_back_whole(path, size):
    with grpcio(path, lambda request, _: request * 80):
        assert ask(path, b"x" * size) == b"x" * size * 80


def test_one_connection_serves_one_call_after_the_other(path):
    def answer(request, context):
        if request == b"no":
            context.abort(grpc.StatusCode.NOT_FOUND, "none")
        return request * 2

    with grpcio(path, answer), client.Line(path, seconds=PROMPT) as line:
        for it in range(300):
            assert line.call("/test.Test/Call", b"%d" % it * 50) == b"%d" % it * 100
        with pytest.raises(status.CallError, match="NOT_FOUND: none"):
            line.call("/test.Test/Call", b"no")
        assert line.call("/test.Test/Call", b"x") == b"xx"


def test_a_request_is_short(path):
    with (
        grpcio(path, lambda request, _: request),
        pytest.raises(ValueError, match="a request of 70005 bytes: must have 65535 or less"),
    ):
        ask(path, bytes(70_000))


def test_a_refusal_is_said_with_its_code_and_words(path):
    words = "rejected by rate limit: 100% ü"

    def refuse(_, context):
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, words)

    with grpcio(path, refuse), pytest.raises(status.CallError) as failed:
        ask(path, b"")
    assert (failed.value.code, failed.value.details) == (status.Code.RESOURCE_EXHAUSTED, words)
    with (
        grpcio(path, refuse),
        pytest.raises(status.CallError, match="UNIMPLEMENTED: Method not found"),
    ):
        client.call(path, "/test.Test/Other", b"", seconds=PROMPT)


def test_who_is_not_there_or_is_silent_or_gone_is_said(path):
    with pytest.raises(status.CallError, match="UNAVAILABLE: .*No such file"):
        ask(path, b"")
    gate = threading.Event()
    with grpcio(path, lambda *_: b"late" if gate.wait(PROMPT) else b""):
        with pytest.raises(status.CallError, match=r"EXCEEDED: no answer within 0\.2 s"):
            ask(path, b"", seconds=0.2)
        gate.set()
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        with pytest.raises(status.CallError, match="DEADLINE_EXCEEDED"):
            ask(path, b"", seconds=0.2)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        pytest.param(b"", "hung up without an answer", id="nothing"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n" * 9, "a frame of", id="another protocol"),
        pytest.param(frame(3, 0, 1, b"\0\0\0\x07"), "it ended the call, with 7", id="a reset"),
        pytest.param(frame(1, 5, 1, b"\x8d"), "HTTP status 404", id="no gRPC"),
        pytest.param(frame(1, 5, 1, b"\x88"), "UNKNOWN", id="no status"),
        pytest.param(
            frame(1, 4, 1, b"\x88") + frame(0, 0, 1, bytes(9000)) * 9, "more than", id="too much"
        ),
        pytest.param(
            frame(1, 4, 1, b"\x88") + frame(1, 5, 1, b"\0\x0bgrpc-status\x010"),
            "there is no message",
            id="well, and nothing",
        ),
    ],
)
def test_an_answer_that_is_none_is_said(path, said, words):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def babble():
            theirs, _ = listening.accept()
            with theirs:
                theirs.recv(65536)
                theirs.sendall(said)
                theirs.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    while theirs.recv(65536):
                        pass

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            babbling = pool.submit(babble)
            with pytest.raises(status.CallError, match=words):
                ask(path, b"", most=65535)
            babbling.result()
