"""The de-duplicating work queue."""

import threading

import pytest

from pyvgpu.kube import work_queue


@pytest.fixture
def queue():
    made = work_queue.Queue()
    yield made
    made.close()


def test_a_name_that_is_added_twice_is_taken_once(queue):
    for name in ("a", "b", "a"):
        queue.add(name)
    assert {queue.take(), queue.take()} == {"a", "b"}
    assert len(queue) == 0


def test_a_name_in_progress_is_not_taken_again_until_done(queue):
    queue.add("a")
    queue.take()
    queue.add("a")
    queue.add("b")
    assert queue.take() == "b"
    queue.done("a")
    assert queue.take() == "a"


def test_a_name_is_due_at_its_earliest_time(queue):
    queue.add("later", 3600)
    queue.add("later")
    queue.add("later", 3600)
    assert queue.take() == "later"


def test_a_delayed_name_does_not_block_a_due_one(queue):
    queue.add("later", 3600)
    queue.add("now")
    assert queue.take() == "now"
    assert len(queue) == 1


def test_a_waiting_take_returns_the_next_name(queue):
    taken = []
    waiting = threading.Thread(target=lambda: taken.append(queue.take()))
    waiting.start()
    queue.add("a", 0.05)
    waiting.join(30)
    assert taken == ["a"]


def test_closing_ends_every_waiting_take(queue):
    taken = []
    waiting = [threading.Thread(target=lambda: taken.append(queue.take())) for _ in range(3)]
    for thread in waiting:
        thread.start()
    queue.close()
    for thread in waiting:
        thread.join(30)
    assert taken == [None] * 3
