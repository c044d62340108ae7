"""The objects of a kind, known through lists and watches that break."""

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
    """An informer at work, and the keys that it told of."""

    def __init__(self, connection):
        self.told = queue.Queue()
        self.known = informer.Informer(connection, FOLDER, {}, _value, self.told.put)
        self.stop = threading.Event()
        threading.Thread(target=self.known.run, args=(self.stop,), daemon=True).start()
        assert self.known.synced.wait(60)

    def hears(self, *names):
        return {self.told.get(timeout=60) for _ in names} == {f"n/{name}" for name in names}


def _value(thing):
    return thing.get("value")


@pytest.fixture
def follow(small):
    followed = []

    def begin():
        followed.append(Followed(small[1]))
        return followed[-1]

    yield begin
    for it in followed:
        it.stop.set()


def test_what_cannot_be_taken_in_for_now_is_read_again(small, caplog):
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


def test_a_list_of_many_pages_is_read_in_full(small, follow):
    names = [f"p{number}" for number in range(10)]
    for name in names:
        small[0].put(path(name), pod(name, value=name))
    followed = follow()
    assert sorted(followed.known.values()) == names
    assert followed.hears(*names)


def test_nobody_looks_for_cycles_while_a_list_is_read_but_after(small):
    looks = []
    small[0].put(path("a"), pod("a"))
    known = informer.Informer(small[1], FOLDER, {}, lambda _: looks.append(gc.isenabled()), print)
    known._list()
    assert looks == [False]
    wait_until(gc.isenabled)  # another test's list may be read still


def test_what_comes_changes_and_goes_is_told(small, follow):
    api, _ = small
    followed = follow()
    api.put(path("a"), pod("a", value=1))
    assert followed.hears("a")
    assert followed.known.get("n/a") == 1
    api.put(path("a"), pod("a", value=2))
    assert followed.hears("a")
    assert followed.known.get("n/a") == 2
    api.delete(path("a"))
    assert followed.hears("a")
    assert followed.known.get("n/a") is None


def test_a_watch_that_breaks_goes_on_where_it_was(small, follow):
    api, _ = small
    api.put(path("a"), pod("a", value=1))
    followed = follow()
    assert followed.hears("a")
    api.wait_for("WATCH", FOLDER)
    api.break_watches()
    api.put(path("b"), pod("b", value=2))
    assert followed.hears("b")
    api.wait_for("WATCH", FOLDER, 2)
    assert api.asked.count(("GET", FOLDER)) == 1


@pytest.mark.row(17)
def test_after_a_bookmark_a_watch_goes_on_from_there(small, follow):
    api, _ = small
    followed = follow()
    api.wait_for("WATCH", FOLDER)
    version = api.bookmark(FOLDER)
    api.put(path("a"), pod("a", value=1))
    assert followed.hears("a")  # what came before it was read
    api.break_watches()
    api.wait_for("WATCH", FOLDER, 2)
    assert api.watched_from[-1] >= version


@pytest.mark.row(17)
def test_a_server_that_is_down_is_hardly_asked_and_then_read_on(small, follow, pauses):
    api, _ = small
    followed = follow()
    api.wait_for("WATCH", FOLDER)
    before, begun = len(api.asked), time.monotonic()
    api.go_down()
    wait_until(lambda: len(pauses) >= 3)
    assert pauses.kept_seconds <= time.monotonic() - begun
    asked = len(api.asked) - before
    assert 1 <= asked <= len(pauses) + 1  # once after each, and once when the watch was lost
    api.put(path("a"), pod("a", value=1))
    api.down = False
    assert followed.hears("a")
    assert api.asked.count(("GET", FOLDER)) >= 1


def test_a_list_is_read_anew_where_that_is_wished_though_nobody_says_anything(small, follow):
    api, _ = small
    followed = follow()
    api.wait_for("WATCH", FOLDER)
    followed.known.read_anew()
    api.break_watches()
    api.wait_for("GET", FOLDER, 2)


@pytest.mark.parametrize("deaf", [True, False], ids=["heard nothing", "seen to be behind"])
def test_after_a_server_was_restored_from_a_copy_what_it_has_now_is_read(
    small, follow, monkeypatch, deaf
):
    """It is silent to those who have seen more than it has."""
    api, _ = small
    api.put(path("a"), pod("a", value=1))
    before = api.saved()
    followed = follow()
    assert followed.hears("a")
    api.put(path("a"), pod("a", value=2))
    api.put(path("b"), pod("b", value=3))
    assert followed.hears("a", "b")
    if deaf:
        monkeypatch.setattr(informer, "DEAF_SECONDS", 0.0)
        monkeypatch.setattr(apiserver.ApiServer, "newest", lambda *_: "of another kind")
    api.restore(before)
    wait_until(lambda: followed.known.values() == [1])


@pytest.mark.row(17)
def test_what_was_deleted_while_the_server_forgot_is_noticed(small, follow):
    api, _ = small
    for name in ("a", "b"):
        api.put(path(name), pod(name, value=name))
    followed = follow()
    assert followed.hears("a", "b")
    api.wait_for("WATCH", FOLDER)
    api.failing = [500]  # the next list, too
    api.delete(path("a"))
    api.forget()
    api.put(path("c"), pod("c", value="c"))
    while "n/c" not in (told := [followed.told.get(timeout=60)]):
        assert told
    api.wait_for("GET", FOLDER, 2)
    assert sorted(followed.known.values()) == ["b", "c"]


@pytest.mark.row(16)
@pytest.mark.parametrize("code", [403, 429, 500, 503])
def test_a_server_that_refuses_is_asked_again(small, follow, code):
    api, _ = small
    api.put(path("a"), pod("a", value=1))
    api.failing = [code, code]
    assert follow().known.get("n/a") == 1
    assert api.asked.count(("GET", FOLDER)) == 3
