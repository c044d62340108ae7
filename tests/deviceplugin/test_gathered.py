"""One does for all who come at once, and nobody is forgotten."""

import concurrent.futures
import threading

import pytest
from waiting import PROMPT, wait_until

from pyvgpu.deviceplugin import gathered


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(8) as made:
        yield made


class Gated:
    """What is done, once somebody lets it."""

    def __init__(self):
        self.batches = []
        self.gate = threading.Semaphore(0)

    def __call__(self, asked):
        self.batches.append(list(asked))
        assert self.gate.acquire(timeout=PROMPT)
        if "bad" in asked:
            raise ValueError("bad")


def test_who_comes_while_it_is_done_is_of_the_next_and_all_of_those_are_one(pool):
    do = Gated()
    shared = gathered.Gathered(do, pool.submit)
    shared.add(0)
    wait_until(lambda: do.batches)
    for it in range(1, 21):
        shared.add(it)
    assert do.batches == [[0]]
    do.gate.release(2)
    wait_until(lambda: len(do.batches) == 2)
    assert do.batches == [[0], list(range(1, 21))]


def test_who_adds_nobody_begins_nothing(pool):
    do = Gated()
    shared = gathered.Gathered(do, pool.submit)
    shared.add()
    shared.add(1)
    wait_until(lambda: do.batches == [[1]])
    do.gate.release()


def test_a_failure_leaves_nobody_who_came_meanwhile(pool):
    do = Gated()
    shared = gathered.Gathered(do, pool.submit)
    shared.add("bad")
    wait_until(lambda: do.batches)
    shared.add("next")
    do.gate.release(2)
    wait_until(lambda: do.batches == [["bad"], ["next"]])
    do.gate.release()
    shared.add("after")
    wait_until(lambda: do.batches[-1] == ["after"])


def test_many_who_come_again_and_again_are_each_seen_to_once(pool):
    seen, one = [], threading.Lock()

    def do(asked):
        assert one.acquire(blocking=False), "two at once"
        seen.extend(asked)
        one.release()

    shared = gathered.Gathered(do, pool.submit)
    with concurrent.futures.ThreadPoolExecutor(16) as others:
        list(others.map(shared.add, range(2000)))
    wait_until(lambda: len(seen) == 2000)
    assert sorted(seen) == list(range(2000))


def test_who_comes_while_others_are_waited_for_is_of_the_same():
    batches, coming = [], [1, 2]

    def pause():
        if coming:
            shared.add(coming.pop(0))

    shared = gathered.Gathered(batches.append, lambda work: work(), pause)
    shared.add(0)
    assert batches == [[0, 1, 2]]


def test_who_cannot_wait_goes_on():
    batches = []

    def pause():
        raise ValueError("bad")

    shared = gathered.Gathered(batches.append, lambda work: work(), pause)
    shared.add(1)
    shared.add(2)
    assert batches == [[1], [2]]


def test_nobody_is_waited_for_without_an_end():
    batches, come = [], iter(range(1, 100))
    shared = gathered.Gathered(batches.append, lambda work: work(), lambda: shared.add(next(come)))
    shared.add(0)
    assert batches == [list(range(1 + gathered.MOST_PAUSES))]
