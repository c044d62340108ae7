"""The node part between a fake API server and a fake container runtime."""

import contextlib
import datetime
import json
import threading

import pod_objects as make
import pytest
import small_kubelet as model
import waiting

pytest.importorskip("prometheus_client", reason="needs prometheus-client")
small_runtime = pytest.importorskip("small_runtime", reason="needs grpcio")

from pyvgpu.controller.sidecar import (  # noqa: E402
    controller_settings,
    exit_reports,
    meters,
    node_agent,
    nodes,
    reconcile,
    sidecar_pods,
)
from pyvgpu.kube import leases, objects  # noqa: E402

PODS = "/api/v1/namespaces/team/pods"
POD = f"{PODS}/train-0"
LEASE = leases.path("pyvgpu", leases.NODE + "node-1")
ZERO = {"SIDECAR_TERMINATION_EXITS_ZERO": "true"}
SETTINGS = controller_settings.SidecarSettings()


@pytest.fixture
def begin(small, tmp_path, monkeypatch):
    """Start a node part with a runtime of that release."""
    api, connection = small
    stop = threading.Event()
    monkeypatch.setattr(node_agent, "AGAIN_SECONDS", 0.05)
    with contextlib.ExitStack() as opened:

        def start(release="v2.4.2", name="containerd", **found):
            runtime = small_runtime.SmallRuntime(release, name)
            runtime.images.add(SETTINGS.fast_exit.image)
            runtime.containers.update(found)
            client = opened.enter_context(small_runtime.running(tmp_path, runtime))
            place = node_agent.NodePart("node-1", tmp_path / "begun")
            part = node_agent.NodeAgent(connection, client, place, SETTINGS, meters.NodeMeter())
            name = leases.NODE + "node-1"
            lease = leases.Lease(connection, "pyvgpu", name, "node-1", SETTINGS.lease_seconds)
            thread = threading.Thread(target=part.run, args=(lease, stop))
            thread.start()
            opened.callback(thread.join, 30)
            return runtime

        yield start
        stop.set()


def at_work(**more):
    """Return a pod whose main container is running by its status."""
    side = make.sidecar("log", environment=ZERO)
    return make.pod(make.container("main", make.running("containerd://main")), side, **more)


def two(**log):
    made = small_runtime.Container
    return {"main": made("main"), "log": made("log", **log)}


@pytest.mark.parametrize(
    ("name", "release", "events"),
    [("containerd", "v2.4.2", True), ("containerd", "v1.7.27", False), ("cri-o", "1.34.0", False)],
)
def test_a_sidecar_is_signaled_as_soon_as_the_runtime_reports_the_end_of_main(
    small, begin, name, release, events
):
    api, _ = small
    api.put(POD, at_work())
    runtime = begin(release, name, **two())
    if events:
        runtime.wait_for_a_reader()
    api.wait_for("WATCH", "/api/v1/pods")
    runtime.end("main")
    runtime.wait_for("stop", "log")
    assert not [method for method, path in api.asked if method == "PATCH"]


def test_a_main_container_that_ended_before_the_start_is_noticed(small, begin):
    api, _ = small
    api.put(POD, at_work())
    runtime = begin(
        main=small_runtime.Container("main", code=0), log=small_runtime.Container("log")
    )
    runtime.wait_for("stop", "log")


def asked_for(container_id):
    """Return a pod whose record requests to stop the container with that ID."""
    side = make.sidecar("log", make.running(container_id), environment=ZERO)
    pod = make.pod(make.container("main", make.ended(0)), side)
    moment = reconcile.DecisionMoment(model.BEGIN + datetime.timedelta(seconds=1), lambda: 0.5)
    patch = reconcile.reconcile(
        sidecar_pods.read(pod), model.around(), moment, model.SETTINGS
    ).patch
    return model.apply(pod, patch.operations)


DONE = {"main": small_runtime.Container("main", code=0)}


def other(name, **more):
    """Return another pod, which the node part processes after those before it."""
    return at_work(metadata={"name": name, "uid": name, **more})


def proof(api, runtime):
    """Wait until the node part has processed all earlier changes, by stopping a last pod."""
    made = small_runtime.Container
    runtime.containers |= {
        "last-main": made("main", "last", "last", code=0),
        "last-log": made("log", "last", "last"),
    }
    api.put(f"{PODS}/last", other("last"))
    runtime.wait_for("stop", "last-log")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["containerd", "cri-o"])
def test_a_request_names_a_container_like_kubelet(small, begin, name):
    api, _ = small
    api.put(POD, asked_for(f"{name}://log"))
    runtime = begin(name=name, **DONE, log=small_runtime.Container("log"))
    runtime.wait_for("stop", "log")


def quitting(name, grace, **more):
    options = {"SIDECAR_TERMINATION_COMMAND": "quit", "SIDECAR_TERMINATION_GRACE_SECONDS": grace}
    main = make.container("main", make.running("containerd://main"))
    side = make.sidecar("log", environment={**options, **more})
    return make.pod(main, side, metadata={"name": name, "uid": name})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "grace", "more", "signaled"),
    [
        pytest.param(True, "60", {}, False, id="its command ends it"),
        pytest.param(False, "1", {}, False, id="its command does not"),
        pytest.param(False, "60", ZERO, True, id="its signal does, too"),
    ],
)
def test_a_container_that_its_command_ends_gets_no_signal(
    small, begin, ends, grace, more, signaled
):
    api, _ = small
    made = small_runtime.Container
    found = {"main": made("main", "p", "p", code=0), "log": made("log", "p", "p", quits=ends)}
    api.put(f"{PODS}/p", quitting("p", grace, **more))
    runtime = begin(**found)
    runtime.wait_for("execute", "log")
    if signaled:
        runtime.wait_for("stop", "log")
    waiting.wait_until(lambda: not threads("_stop"), 60)
    assert (("stop", "log") in runtime.asked) is signaled
    assert runtime.asked.count(("execute", "log")) == 1


def threads(name):
    return [thread for thread in threading.enumerate() if f"({name})" in thread.name]


@pytest.mark.row(14)
def test_a_request_for_a_container_that_was_replaced_is_dropped(small, begin):
    api, _ = small
    api.put(POD, asked_for("containerd://log"))
    made = small_runtime.Container
    runtime = begin(**DONE, log=made("log", code=1), again=made("log", attempt=1))
    proof(api, runtime)
    assert ("stop", "again") not in runtime.asked


@pytest.mark.row(15)
def test_a_request_for_another_pod_of_the_same_name_is_dropped(small, begin):
    api, _ = small
    pod = asked_for("containerd://log")
    pod["metadata"]["uid"] = "uid-2"
    api.put(POD, pod)
    made = small_runtime.Container
    mine = {"m": made("main", uid="uid-2", code=0), "log": made("log", uid="uid-2")}
    runtime = begin(**mine)
    proof(api, runtime)
    assert ("stop", "log") not in runtime.asked


@pytest.mark.row(10)
@pytest.mark.parametrize(
    "more",
    [
        {"metadata": {"deletionTimestamp": make.AT}},
        {"conditions": ["DisruptionTarget"]},
        {"phase": "Failed"},
    ],
    ids=["deleted", "evicted or preempted", "over"],
)
def test_a_pod_that_kubelet_ends_is_left_to_kubelet(small, begin, more):
    api, _ = small
    api.put(POD, at_work(**more))
    runtime = begin(**DONE, log=small_runtime.Container("log"))
    proof(api, runtime)
    assert ("stop", "log") not in runtime.asked


@pytest.mark.slow
def test_a_valid_request_is_carried_out(small, begin):
    api, _ = small
    api.put(POD, asked_for("containerd://log"))
    runtime = begin(**DONE, log=small_runtime.Container("log"))
    runtime.wait_for("stop", "log")


@pytest.mark.slow
def test_the_lease_reports_the_fast_exit_image(small, begin):
    api, _ = small
    begin()
    api.wait_for("POST", leases.path("pyvgpu"))
    annotations = api.read(LEASE)["metadata"]["annotations"]
    assert annotations[nodes.FAST_EXIT_ANNOTATION] == SETTINGS.fast_exit.image


def test_the_lease_reports_whether_requested_images_are_present(small, begin):
    api, _ = small
    runtime = begin(**two())
    runtime.images.add("here:1")
    asked = '{"log": {"image": "here:1"}, "mesh": {"image": "away:1"}}'
    api.put(POD, at_work(metadata={"annotations": {"pyvgpu.io/swap": asked}}))
    waiting.wait_until(
        lambda: (
            nodes.read_images(annotations(api).get(nodes.IMAGES_ANNOTATION))
            == {"here:1": True, "away:1": False}
        )
    )


@pytest.mark.slow
def test_requests_for_thousands_of_images_do_not_prevent_lease_renewal(small, begin):
    api, _ = small
    begin(**two())
    asked = {f"c{number}": {"image": f"{number:04}:{'x' * 500}"} for number in range(2000)}
    asked["long"] = {"image": "x" * 5000}
    api.put(POD, at_work(metadata={"annotations": {"pyvgpu.io/swap": json.dumps(asked)}}))
    waiting.wait_until(
        lambda: nodes.read_images(annotations(api).get(nodes.IMAGES_ANNOTATION)), seconds=60
    )
    reported = annotations(api)[nodes.IMAGES_ANNOTATION]
    assert len(reported) < objects.MOST_ANNOTATION_BYTES / 2
    assert "x" * 5000 not in reported


@pytest.mark.parametrize("image", ["\\ud800", "\\u0000", " a"])
def test_an_odd_image_name_does_not_break_the_node_part(small, begin, image):
    api, _ = small
    asked = f'{{"log": {{"image": "{image}"}}}}'
    api.put(f"{PODS}/odd", other("odd", annotations={"pyvgpu.io/swap": asked}))
    runtime = begin(**DONE, log=small_runtime.Container("log"))
    proof(api, runtime)
    api.wait_for("POST", leases.path("pyvgpu"))
    assert not nodes.read_images(annotations(api).get(nodes.IMAGES_ANNOTATION))


class CountedImages(set[str]):
    """Images of a node, and how often the runtime was asked for one."""

    polls = 0

    def __contains__(self, image: object) -> bool:
        self.polls += 1
        return super().__contains__(image)


def test_the_lease_is_written_when_a_report_changes_and_not_at_each_poll(
    small, begin, monkeypatch
):
    api, _ = small
    monkeypatch.setattr(node_agent, "IMAGES_SECONDS", 0.0)
    runtime = begin()
    runtime.images = counted = CountedImages(runtime.images)
    waiting.wait_until(lambda: counted.polls > 3)
    lease_writes = [method for method, path in api.asked if "/leases" in path and method != "GET"]
    assert lease_writes == ["POST"]
    assert api.read(LEASE)["spec"]["leaseDurationSeconds"] == SETTINGS.lease_seconds
    counted.clear()
    waiting.wait_until(lambda: annotations(api)[nodes.FAST_EXIT_ANNOTATION] == "")


def annotations(api):
    try:
        return api.read(LEASE)["metadata"]["annotations"]
    except KeyError:
        return {}


def test_a_replaced_container_is_killed_with_its_deleted_pod(small, begin):
    api, _ = small
    side = make.sidecar("log")
    pod = make.pod(make.container("main", make.ended(0)), side)
    moment = reconcile.DecisionMoment(model.BEGIN + datetime.timedelta(seconds=1), lambda: 0.5)
    decision = reconcile.reconcile(sidecar_pods.read(pod), model.around(), moment, model.SETTINGS)
    pod = model.apply(pod, decision.patch.operations)
    pod["metadata"] |= {"deletionTimestamp": make.AT, "deletionGracePeriodSeconds": 0}
    api.put(POD, pod)
    runtime = begin(**DONE, log=small_runtime.Container("log"))
    proof(api, runtime)
    assert ("stop", "log") not in runtime.asked  # kubelet may not have begun
    replacing = {
        "metadata": {"namespace": "team", "name": "e"},
        "involvedObject": {"fieldPath": "spec.containers{log}"},
        "message": "Container log definition changed, will be restarted",
        "lastTimestamp": "2099-01-01T00:00:00Z",
    }
    api.put("/api/v1/namespaces/team/events/e", replacing)
    runtime.wait_for("stop", "log")


@pytest.mark.slow
def test_the_lease_reports_ended_main_containers_until_the_controller_knows(small, begin):
    api, _ = small
    swapped = make.sidecar("log")
    main = make.container("main", make.running("containerd://main"))
    api.put(POD, make.pod(main, swapped))
    runtime = begin(**two())
    runtime.wait_for_a_reader()
    api.wait_for("POST", leases.path("pyvgpu"))
    runtime.end("main")
    wait_for_claims(api, {"team/train-0"})
    api.put(POD, make.pod(make.container("main", make.ended(0)), swapped))
    runtime.containers |= {"other": small_runtime.Container("main", "other", "other")}
    api.put(f"{PODS}/other", make.pod(main, swapped, metadata={"name": "other", "uid": "other"}))
    runtime.end("other")
    wait_for_claims(api, {"team/other"})
    assert ("stop", "log") not in runtime.asked


def wait_for_claims(api, keys):
    def reported():
        return api.read(LEASE)["metadata"]["annotations"].get(exit_reports.ANNOTATION)

    waiting.wait_until(lambda: set(exit_reports.read(reported())) == keys, 60, reported)


def test_a_container_that_ignores_its_signal_is_signaled_once(small, begin):
    api, _ = small
    pod = at_work()
    pod["spec"]["containers"][1]["env"].append(
        {"name": "SIDECAR_TERMINATION_GRACE_SECONDS", "value": "1"}
    )
    api.put(POD, pod)
    runtime = begin(**two(deaf=True))
    runtime.end("main")
    runtime.wait_for("stop", "log")
    proof(api, runtime)
    assert runtime.asked.count(("stop", "log")) == 1


@pytest.mark.slow
def test_marker_files_of_removed_containers_are_deleted(small, begin, tmp_path):
    api, _ = small
    (tmp_path / "begun").mkdir()
    for name in ("gone", "log"):
        (tmp_path / "begun" / name).touch()
    begin(log=small_runtime.Container("log"))
    api.wait_for("POST", leases.path("pyvgpu"))
    assert [file.name for file in (tmp_path / "begun").iterdir()] == ["log"]
