"""Concurrent calls are coalesced into batches, and none is lost."""

import concurrent.futures
import threading

import pytest
from waiting import PROMPT, wait_until

from pyvgpu.kube import batcher


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(8) as made:
        yield made


class Gated:
    """A batch function that waits for permission."""

    def __init__(self):
        self.batches = []
        self.gate = threading.Semaphore(0)

    def __call__(self, asked):
        self.batches.append(list(asked))
        assert self.gate.acquire(timeout=PROMPT)
        if "bad" in asked:
            raise ValueError("bad")


def test_items_added_during_a_batch_form_the_next_one(pool):
    do = Gated()
    shared = batcher.Gathered(do, pool.submit)
    shared.add(0)
    wait_until(lambda: do.batches)
    for number in range(1, 21):
        shared.add(number)
    assert do.batches == [[0]]
    do.gate.release(2)
    wait_until(lambda: len(do.batches) == 2)
    assert do.batches == [[0], list(range(1, 21))]


def test_adding_nothing_starts_no_worker(pool):
    do = Gated()
    shared = batcher.Gathered(do, pool.submit)
    shared.add()
    shared.add(1)
    wait_until(lambda: do.batches == [[1]])
    do.gate.release()


def test_items_added_during_a_failed_batch_are_processed(pool):
    do = Gated()
    shared = batcher.Gathered(do, pool.submit)
    shared.add("bad")
    wait_until(lambda: do.batches)
    shared.add("next")
    do.gate.release(2)
    wait_until(lambda: do.batches == [["bad"], ["next"]])
    do.gate.release()
    shared.add("after")
    wait_until(lambda: do.batches[-1] == ["after"])


def test_each_item_is_processed_exactly_once(pool):
    seen, one = [], threading.Lock()

    def do(asked):
        assert one.acquire(blocking=False), "two at once"
        seen.extend(asked)
        one.release()

    shared = batcher.Gathered(do, pool.submit)
    with concurrent.futures.ThreadPoolExecutor(16) as others:
        list(others.map(shared.add, range(2000)))
    wait_until(lambda: len(seen) == 2000)
    assert sorted(seen) == list(range(2000))


def test_items_added_during_the_pause_join_the_batch():
    batches, coming = [], [1, 2]

    def pause():
        if coming:
            shared.add(coming.pop(0))

    shared = batcher.Gathered(batches.append, lambda work: work(), pause)
    shared.add(0)
    assert batches == [[0, 1, 2]]


def test_batch_begins_if_the_pause_fails():
    batches = []

    def pause():
        raise ValueError("bad")

    shared = batcher.Gathered(batches.append, lambda work: work(), pause)
    shared.add(1)
    shared.add(2)
    assert batches == [[1], [2]]


def test_number_of_pauses_is_bounded():
    batches, come = [], iter(range(1, 100))
    shared = batcher.Gathered(batches.append, lambda work: work(), lambda: shared.add(next(come)))
    shared.add(0)
    assert batches == [list(range(1 + batcher.MOST_PAUSES))]
