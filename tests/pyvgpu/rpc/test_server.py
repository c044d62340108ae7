"""Calls are answered as gRPC has it: who calls is grpcio, or nobody that makes sense."""

import concurrent.futures
import contextlib
import queue
import socket
import stat
import struct
import threading

import crowded
import grpc
import pytest
from frames import frame
from waiting import PROMPT, wait_until

from pyvgpu import errors
from pyvgpu.rpc import http2, server, status


@contextlib.contextmanager
def served(path, **methods):
    made = server.Server(path, {f"/test.Test/{name}": it for name, it in methods.items()})
    made.start()
    try:
        yield made
    finally:
        made.stop()


@contextlib.contextmanager
def called(path):
    """Call by grpcio: the name of a method and a request."""
    with grpc.insecure_channel(
        f"unix:{path}", options=[("grpc.max_receive_message_length", 64 << 20)]
    ) as channel:
        yield lambda name, request, timeout=PROMPT: channel.unary_unary(f"/test.Test/{name}")(
            request, timeout=timeout
        )


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 70_000, 5 << 20])
@pytest.mark.parametrize("kind", [server.Method, server.Waiting, lambda it: answering(it)])
def test_messages_of_any_size_come_and_go_whole(path, size, kind):
    content = bytes(it % 251 for it in range(997)) * (size // 997 + 1)
    with served(path, Echo=kind(lambda it: it)), called(path) as call:
        for _ in range(3):
            assert call("Echo", content[:size]) == content[:size]


def test_many_calls_at_once_each_get_their_own_answer(path):
    with (
        served(path, Echo=server.Waiting(lambda it: it * 2000)),
        called(path) as call,
        concurrent.futures.ThreadPoolExecutor(30) as pool,
    ):
        found = list(pool.map(lambda it: call("Echo", b"%04d" % it), range(300)))
    assert found == [b"%04d" % it * 2000 for it in range(300)]


def test_who_waits_keeps_nobody_else_waiting(path):
    gate = threading.Event()

    def slow(_):
        assert gate.wait(PROMPT)
        return b"slow"

    with (
        served(path, Slow=server.Waiting(slow), Quick=server.Method(lambda it: it)),
        called(path) as call,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(call, "Slow", b"")
        assert call("Quick", b"1") == b"1"
        gate.set()
        assert waiting.result() == b"slow"


def test_who_answers_later_keeps_nobody_waiting_and_each_gets_his_own(path):
    asked = queue.SimpleQueue()

    def ask(request, reply):
        if request == b"now":
            reply(b"now")
        else:
            asked.put((request, reply))

    with (
        served(path, Call=server.Later(ask)),
        called(path) as call,
        concurrent.futures.ThreadPoolExecutor(100) as pool,
    ):
        waiting = [pool.submit(call, "Call", b"%d" % it) for it in range(100)]
        assert call("Call", b"now") == b"now"
        replies = [asked.get(timeout=PROMPT) for _ in waiting]
        assert not any(it.done() for it in waiting)
        for request, reply in replies:
            reply(request * 2)
        assert [it.result() for it in waiting] == [b"%d" % it * 2 for it in range(100)]


def test_an_answer_to_whom_it_is_not_wanted_any_more_harms_nobody(path):
    asked = queue.SimpleQueue()
    with (
        served(path, Call=server.Later(lambda _, reply: asked.put(reply))),
        grpc.insecure_channel(f"unix:{path}") as channel,
    ):
        call = channel.unary_unary("/test.Test/Call")
        waiting = call.future(b"")
        reply = asked.get(timeout=PROMPT)
        assert waiting.cancel()
        reply(b"too late")
        later = call.future(b"")
        asked.get(timeout=PROMPT)(b"in time")
        assert later.result(PROMPT) == b"in time"


def answering(answer):
    """Answer later what is answered now."""

    def ask(request, reply):
        try:
            said = answer(request)
        except Exception as exc:
            said = exc
        threading.Thread(target=reply, args=(said,)).start()

    return server.Later(ask)


def raising(answer):
    """Fail already when asked."""
    return server.Later(lambda request, _: answer(request))


@pytest.mark.parametrize("kind", [server.Method, server.Waiting, answering, raising])
def test_what_goes_wrong_is_told_with_its_code_and_words(path, kind):
    words = 'vcore=150: must be at most 100, or 200, ..., in "ü" 100% of cases\n'

    def refuse(_):
        raise status.CallError(status.Code.FAILED_PRECONDITION, words)

    methods = {
        "Refuse": kind(refuse),
        "Fail": kind(lambda _: b"" + 1),  # type: ignore[operator]
    }
    with served(path, **methods), called(path) as call:
        for name, code, said in (
            ("Refuse", grpc.StatusCode.FAILED_PRECONDITION, words),
            ("Fail", grpc.StatusCode.INTERNAL, "a fault, see the log"),
            ("Other", grpc.StatusCode.UNIMPLEMENTED, "there is no /test.Test/Other"),
        ):
            with pytest.raises(grpc.RpcError) as failed:
                call(name, b"")
            assert (failed.value.code(), failed.value.details()) == (code, said)


def test_a_message_that_is_too_long_is_refused(path, monkeypatch):
    monkeypatch.setattr(server, "RECEIVE_BYTES", 100_000)
    with served(path, Echo=server.Method(lambda it: it)), called(path) as call:
        with pytest.raises(grpc.RpcError) as failed:
            call("Echo", bytes(100_000))
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call("Echo", b"short") == b"short"


def test_who_listens_hears_all_and_is_known_to_have_left(path):
    more, left = threading.Semaphore(0), threading.Event()
    sizes = [5, 300_000, 0, 70_000]

    def stream(request, listener):
        assert listener.add_callback(left.set)
        for size in sizes:
            yield request * size
            more.acquire()
        assert left.wait(PROMPT)
        assert not listener.is_active()
        assert not listener.add_callback(left.set)

    with (
        served(path, Listen=server.Streaming(stream)),
        grpc.insecure_channel(f"unix:{path}") as channel,
    ):
        heard = channel.unary_stream("/test.Test/Listen")(b"x", timeout=PROMPT)
        for size in sizes:
            assert next(heard) == b"x" * size
            more.release()
        assert not left.is_set()
        heard.cancel()
        assert left.wait(PROMPT)


def test_a_stream_ends_well_or_with_what_went_wrong(path):
    def short(_, __):
        yield b"one"

    def wrong(_, __):
        yield b"one"
        raise status.CallError(status.Code.UNAVAILABLE, "no more")

    with (
        served(path, Short=server.Streaming(short), Wrong=server.Streaming(wrong)),
        grpc.insecure_channel(f"unix:{path}") as channel,
    ):
        assert list(channel.unary_stream("/test.Test/Short")(b"")) == [b"one"]
        heard = channel.unary_stream("/test.Test/Wrong")(b"")
        assert next(heard) == b"one"
        with pytest.raises(grpc.RpcError) as failed:
            next(heard)
        assert (failed.value.code(), failed.value.details()) == (
            grpc.StatusCode.UNAVAILABLE,
            "no more",
        )


def test_who_stops_hangs_up_and_takes_its_own_socket_away(path):
    left = threading.Event()

    def stream(_, listener):
        listener.add_callback(left.set)
        yield b"one"
        assert left.wait(PROMPT)

    with grpc.insecure_channel(f"unix:{path}") as channel:
        with served(path, Listen=server.Streaming(stream)):
            heard = channel.unary_stream("/test.Test/Listen")(b"")
            assert next(heard) == b"one"
        with pytest.raises(grpc.RpcError) as failed:
            next(heard)
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert left.wait(PROMPT)
    assert not path.exists()
    with served(path):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


def test_a_server_takes_the_place_of_whatever_stands_there(tmp_path):
    path = tmp_path / "made" / "s.sock"
    methods = {"/test.Test/Call": server.Method(lambda it: it)}
    with pytest.raises(
        errors.UnavailableError, match=r"s\.sock: cannot listen there: No such file"
    ):
        server.listen(path, methods)
    first = server.listen(path, methods, folder_mode=0o700)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert first.serves
    second = server.listen(path, methods)
    assert (first.serves, second.serves) == (False, True)
    first.stop()
    with called(path) as call:
        assert call("Call", b"one") == b"one"
    path.unlink()
    assert not second.serves
    second.stop()


NONSENSE = [
    pytest.param(b"GET / HTTP/1.1\r\n\r\n" + bytes(30), id="HTTP/1"),
    pytest.param(http2.PREFACE + frame(0, 0, 1, bytes(16384))[:-1] + b"", id="cut short"),
    pytest.param(http2.PREFACE + b"\xff" * 64, id="a frame that is too long"),
    pytest.param(http2.PREFACE + frame(1, 4, 2, b"\x83"), id="a stream of ours"),
    pytest.param(http2.PREFACE + frame(1, 0, 1, b"\x83") + frame(6, 0, 0, bytes(8)), id="between"),
    pytest.param(http2.PREFACE + frame(9, 4, 1, b"\x83"), id="more of nothing"),
    pytest.param(http2.PREFACE + frame(1, 4, 1, b"\xff\xff\xff\xff\xff\xff"), id="headers"),
    pytest.param(http2.PREFACE + frame(1, 4 | 8, 1, b"\x09\x83"), id="padding"),
    pytest.param(http2.PREFACE + frame(3, 0, 1, b"\0"), id="a short reset"),
    pytest.param(http2.PREFACE + frame(4, 0, 0, b"\0\0\0"), id="short settings"),
    pytest.param(http2.PREFACE + frame(8, 0, 0, b""), id="a short window"),
    pytest.param(http2.PREFACE + frame(5, 4, 1, bytes(4)), id="a push"),
    pytest.param(
        http2.PREFACE + frame(1, 0, 1) + frame(9, 0, 1, bytes(16000)) * 9, id="headers for ever"
    ),
]


def test_it_answers_again_once_there_are_file_descriptors(path):
    with crowded.starved("rpc", str(path)) as (starved, _), called(path) as call:
        assert call("Call", b"one") == b"one"
        said, well = starved.report()
    assert well
    assert [it.partition(": [Errno 24]")[0] for it in said[:1]] == [
        f"cannot accept connections at {path}"
    ]
    assert sum("cannot accept" in it for it in said) == 1


def test_a_server_whose_listening_socket_is_broken_does_not_claim_to_serve(path, caplog):
    with served(path) as made:
        assert made.serves
        made._listening.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: not made.serves)
        assert path.exists()
    assert "stopped accepting connections" in caplog.text


@pytest.mark.parametrize("said", NONSENSE)
def test_who_does_not_speak_http2_is_hung_up_on_and_harms_nobody(path, said):
    with served(path, Echo=server.Method(lambda it: it)), called(path) as call:
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


def test_who_begins_calls_and_leaves_them_is_done_no_more_for_than_others(path):
    gate, done = threading.Event(), []

    def slow(request):
        assert gate.wait(PROMPT)
        done.append(request)
        return b""

    def begun(number):
        head = frame(1, 4, number, b"\x83\x86\x44\x0f/test.Test/Slow")
        request = struct.pack(">?I", False, 0)
        return head + frame(0, 1, number, request) + frame(3, 0, number, b"\0\0\0\x08")

    with (
        served(path, Slow=server.Waiting(slow)),
        socket.socket(socket.AF_UNIX) as theirs,
    ):
        theirs.settimeout(PROMPT)
        theirs.connect(str(path))
        said = b"".join(begun(number) for number in range(1, 2001, 2))
        theirs.sendall(http2.PREFACE + frame(4, 0, 0) + said + frame(6, 0, 0, b"12345678"))
        heard = b""
        while frame(6, 1, 0, b"12345678") not in heard:
            heard += theirs.recv(65536)
        gate.set()
        wait_until(lambda: len(done) == 256)
        theirs.sendall(begun(2001) + frame(6, 0, 0, b"87654321"))
        wait_until(lambda: len(done) == 257)
    assert heard.count(struct.pack(">I", http2.REFUSED)) >= 1000 - 256


def test_padding_priorities_and_strange_frames_change_nothing(path):
    """A request as a careful and a talkative client may send it, in pieces."""
    block = b"\x83\x86\x44\x0f/test.Test/Echo"
    said = [
        http2.PREFACE + frame(4, 0, 0),
        frame(2, 0, 1, bytes(5)) + frame(77, 255, 0, b"strange") + frame(6, 0, 0, b"12345678"),
        frame(1, 8 | 32, 1, b"\x02" + bytes(5) + block[:7] + b"pp"),
        frame(9, 4, 1, block[7:]),
        frame(0, 8, 1, b"\x01" + struct.pack(">?I", False, 3) + b"a" + b"p"),
        frame(0, 1, 1, b"bc"),
    ]
    with (
        served(path, Echo=server.Method(lambda it: it)),
        socket.socket(socket.AF_UNIX) as theirs,
    ):
        theirs.settimeout(PROMPT)
        theirs.connect(str(path))
        for each in said:
            theirs.sendall(each)
        heard = b""
        while b"grpc-status" not in heard:
            heard += theirs.recv(65536)
    assert struct.pack(">?I", False, 3) + b"abc" in heard
    assert frame(6, 1, 0, b"12345678") in heard
