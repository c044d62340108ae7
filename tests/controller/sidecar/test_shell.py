"""The controller at work before a small API server, which refuses what a real one does."""

import threading

import pod_objects as make
import pytest

from pyvgpu.controller import leases
from pyvgpu.controller.sidecar import settings, shell

SETTINGS = settings.Settings()
PODS = "/api/v1/namespaces/team/pods"
POD = f"{PODS}/train-0"
JOB = "/apis/batch/v1/namespaces/team/jobs/train"
EVENTS = "/api/v1/namespaces/team/events"
NODE = {
    "metadata": {"name": "node-1"},
    "status": {"images": [{"names": [SETTINGS.fast_exit.image]}]},
}
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "controller": True}


def done(**more):
    main = make.container("main", make.ended(0))
    return make.pod(main, make.sidecar(command=["/bin/sh", "-c", "exec log"]), **more)


@pytest.fixture
def begin(small):
    """Start a controller; may_act tells whether it holds its lease."""
    api, connection = small
    api.put("/api/v1/nodes/node-1", NODE)
    stop = threading.Event()
    threads = []

    def start(may_act=lambda: True):
        controller = shell.Controller(connection, "pyvgpu", SETTINGS, may_act)
        threads.append(threading.Thread(target=controller.run, args=(stop,)))
        threads[-1].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join(30)


def image(api):
    return api.read(POD)["spec"]["containers"][1]["image"]


def test_a_pod_that_is_done_is_written_to_once_and_says_so(small, begin):
    api, _ = small
    begin()
    api.put(POD, done())
    api.wait_for("PATCH", POD)
    # What comes later was looked at later, and by then the news of the write had been.
    api.put(f"{PODS}/last", done(metadata={"name": "last", "uid": "uid-2"}))
    api.wait_for("PATCH", f"{PODS}/last")
    assert image(api) == SETTINGS.fast_exit.image
    assert api.asked.count(("PATCH", POD)) == 1
    said = {(it["involvedObject"]["uid"], it["reason"]) for it in api.under(EVENTS)}
    assert said == {("uid-1", "SidecarsEnding"), ("uid-2", "SidecarsEnding")}
    assert len(api.under(EVENTS)) == 2


@pytest.mark.parametrize("code", [409, 429, 500])
def test_a_write_that_fails_is_tried_again_and_its_event_is_one(small, begin, code):
    api, _ = small
    api.put(POD, done())
    api.refusing = {"POST": [code], "PATCH": [code, code]}
    begin()
    api.wait_for("PATCH", POD, 3)
    assert len(api.under(EVENTS)) == (1 if code != 409 else 0)  # 409: it is there already


def test_another_pod_of_the_same_name_is_decided_on_anew(small, begin):
    api, _ = small
    api.put(POD, done())
    api.refusing = {"PATCH": [422]}
    begin()
    api.wait_for("PATCH", POD)
    another = make.pod(make.container("main", make.running()), metadata={"uid": "uid-2"})
    api.put(POD, another)
    api.put(f"{PODS}/last", done(metadata={"name": "last", "uid": "uid-3"}))
    api.wait_for("PATCH", f"{PODS}/last")
    assert "annotations" not in api.read(POD)["metadata"]


def test_without_the_lease_nothing_is_written(small, begin):
    api, _ = small
    asked = threading.Semaphore(0)

    def may_act():
        asked.release()
        return False

    api.put(POD, done())
    begin(may_act)
    for _ in range(2):
        assert asked.acquire(timeout=10 * leases.RENEW_SECONDS)
    assert {method for method, _ in api.asked} == {"GET", "WATCH"}


def test_a_job_that_could_not_bear_a_restart_is_changed_first(small, begin):
    api, _ = small
    api.put(JOB, {"metadata": {"name": "train", "uid": "job"}, "spec": {"backoffLimit": 0}})
    api.put(POD, done(policy="OnFailure", metadata={"ownerReferences": [OWNER]}))
    begin()
    api.wait_for("PATCH", POD)
    writes = [path for method, path in api.asked if method == "PATCH"]
    assert writes == [JOB, POD]
    assert api.read(JOB)["spec"]["backoffLimit"] == 2
