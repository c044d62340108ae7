"""Waiting pods are requeued by one write when one of them may fit, and not again."""

import queue
import threading

import pytest
import waiting

from pyvgpu.controller.scheduler.shell import session
from pyvgpu.kube import apiserver


class Own:
    """Our own pod, to which writes may fail."""

    def __init__(self):
        self.written = queue.Queue()
        self.failing = 0

    def annotate(self, noted):
        assert list(noted) == [session.WOKEN_ANNOTATION]
        if self.failing:
            self.failing -= 1
            raise apiserver.ServerError("down")
        self.written.put(noted[session.WOKEN_ANNOTATION])


class Room:
    """A requeuer, and the pods that may fit, each returned once."""

    def __init__(self):
        self.own, self.those, self.counted = Own(), [], []
        self.requeuer = session.PodRequeuer(self.own, self.freed, lambda: self.counted.append(1))

    def freed(self):
        found, self.those = self.those, []
        return found

    def has_counted_one(self):
        waiting.wait_until(lambda: self.counted)  # it comes after the write
        assert self.counted == [1]


@pytest.fixture
def room(monkeypatch):
    monkeypatch.setattr(session, "LEAST_REQUEUE_SECONDS", 0.01)
    monkeypatch.setattr(session, "REQUEUE_AGAIN_SECONDS", 0.01)
    made, stop = Room(), threading.Event()
    thread = threading.Thread(target=made.requeuer.run, args=(stop,))
    thread.start()
    yield made
    stop.set()
    made.requeuer.poll()
    thread.join(waiting.PROMPT)
    assert not thread.is_alive()


def nothing_more_is_written(room):
    with pytest.raises(queue.Empty):
        room.own.written.get(timeout=0.2)


def test_one_write_requeues_many_pods(room):
    room.those = ["n/a", "n/b", "n/c"]
    room.requeuer.poll()
    assert room.own.written.get(timeout=waiting.PROMPT)
    nothing_more_is_written(room)
    room.has_counted_one()


def test_each_write_has_a_new_value_and_so_is_a_change(room):
    seen = set()
    for _ in range(3):
        room.those = ["n/a"]
        room.requeuer.poll()
        seen.add(room.own.written.get(timeout=waiting.PROMPT))
    assert len(seen) == 3


def test_nothing_is_written_while_no_pod_would_fit(room):
    room.requeuer.poll()
    nothing_more_is_written(room)
    assert not room.counted


def test_a_failed_write_is_retried_without_another_change(room):
    room.own.failing = 3
    room.those = ["n/a"]
    room.requeuer.poll()
    assert room.own.written.get(timeout=waiting.PROMPT)
    nothing_more_is_written(room)
    room.has_counted_one()
