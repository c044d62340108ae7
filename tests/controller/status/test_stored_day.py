"""The cluster's last day in a ConfigMap: it survives the page's pod."""

import contextlib
import json
import logging
import threading

import pytest
import small_api
import status_cluster
from status_cluster import StatusApi
from waiting import wait_until

from pyvgpu.controller.status import stored_day
from pyvgpu.status import history

PATH = "/api/v1/namespaces/pyvgpu/configmaps/pyvgpu-status-page"
STEP = history.STEP_SECONDS
AT = status_cluster.status_node.AT


@contextlib.contextmanager
def storing(connection, clock=lambda: AT):
    """Run the reader and writer of a day; yield both."""
    day, stop = history.DayHistory(), threading.Event()
    made = stored_day.StoredDay(connection, PATH, day, clock)
    thread = threading.Thread(target=made.run, args=(stop,))
    thread.start()
    try:
        yield made, day
    finally:
        stop.set()
        thread.join()


@pytest.fixture(autouse=True)
def _hasty(monkeypatch):
    monkeypatch.setattr(stored_day, "POLL_SECONDS", 0.01)


@pytest.fixture
def server():
    with small_api.running() as (api, connection):
        yield api, connection


def text_of(*steps):
    day = history.DayHistory()
    for step, value in enumerate(steps):
        day.add({"all": (value,)}, AT - (len(steps) - step) * STEP)
    return day.text()


def test_day_is_read_before_samples_are_added_and_written_after(server):
    api, connection = server
    api.put(PATH, {"metadata": {}, "data": {stored_day.KEY: text_of(1, 2), "more": "kept"}})
    with storing(connection) as (made, day):
        assert made.was_read.wait(10)
        day.add({"all": (3,)}, AT)
        made.put(day.text())
        wait_until(lambda: api.read(PATH)["data"][stored_day.KEY] == day.text())
    assert day.lines("all", ("x",))["x"] == [1, 2, 3]
    assert api.read(PATH)["data"]["more"] == "kept"


def test_empty_configmap_is_an_empty_day(server):
    api, connection = server
    api.put(PATH, {"metadata": {}})
    with storing(connection) as (made, day):
        assert made.was_read.wait(10)
        made.put(text_of(5))
        wait_until(lambda: api.read(PATH).get("data"))
    assert json.loads(day.text())["days"] == {}


@pytest.mark.parametrize("text", ["", "x", '{"seconds": 300, "days": {"all": {"step": 1}}}'])
def test_damaged_day_starts_empty(server, caplog, text):
    api, connection = server
    api.put(PATH, {"metadata": {}, "data": {stored_day.KEY: text}})
    with storing(connection) as (made, day):
        assert made.was_read.wait(10)
        day.add({"all": (3,)}, AT)
    assert day.lines("all", ("x",))["x"] == [3]
    assert sum("start empty" in record.message for record in caplog.records) == bool(text)


@pytest.mark.parametrize("code", [403, 404])
def test_without_a_configmap_the_page_starts_and_says_so_once(server, caplog, code):
    api, connection = server
    if code == 403:
        api.forbidden = (PATH,)
    with storing(connection) as (made, _):
        assert made.was_read.wait(10)
        for _ in range(3):
            made.put(text_of(1))
            wait_until(lambda: not made._texts)
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.split(":")[0] for text in said] == [
        "cannot read the charts of the last day",
        "cannot store the charts of the last day",
    ]


def test_samples_wait_for_an_api_server_that_is_down(server):
    api, connection = server
    api.put(PATH, {"metadata": {}, "data": {stored_day.KEY: text_of(1, 2)}})
    api.failing = [500, 503, 500]
    with storing(connection) as (made, day):
        assert made.was_read.wait(10)
        day.add({"all": (3,)}, AT)
    assert day.lines("all", ("x",))["x"] == [1, 2, 3]
    assert not api.failing


def test_charts_of_the_next_pod_continue():
    api = StatusApi()
    api.put(PATH, {"metadata": {}})
    status_cluster.put_node(api, "n")
    for begin, day in ((AT, [0]), (AT + 3 * STEP, [0, 0, None, 0])):
        now = [begin]
        with status_cluster.running(
            api, settled=False, store=PATH, clock=lambda now=now: now[0]
        ) as shown:
            status_cluster.until(shown, lambda found, day=day: found["day"]["waiting"] == day)
            now[0] += STEP
            day.append(0)
            status_cluster.until(shown, lambda found, day=day: found["day"]["waiting"] == day)
            until_stored(api, shown._days.text())
        api = reopened(api)


def until_stored(api, text):
    wait_until(lambda: api.read(PATH).get("data") == {stored_day.KEY: text})


def reopened(api):
    """Return an API server with the same objects: closing one ends it."""
    other = StatusApi()
    other.restore(api.saved())
    return other
