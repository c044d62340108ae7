"""The listener on a packet socket survives malformed requests, internal errors and EMFILE."""

import errno
import socket

import pytest

from pyvgpu import errors
from pyvgpu.machine import ipc


@pytest.fixture
def listening(tmp_path):
    def answer(question):
        if "name" in question:
            raise errors.UsageError(f"NAME {question['name']!r}: there is no such name")
        return {"number": question["number"]}

    made = ipc.Listener(tmp_path, "what is tested", answer)
    made.start()
    yield tmp_path
    made.stop()


def ask(folder, question):
    with ipc.Asker(folder, 30) as asker:
        return asker.exchange(question)


@pytest.mark.parametrize(
    "question",
    [
        b"{",
        b"\xff\xfe",
        b"\0" * 4096,
        b"[" * 4096,
        b"[]",
        b'{"number": ',
        b"7",
        b'"' + b"x" * 9000,
    ],
)
def test_malformed_requests_are_refused_and_the_next_is_answered(listening, question):
    with pytest.raises(errors.DataError, match="not a valid packet"):
        ask(listening, question)
    assert ask(listening, b'{"number": 7}') == {"number": 7}


def test_a_refusal_that_quotes_a_long_request_is_complete(listening):
    name = "é" * 1900
    with pytest.raises(errors.UsageError, match="there is no such name"):
        ask(listening, f'{{"name": "{name}"}}'.encode())


def test_an_internal_error_is_answered_and_the_next_request_too(listening, caplog):
    with pytest.raises(errors.PyVgpuError, match="internal error, see the log"):
        ask(listening, b"{}")
    assert "KeyError" in caplog.text
    assert ask(listening, b'{"number": 7}') == {"number": 7}


def test_a_client_refused_by_emfile_is_answered_later(tmp_path, monkeypatch):
    refusals = [errno.EMFILE, errno.ECONNABORTED]
    accept = socket.socket.accept

    def refuse(listener):
        if refusals:
            raise OSError(refusals.pop(), "refused")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", refuse)
    made = ipc.Listener(tmp_path, "what is tested", lambda _: {"number": 7})
    made.start()
    assert ask(tmp_path, b"{}") == {"number": 7}
    made.stop()
    assert not refusals
