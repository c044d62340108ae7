"""The queue of what is to be looked at."""

import threading

import pytest

from pyvgpu.controller import work


@pytest.fixture
def queue():
    made = work.Queue()
    yield made
    made.close()


def test_a_name_that_is_added_twice_is_taken_once(queue):
    for name in ("a", "b", "a"):
        queue.add(name)
    assert {queue.take(), queue.take()} == {"a", "b"}
    assert len(queue) == 0


def test_a_name_that_is_taken_waits_until_it_is_given_back(queue):
    queue.add("a")
    queue.take()
    queue.add("a")
    queue.add("b")
    assert queue.take() == "b"
    queue.done("a")
    assert queue.take() == "a"


def test_a_name_is_due_at_the_soonest_of_its_times(queue):
    queue.add("later", 3600)
    queue.add("later")
    queue.add("later", 3600)
    assert queue.take() == "later"


def test_what_is_due_later_does_not_hold_what_is_due(queue):
    queue.add("later", 3600)
    queue.add("now")
    assert queue.take() == "now"
    assert len(queue) == 1


def test_who_waits_gets_what_comes(queue):
    taken = []
    waiting = threading.Thread(target=lambda: taken.append(queue.take()))
    waiting.start()
    queue.add("a", 0.05)
    waiting.join(30)
    assert taken == ["a"]


def test_closing_ends_all_who_wait(queue):
    taken = []
    waiting = [threading.Thread(target=lambda: taken.append(queue.take())) for _ in range(3)]
    for thread in waiting:
        thread.start()
    queue.close()
    for thread in waiting:
        thread.join(30)
    assert taken == [None] * 3
