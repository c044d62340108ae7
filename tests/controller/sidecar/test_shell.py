"""The controller against a fake API server that rejects what a real one rejects."""

import dataclasses
import datetime
import threading
import time

import pod_objects as make
import pytest
import waiting

from pyvgpu.controller.sidecar import controller_settings, exit_reports, reconcile, shell
from pyvgpu.controller.sidecar.meters import ControllerMeter

SETTINGS = controller_settings.SidecarSettings(sweep_seconds=0)
PODS = "/api/v1/namespaces/team/pods"
POD = f"{PODS}/train-0"
JOB = "/apis/batch/v1/namespaces/team/jobs/train"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/pyvgpu/leases"
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
    """Start a controller; may_act returns whether it holds its lease."""
    api, connection = small
    api.put("/api/v1/nodes/node-1", NODE)
    stop = threading.Event()
    threads = []

    def start(may_act=lambda: True, with_settings=SETTINGS):
        meter = ControllerMeter()
        controller = shell.Controller(connection, "pyvgpu", with_settings, may_act, meter)
        threads.append(threading.Thread(target=controller.run, args=(stop,)))
        threads[-1].start()
        return meter

    yield start
    stop.set()
    for thread in threads:
        thread.join(waiting.PROMPT)


def image(api):
    return api.read(POD)["spec"]["containers"][1]["image"]


def test_a_done_pod_gets_one_write_and_one_event(small, begin):
    api, _ = small
    begin()
    api.put(POD, done())
    api.wait_for("PATCH", POD)
    # A later pod is processed later, after the watch delivered the write.
    api.put(f"{PODS}/last", done(metadata={"name": "last", "uid": "uid-2"}))
    api.wait_for("PATCH", f"{PODS}/last")
    assert image(api) == SETTINGS.fast_exit.image
    assert api.asked.count(("PATCH", POD)) == 1
    waiting.wait_until(lambda: len(api.under(EVENTS)) == 2)
    said = {(event["involvedObject"]["uid"], event["reason"]) for event in api.under(EVENTS)}
    assert said == {("uid-1", "SidecarsEnding"), ("uid-2", "SidecarsEnding")}
    assert len(api.under(EVENTS)) == 2


@pytest.mark.slow
@pytest.mark.row(16)
@pytest.mark.parametrize("code", [403, 409, 422, 429, 500])
def test_a_failed_write_is_retried_and_makes_one_event(small, begin, code):
    api, _ = small
    api.put(POD, done())
    api.refusing = {"POST": [code], "PATCH": [code, code]}
    begin()
    api.wait_for("PATCH", POD, 3)
    api.wait_for("POST", EVENTS)
    if code in (403, 422):
        # Refused for good: it is created when the pod is reconciled again, after any change.
        changed = api.read(POD)
        changed["metadata"]["labels"] = {"changed": "yes"}
        api.put(POD, changed)
    if code == 409:  # the event exists
        api.put(f"{PODS}/last", done(metadata={"name": "last", "uid": "uid-2"}))
        waiting.wait_until(lambda: api.under(EVENTS))
        (event,) = api.under(EVENTS)
        assert event["involvedObject"]["uid"] == "uid-2"
        assert api.asked.count(("POST", EVENTS)) == 2
        return
    api.wait_for("POST", EVENTS, 2)
    waiting.wait_until(lambda: api.under(EVENTS))
    assert len(api.under(EVENTS)) == 1


def test_a_lost_event_is_created_by_the_next_controller(small, begin):
    api, _ = small
    api.put(POD, done())
    api.refusing = {"POST": [500] * 1000}
    holds = threading.Event()
    holds.set()
    begin(holds.is_set)
    api.wait_for("PATCH", POD)
    api.wait_for("POST", EVENTS)
    holds.clear()
    assert not api.under(EVENTS)
    api.refusing = {}
    begin()  # without any state but the pod
    waiting.wait_until(lambda: api.under(EVENTS))
    assert [event["reason"] for event in api.under(EVENTS)] == ["SidecarsEnding"]


@pytest.mark.row(15)
def test_another_pod_of_the_same_name_is_decided_again(small, begin):
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


def lease_that_says(renewed, *keys):
    at = datetime.datetime.fromisoformat(make.AT)
    claim = exit_reports.ExitReport("uid-1", {"main": exit_reports.End("containerd://1", 0, at)})
    said = exit_reports.write(dict.fromkeys(keys, claim))
    metadata = {"namespace": "pyvgpu", "name": "pyvgpu-sidecar-node-1"}
    metadata["annotations"] = {exit_reports.ANNOTATION: said}
    return {"metadata": metadata, "spec": {"holderIdentity": "node-1", "renewTime": renewed}}


@pytest.mark.row(28)
@pytest.mark.parametrize("lives", [True, False])
def test_an_exit_report_of_a_live_node_part_is_trusted(small, begin, lives):
    """A node part that is seen to renew its lease is live, even if its clock is years off."""
    api, _ = small
    api.put(f"{LEASES}/pyvgpu-sidecar-node-1", lease_that_says("2020-01-01T00:00:00.000000Z"))
    side = make.sidecar(command=["/bin/sh", "-c", "exec log"])
    api.put(POD, make.pod(make.container("main", make.running()), side))
    begin()
    api.wait_for("WATCH", "/api/v1/pods")
    api.wait_for("WATCH", LEASES)  # the first version of the lease was seen
    renewed = "2020-01-01T00:00:10.000000Z" if lives else "2020-01-01T00:00:00.000000Z"
    api.put(f"{LEASES}/pyvgpu-sidecar-node-1", lease_that_says(renewed, "team/train-0"))
    if lives:
        api.wait_for("PATCH", POD)
        assert image(api) == SETTINGS.fast_exit.image
    api.put(f"{PODS}/last", done(metadata={"name": "last", "uid": "uid-2"}))
    api.wait_for("PATCH", f"{PODS}/last")
    assert api.asked.count(("PATCH", POD)) == int(lives)


@pytest.mark.row(28)
def test_without_the_lease_nothing_is_written(small, begin):
    api, _ = small
    asked = threading.Semaphore(0)

    def may_act():
        asked.release()
        return False

    api.put(POD, done())
    begin(may_act)
    for _ in range(2):
        assert asked.acquire(timeout=waiting.PROMPT)
    api.wait_for("WATCH", "/api/v1/pods")
    assert {method for method, _ in api.asked} == {"GET", "WATCH"}


@pytest.mark.row(28)
def test_a_decision_at_the_loss_of_the_lease_is_made_again_later(small, begin):
    api, _ = small
    has, asked, refused = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)

    def may_act():
        (asked if has.is_set() else refused).release()
        return has.is_set()

    has.set()
    begin(may_act)
    for _ in range(SETTINGS.workers):  # each then waits for a pod
        assert asked.acquire(timeout=60)
    has.clear()
    api.put(POD, done())
    assert refused.acquire(timeout=60)
    has.set()
    api.wait_for("PATCH", POD)


@pytest.mark.slow
def test_a_jobs_backoff_limit_is_raised_first(small, begin):
    api, _ = small
    api.put(JOB, {"metadata": {"name": "train", "uid": "job"}, "spec": {"backoffLimit": 0}})
    api.put(POD, done(policy="OnFailure", metadata={"ownerReferences": [OWNER]}))
    begin()
    api.wait_for("PATCH", POD)
    writes = [path for method, path in api.asked if method == "PATCH"]
    assert writes == [JOB, POD]
    assert api.read(JOB)["spec"]["backoffLimit"] == 2


def test_a_job_counts_restarts_of_init_containers(small, begin):
    api, _ = small
    api.put(JOB, {"metadata": {"name": "train", "uid": "job"}, "spec": {"backoffLimit": 4}})
    pod = done(policy="OnFailure", metadata={"ownerReferences": [OWNER]})
    inits = [{"name": name, "restartCount": count} for name, count in (("get", 1), ("mesh", 2))]
    pod["status"]["initContainerStatuses"] = inits
    api.put(POD, pod)
    begin()
    api.wait_for("PATCH", POD)
    assert api.read(JOB)["spec"]["backoffLimit"] == 3 + 1 + 1


def test_a_deleted_job_counts_no_restarts(small, begin):
    api, _ = small
    api.put(POD, done(policy="OnFailure", metadata={"ownerReferences": [OWNER]}))
    begin()
    api.wait_for("PATCH", POD)
    assert image(api) == SETTINGS.fast_exit.image


@pytest.mark.slow
def test_a_failing_pod_does_not_block_others(small, begin, monkeypatch):
    api, _ = small

    def fail(pod, *_):
        if pod.name == "train-0":
            raise ZeroDivisionError
        return decide(pod, *_)

    decide = reconcile.reconcile
    monkeypatch.setattr(reconcile, "reconcile", fail)
    api.put(POD, done())
    meter = begin()
    wait_for_figure(meter, "pyvgpu_failures_total 3.0")
    many(api)
    wait_until_all_are_written(api)
    assert image(api) != SETTINGS.fast_exit.image


MANY = 200


def many(api):
    for number in range(MANY):
        name = f"p{number}"
        api.put(f"{PODS}/{name}", done(metadata={"name": name, "uid": f"uid-{name}"}))


def writes(api):
    return [call for call in api.asked if call[0] in ("POST", "PATCH")]


def written(api):
    return [
        pod
        for pod in api.under("/api/v1/pods")
        if pod["metadata"]["name"].startswith("p")
        and pod["spec"]["containers"][1]["image"] == SETTINGS.fast_exit.image
    ]


def wait_until_all_are_written(api):
    waiting.wait_until(lambda: len(written(api)) == MANY, 100, lambda: len(written(api)))


@pytest.mark.slow
def test_refused_writes_do_not_flood_the_server(small, begin, pauses):
    api, _ = small
    many(api)
    api.refusing = {"POST": [503] * 10_000, "PATCH": [503] * 10_000}
    begun = time.monotonic()
    begin()
    waiting.wait_until(lambda: len(pauses) >= 3)
    assert pauses.kept_seconds <= time.monotonic() - begun
    # Each worker tries once at first and once after each pause, not once per pod.
    asked = len(writes(api))
    assert 1 <= asked <= SETTINGS.workers * (len(pauses) + 1)
    api.refusing = {}
    wait_until_all_are_written(api)


@pytest.mark.slow
def test_an_unavailable_server_gets_few_requests_and_nothing_is_lost(small, begin, pauses):
    api, _ = small
    api.put(POD, done())
    begin()
    api.wait_for("PATCH", POD)
    before, begun = len(api.asked), time.monotonic()
    api.go_down()
    many(api)
    waiting.wait_until(lambda: len(pauses) >= 9)
    assert pauses.kept_seconds <= time.monotonic() - begun
    asked = len(api.asked) - before
    assert 1 <= asked <= len(pauses) + 3  # once after each pause, and once per lost watch
    api.down = False
    wait_until_all_are_written(api)


def unlabelled(name, **more):
    pod = make.pod(
        make.container("main", make.running()),
        make.sidecar(),
        metadata={"name": name, "uid": name, **more},
    )
    api_labels = more.get("labels")
    if api_labels is None:
        pod["metadata"].pop("labels", None)
    return pod


@pytest.mark.slow
def test_a_marked_pod_without_our_label_is_labelled(small, begin):
    api, _ = small
    api.put(f"{PODS}/bare", unlabelled("bare"))
    meter = begin(with_settings=dataclasses.replace(SETTINGS, sweep_seconds=1))
    api.wait_for("PATCH", f"{PODS}/bare")
    assert api.read(f"{PODS}/bare")["metadata"]["labels"] == {"pyvgpu.io/sidecars": "managed"}
    wait_for_figure(meter, "pyvgpu_sidecar_adopted_pods_total 1.0")


def wait_for_figure(meter, line):
    waiting.wait_until(lambda: line in meter.text().decode().splitlines(), 60, meter.text)


def test_figures_of_a_pod_are_counted_once(small, begin):
    api, _ = small
    made = done()
    made["spec"]["containers"][0]["resources"] = {"limits": {"pyvgpu.io/vcore": "50"}}
    api.put(POD, made)
    meter = begin()
    api.wait_for("PATCH", POD)
    over = api.read(POD)
    over["status"]["phase"] = "Succeeded"
    over["status"]["containerStatuses"][1] |= make.ended(0, at="2026-11-21T10:00:04Z")
    for _ in range(2):
        api.put(POD, over)
    wait_for_figure(meter, "pyvgpu_sidecar_gpu_idle_seconds_total 2.0")
    api.put(f"{PODS}/last", done(metadata={"name": "last", "uid": "uid-2"}))
    api.wait_for("PATCH", f"{PODS}/last")
    wait_for_figure(meter, 'pyvgpu_sidecar_decisions_total{path="swap"} 2.0')
    said = meter.text().decode().splitlines()
    assert 'pyvgpu_sidecar_end_seconds_count{path="swap"} 1.0' in said
    assert 'pyvgpu_sidecar_end_seconds_sum{path="swap"} 4.0' in said
    assert "pyvgpu_sidecar_gpu_idle_seconds_total 2.0" in said
