"""The event recorder writes each event once, at a limited rate, and retries failures."""

import contextlib
import threading

import pytest
import small_api
import waiting

from pyvgpu.kube import apiserver, backoff, event_recorder

EVENTS = "/api/v1/namespaces/n/events"


@pytest.fixture
def cluster():
    with small_api.running(small_api.SmallApi()) as made:
        yield made


@pytest.fixture
def soon(monkeypatch):
    """Failed calls are retried soon."""
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.01)


@contextlib.contextmanager
def recording(connection, **more):
    source = event_recorder.EventSource("tester")
    recorder = event_recorder.Recorder(connection, source, **more)
    stop = threading.Event()
    thread = threading.Thread(target=recorder.run, args=(stop,))
    thread.start()
    try:
        yield recorder
    finally:
        stop.set()
        recorder.close()
        thread.join(waiting.PROMPT)
        assert not thread.is_alive()


def event(name, text, reason="Said", **more):
    return event_recorder.Event(f"uid-{name}", "n", name, reason, text, **more)


def texts(api):
    return [message["message"] for message in api.under(EVENTS)]


def until(api, *wanted):
    waiting.wait_until(lambda: sorted(texts(api)) == sorted(wanted))


def test_the_same_text_is_written_once(cluster):
    api, connection = cluster
    with recording(connection) as recorder:
        for _ in range(3):
            recorder.record(event("a", "one"))
        recorder.record(event("b", "last"))
        until(api, "one", "last")
        recorder.record(event("a", "one"))
        recorder.record(event("b", "after it"))
        until(api, "one", "last", "after it")
    (one,) = [written for written in api.under(EVENTS) if written["message"] == "one"]
    assert one["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "n",
        "name": "a",
        "uid": "uid-a",
    }
    assert (one["type"], one["source"], one["count"]) == ("Warning", {"component": "tester"}, 1)


@pytest.mark.slow
def test_the_newest_of_a_key_is_written_when_it_is_due(cluster):
    api, connection = cluster
    with recording(connection, limits=event_recorder.EventLimits(0.5)) as recorder:
        recorder.record(event("a", "one"))
        until(api, "one")
        for text in ("two", "three", "four"):
            recorder.record(event("a", text))
        recorder.record(event("a", "other", reason="Other"))
        until(api, "one", "other", "four")


def test_a_text_is_repeated_after_its_time(cluster):
    api, connection = cluster
    with recording(connection, limits=event_recorder.EventLimits(0.0, 0.0)) as recorder:
        recorder.record(event("a", "one"))
        until(api, "one")
        recorder.record(event("a", "one"))
        until(api, "one", "one")


@pytest.mark.usefixtures("soon")
def test_a_retry_creates_no_second_event(cluster, monkeypatch):
    """The first response is lost, after the API server has created the event."""
    api, connection = cluster
    call, lost = connection.call, [True]

    def answer(*words, **more):
        found = call(*words, **more)
        if lost:
            lost.pop()
            monkeypatch.setattr(event_recorder.objects, "now", lambda: "2026-01-01T00:00:09Z")
            raise apiserver.ServerError("no response")
        return found

    monkeypatch.setattr(connection, "call", answer)
    with recording(connection, limits=event_recorder.EventLimits(0.0, 600.0)) as recorder:
        recorder.record(event("a", "one"))
        waiting.wait_until(lambda: not lost and not len(recorder))
        recorder.record(event("b", "two"))
        until(api, "one", "two")


def test_events_with_an_id_are_created_by_that_name_and_once(cluster):
    api, connection = cluster
    for _ in range(2):  # by two processes
        with recording(connection) as recorder:
            recorder.record(event("a", "one", id="p.1"))
            recorder.record(event("a", "two", id="p.2", warning=False))
            until(api, "one", "two")
    found = {written["metadata"]["name"]: written["type"] for written in api.under(EVENTS)}
    assert found == {"p.1": "Warning", "p.2": "Normal"}


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_a_failed_write_is_retried(cluster, status):
    api, connection = cluster
    api.refusing["POST"] = [status, status]
    with recording(connection) as recorder:
        recorder.record(event("a", "one"))
        until(api, "one")
    assert len(recorder) == 0


@pytest.mark.parametrize("status", [400, 403, 422])
def test_an_event_that_is_refused_for_good_is_dropped(cluster, status, caplog):
    api, connection = cluster
    api.refusing["POST"] = [status]
    with recording(connection) as recorder:
        recorder.record(event("a", "one"))
        waiting.wait_until(lambda: not api.refusing["POST"])
        recorder.record(event("b", "two"))
        until(api, "two")
    (message,) = [line for line in caplog.messages if line.startswith("gave up")]
    assert message.startswith(f"gave up Said of pod a: POST {EVENTS}")


def test_a_withdrawn_event_is_not_written(cluster):
    api, connection = cluster
    allowed = threading.Event()
    with recording(connection, may_act=allowed.is_set) as recorder:
        recorder.record(event("a", "one"))
        recorder.record(event("b", "two"))
        recorder.withdraw("uid-a", "Said")
        allowed.set()
        until(api, "two")
    assert len(recorder) == 0


def test_nothing_is_written_without_the_lease(cluster):
    api, connection = cluster
    allowed = threading.Event()
    with recording(connection, may_act=allowed.is_set) as recorder:
        recorder.record(event("a", "one"))
        waiting.wait_until(lambda: len(recorder) == 1)
        assert not api.asked
        allowed.set()
        until(api, "one")


def test_the_text_is_found_just_before_the_write(cluster):
    api, connection = cluster
    reasons = {"a": "full", "b": ""}

    def complete(one):
        text = reasons[one.name]
        return event(one.name, text) if text else None

    with recording(connection, complete=complete) as recorder:
        recorder.record(event("b", ""))
        recorder.record(event("a", ""))
        until(api, "full")
    assert len(recorder) == 0


def test_an_event_about_a_node_is_in_the_default_namespace(cluster):
    api, connection = cluster
    written = []
    with recording(connection, written=written.append) as recorder:
        one = event_recorder.Event("u", "", "node-1", "Said", "one", kind="Node")
        recorder.record(one)
        waiting.wait_until(lambda: written == [one])
    (found,) = api.under("/api/v1/namespaces/default/events")
    about = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "u"}
    assert found["involvedObject"] == about


def test_a_long_message_is_truncated(cluster):
    api, connection = cluster
    with recording(connection) as recorder:
        recorder.record(event("a", "\u00f6" * 2000))
        waiting.wait_until(lambda: texts(api))
    (text,) = texts(api)
    assert len(text.encode()) <= event_recorder.MOST_BYTES
    assert text.endswith("...")
