"""Informers keep a cache of objects through broken watches and server failures."""

import gc
import queue
import threading
import time

import pytest
from waiting import wait_until

from pyvgpu.kube import apiserver, informer

FOLDER = "/api/v1/pods"


def path(name):
    return f"/api/v1/namespaces/n/pods/{name}"


def pod(name, **more):
    return {"metadata": {"namespace": "n", "name": name}, **more}


class Followed:
    """A running informer and the keys that it reported."""

    def __init__(self, connection):
        self.reported = queue.Queue()
        self.known = informer.Informer(connection, FOLDER, {}, _value, self.reported.put)
        self.stop = threading.Event()
        threading.Thread(target=self.known.run, args=(self.stop,), daemon=True).start()
        assert self.known.synced.wait(60)

    def receives(self, *names):
        return {self.reported.get(timeout=60) for _ in names} == {f"n/{name}" for name in names}


def _value(thing):
    return thing.get("value")


@pytest.fixture
def follow(small):
    followed = []

    def begin():
        followed.append(Followed(small[1]))
        return followed[-1]

    yield begin
    for follower in followed:
        follower.stop.set()


def test_a_list_that_cannot_be_processed_is_retried(small, caplog):
    small[0].put(path("a"), pod("a", value=1))
    failing = [OSError(24, "Too many open files")]

    def read(thing):
        if failing:
            raise failing.pop()
        return _value(thing)

    known = informer.Informer(small[1], FOLDER, {}, read, lambda _: None)
    stop = threading.Event()
    thread = threading.Thread(target=known.run, args=(stop,), daemon=True)
    thread.start()
    try:
        wait_until(lambda: known.synced.is_set() or not thread.is_alive())
        assert known.values() == [1]
        assert "lost /api/v1/pods: [Errno 24] Too many open files" in caplog.text
    finally:
        stop.set()


def test_a_list_of_many_pages_is_read_completely(small, follow):
    names = [f"p{number}" for number in range(10)]
    for name in names:
        small[0].put(path(name), pod(name, value=name))
    followed = follow()
    assert sorted(followed.known.values()) == names
    assert followed.receives(*names)


def test_gc_is_disabled_only_while_a_list_is_decoded(small):
    polls = []
    small[0].put(path("a"), pod("a"))
    known = informer.Informer(small[1], FOLDER, {}, lambda _: polls.append(gc.isenabled()), print)
    known._list()
    assert polls == [False]
    wait_until(gc.isenabled)  # an informer of another test may still decode a list


def test_additions_changes_and_deletions_are_reported(small, follow):
    api, _ = small
    followed = follow()
    api.put(path("a"), pod("a", value=1))
    assert followed.receives("a")
    assert followed.known.get("n/a") == 1
    api.put(path("a"), pod("a", value=2))
    assert followed.receives("a")
    assert followed.known.get("n/a") == 2
    api.delete(path("a"))
    assert followed.receives("a")
    assert followed.known.get("n/a") is None


def test_a_broken_watch_resumes_where_it_was(small, follow):
    api, _ = small
    api.put(path("a"), pod("a", value=1))
    followed = follow()
    assert followed.receives("a")
    api.wait_for("WATCH", FOLDER)
    api.break_watches()
    api.put(path("b"), pod("b", value=2))
    assert followed.receives("b")
    api.wait_for("WATCH", FOLDER, 2)
    assert api.asked.count(("GET", FOLDER)) == 1


@pytest.mark.slow
@pytest.mark.row(17)
def test_a_watch_resumes_from_its_bookmark(small, follow):
    api, _ = small
    followed = follow()
    api.wait_for("WATCH", FOLDER)
    version = api.bookmark(FOLDER)
    api.put(path("a"), pod("a", value=1))
    assert followed.receives("a")  # so the bookmark before it was read
    api.break_watches()
    api.wait_for("WATCH", FOLDER, 2)
    assert api.watched_from[-1] >= version


@pytest.mark.slow
@pytest.mark.row(17)
def test_retries_back_off_while_the_server_is_down(small, follow, pauses):
    api, _ = small
    followed = follow()
    api.wait_for("WATCH", FOLDER)
    before, begun = len(api.asked), time.monotonic()
    api.go_down()
    wait_until(lambda: len(pauses) >= 3)
    assert pauses.kept_seconds <= time.monotonic() - begun
    asked = len(api.asked) - before
    assert 1 <= asked <= len(pauses) + 1  # one per pause, and one when the watch broke
    api.put(path("a"), pod("a", value=1))
    api.down = False
    assert followed.receives("a")
    assert api.asked.count(("GET", FOLDER)) >= 1


class Restarting:
    """An API server that restarts again and again; each watch lasts some of *seconds*."""

    def __init__(self, *seconds):
        self.now = 0.0
        self._seconds = list(seconds)
        self.pauses = []

    def monotonic(self):
        return self.now

    def pages(self, *_):
        yield [], "1"

    def newest(self, *_):
        return "1"

    def watch(self, *_):
        self.now += self._seconds.pop(0)
        raise apiserver.ServerError("the server restarts", 0)
        yield

    def is_set(self):
        return not self._seconds

    def wait(self, seconds):
        self.now += seconds
        self.pauses.append(seconds)


def test_restarts_in_a_row_cause_no_longer_delay_each_time(monkeypatch):
    api = Restarting(*(0.1,) * 6, 35, *(0.1,) * 3, 11, 11)
    monkeypatch.setattr(informer, "time", api)
    monkeypatch.setattr(informer.random, "random", lambda: 1.0)
    informer.Informer(api, FOLDER, {}, _value, lambda _: None).run(api)
    while_down = [1, 2, 4, 8, 16, 32]
    assert api.pauses == pytest.approx([*while_down, 0.5, *while_down[:3], 0.5])


@pytest.mark.slow
def test_relist_lists_again_without_events(small, follow):
    api, _ = small
    followed = follow()
    api.wait_for("WATCH", FOLDER)
    followed.known.relist()
    api.break_watches()
    api.wait_for("GET", FOLDER, 2)


@pytest.mark.slow
@pytest.mark.parametrize("deaf", [True, False], ids=["heard nothing", "seen to be behind"])
def test_a_server_restored_from_a_backup_is_listed_again(small, follow, monkeypatch, deaf):
    """It sends no events to watches that began at a newer version than its own."""
    api, _ = small
    api.put(path("a"), pod("a", value=1))
    before = api.saved()
    followed = follow()
    assert followed.receives("a")
    api.put(path("a"), pod("a", value=2))
    api.put(path("b"), pod("b", value=3))
    assert followed.receives("a", "b")
    if deaf:
        monkeypatch.setattr(informer, "DEAF_SECONDS", 0.0)
        monkeypatch.setattr(apiserver.ApiServer, "newest", lambda *_: "of another kind")
    api.restore(before)
    wait_until(lambda: followed.known.values() == [1])


@pytest.mark.slow
@pytest.mark.row(17)
def test_deletions_are_noticed_after_the_version_expired(small, follow):
    api, _ = small
    for name in ("a", "b"):
        api.put(path(name), pod(name, value=name))
    followed = follow()
    assert followed.receives("a", "b")
    api.wait_for("WATCH", FOLDER)
    api.failing = [500]  # of the next list
    api.delete(path("a"))
    api.forget()
    api.put(path("c"), pod("c", value="c"))
    while "n/c" not in (reported := [followed.reported.get(timeout=60)]):
        assert reported
    api.wait_for("GET", FOLDER, 2)
    assert sorted(followed.known.values()) == ["b", "c"]


@pytest.mark.slow
@pytest.mark.row(16)
@pytest.mark.parametrize("code", [403, 429, 500, 503])
def test_a_refused_list_is_retried(small, follow, code):
    api, _ = small
    api.put(path("a"), pod("a", value=1))
    api.failing = [code, code]
    assert follow().known.get("n/a") == 1
    assert api.asked.count(("GET", FOLDER)) == 3
