"""Decisions of sidecar-controller on pods without a kubelet, whose status the tests write."""

import json
import threading
from concurrent import futures

import paper
import pytest
import rig
import sidecars

from pyvgpu import names
from pyvgpu.controller.sidecar import controller_settings, shell
from pyvgpu.controller.sidecar.meters import ControllerMeter
from pyvgpu.kube import apiserver

pytestmark = pytest.mark.e2e

MANY = 1200  # pods; a page has 500
BEYOND = "2026-11-21T10:00:05Z"


@pytest.fixture(scope="module", autouse=True)
def _node(parts):
    with paper.node():
        yield


def create(space, *containers, name="p", **spec):
    """Create a pod without a status from kubelet."""
    return space.create("pods", paper.pod(name, *containers, **spec))


def main(name="main", **more):
    return rig.container(name, "", **more)


def is_left(space, parts, why, name="p"):
    """Return whether the controller has examined a pod, logged *why*, and written nothing."""
    before = space.read("pods", name)
    parts.wait_for_line("controller", f"pod {space.name}/{name}: {why}")
    after = space.read("pods", name)
    return before == after and not sidecars.record(after)


@pytest.mark.row(5)
def test_controller_waits_for_a_main_container_without_its_image(space, parts):
    create(space, main("one"), main("two"), paper.sidecar())
    states = (paper.ended("one", 0), paper.waiting("two", "ImagePullBackOff"))
    paper.say(space, "p", *states, paper.running("side"))
    assert is_left(space, parts, "main container two has not started: ImagePullBackOff")


@pytest.mark.row(6)
def test_with_never_a_failed_main_container_waits_for_the_others(space, parts):
    create(space, main("one"), main("two"), paper.sidecar())
    paper.say(space, "p", paper.ended("one", 1), paper.running("two"), paper.running("side"))
    assert is_left(space, parts, "main container two is running")
    paper.say(space, "p", paper.ended("one", 1), paper.ended("two", 0), paper.running("side"))
    assert space.until("pods", "p", sidecars.record)


@pytest.mark.parametrize("at", [None, "9999-12-31T23:59:59Z"])
def test_main_container_may_have_ended_at_any_time_or_none(space, parts, at):
    create(space, main(), paper.sidecar())
    paper.say(space, "p", paper.ended("main", 0, at=at), paper.running("side"))
    assert space.until("pods", "p", sidecars.record)


def test_pod_with_a_time_that_no_program_can_read_disturbs_no_other(space, parts):
    """The API server sends it in the year 10000, and itself refuses each patch of that pod."""
    create(space, main(), paper.sidecar(), name="odd")
    paper.say(
        space, "odd", paper.ended("main", 0, at="9999-12-31T23:59:59-01:00"), paper.running("side")
    )
    parts.wait_for_line("controller", f"pod {space.name}/odd: the main containers are done")
    create(space, main(), paper.sidecar())
    paper.say(space, "p", paper.ended("main", 0), paper.running("side"))
    assert space.until("pods", "p", sidecars.record)


@pytest.mark.row(7)
@pytest.mark.parametrize(
    ("containers", "more", "why"),
    [
        pytest.param(
            (paper.sidecar("one"), paper.sidecar("two")),
            {},
            "every container is marked as a sidecar",
            id="all marked",
        ),
        pytest.param((main("one"), main("two")), {}, "no container is marked", id="none marked"),
        pytest.param(
            (main("one"), paper.sidecar("two")),
            {"restartPolicy": "Always"},
            "restartPolicy is Always",
            id="Always",
        ),
    ],
)
def test_unsupported_pods_are_left_alone(space, parts, containers, more, why):
    create(space, *containers, **more)
    paper.say(space, "p", paper.ended("one", 0), paper.running("two"))
    assert is_left(space, parts, why)


@pytest.mark.row(7)
def test_static_pod_is_left_alone(space, parts):
    pod = paper.pod("p", main(), paper.sidecar())
    pod["metadata"]["annotations"] = {
        "kubernetes.io/config.mirror": "1",
        "kubernetes.io/config.source": "file",
    }
    space.create("pods", pod)
    paper.say(space, "p", paper.ended("main", 0), paper.running("side"))
    assert is_left(space, parts, "a static pod is defined by a file on its node")


@pytest.mark.alone
@pytest.mark.row(12)
def test_two_active_controllers_write_once_and_send_one_event(space):
    create(space, main(), paper.sidecar())
    paper.say(space, "p", paper.ended("main", 0), paper.running("side"))
    chosen = controller_settings.SidecarSettings(
        fast_exit=controller_settings.FastExit(rig.FAST_EXIT)
    )
    stop = threading.Event()
    both = [
        threading.Thread(target=controller.run, args=(stop,))
        for controller in (
            shell.Controller(
                space.server, sidecars.NAMESPACE, chosen, lambda: True, ControllerMeter()
            )
            for _ in range(2)
        )
    ]
    for one in both:
        one.start()
    try:
        pod = space.until("pods", "p", sidecars.record)
        space.create("pods", paper.pod("after", main(), paper.sidecar()))
        paper.say(space, "after", paper.ended("main", 0), paper.running("side"))
        space.until("pods", "after", sidecars.record)
        for name in ("p", "after"):
            space.until_event(name, "SidecarsEnding")
    finally:
        stop.set()
        for one in both:
            one.join()
    now = space.read("pods", "p")
    assert now["metadata"]["resourceVersion"] == pod["metadata"]["resourceVersion"]
    assert len(events(space, "p", "SidecarsEnding")) == 1


def events(space, pod, reason):
    query = {"fieldSelector": f"involvedObject.name={pod},reason={reason}"}
    return space.server.items(space.path("events"), query)[0]


@pytest.mark.row(15)
def test_record_of_another_pod_with_the_same_name_is_ignored(space, parts):
    create(space, main(), paper.sidecar())
    paper.say(space, "p", paper.ended("main", 0), paper.running("side"))
    old = space.until("pods", "p", sidecars.record)
    now = {"gracePeriodSeconds": 0}
    space.server.call("DELETE", space.path("pods", "p"), body=now)
    again = paper.pod("p", main(), paper.sidecar())
    again["metadata"]["annotations"] = old["metadata"]["annotations"]
    new = space.create("pods", again)
    paper.say(space, "p", paper.running("main"), paper.running("side"))
    parts.wait_for_line("controller", f"pod {space.name}/p: main container main is running")
    assert space.read("pods", "p")["spec"]["containers"][1]["image"] == rig.BUSYBOX
    paper.say(space, "p", paper.ended("main", 0), paper.running("side"))
    uid = new["metadata"]["uid"]
    done = space.until("pods", "p", lambda pod: sidecars.record(pod).get("uid") == uid)
    assert done["spec"]["containers"][1]["image"] == rig.FAST_EXIT


@pytest.mark.row(15)
def test_patch_for_a_deleted_pod_does_not_reach_its_successor(space):
    space.create("pods", rig.pod("p", main()))
    test = {"op": "test", "path": "/metadata/uid", "value": "another"}
    change = {"op": "replace", "path": "/spec/containers/0/image", "value": rig.FAST_EXIT}
    with pytest.raises(apiserver.ServerError) as refused:
        space.patch("p", test, change)
    assert refused.value.status == 422


@pytest.mark.row(22)
def test_container_inserted_first_by_another_webhook_is_not_patched(space, parts):
    create(space, rig.container("proxy", ""), paper.sidecar(), main())
    states = (paper.running("side"), paper.ended("main", 0), paper.ended("proxy", 0))
    paper.say(space, "p", *states)  # not in the containers' order
    pod = space.until("pods", "p", sidecars.record)
    images = {container["name"]: container["image"] for container in pod["spec"]["containers"]}
    assert images == {"proxy": rig.BUSYBOX, "side": rig.FAST_EXIT, "main": rig.BUSYBOX}


@pytest.mark.row(25)
def test_sidecar_that_has_ended_by_itself_is_left_alone(space, parts):
    create(space, main(), paper.sidecar())
    paper.say(space, "p", paper.ended("main", 0), paper.ended("side", 0))
    assert is_left(space, parts, "every container has ended")


@pytest.mark.row(26)
def test_sidecar_that_crashed_before_the_main_container_is_left_alone(space, parts):
    create(space, main(), paper.sidecar())
    paper.say(space, "p", paper.running("main"), paper.ended("side", 1))
    assert is_left(space, parts, "main container main is running")
    paper.say(space, "p", paper.ended("main", 0, at=BEYOND), paper.ended("side", 1))
    assert is_left(space, parts, "every container has ended")


@pytest.mark.alone
@pytest.mark.row(28)
def test_controller_writes_nothing_without_its_lease(space, parts):
    begun = parts.log("controller").stat().st_size
    with parts.lease_of("another"):
        parts.wait_for_line("controller", "lost lease", begun)
        create(space, main(), paper.sidecar())
        paper.say(space, "p", paper.ended("main", 0), paper.running("side"))
        with pytest.raises(rig.NotSeenError):
            space.until("pods", "p", sidecars.record, seconds=3)
    assert space.until("pods", "p", sidecars.record)


@pytest.mark.alone
@pytest.mark.row(18)
def test_pods_on_all_list_pages_are_processed(space, parts):
    assert parts.finish("controller") == 0
    every = [f"p{number:04}" for number in range(MANY)]
    with futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: create(space, main(), paper.sidecar(), name=name), every))
    last = (every[0], every[MANY // 2], every[-1])
    for name in last:
        paper.say(space, name, paper.ended("main", 0), paper.running("side"))
    parts.start_controller()
    for name in last:
        assert space.until("pods", name, sidecars.record)
    others = [pod for pod in space.pods() if pod["metadata"]["name"] not in last]
    assert len(others) == MANY - len(last)
    assert not any(map(sidecars.record, others))


def test_record_written_by_a_user_is_ignored(space, parts):
    pod = paper.pod("p", main(), paper.sidecar())
    made_up = {"v": 1, "uid": "x", "step": 2, "containers": {"main": {"path": "stop"}}}
    pod["metadata"]["annotations"] = {names.STOP_ANNOTATION: json.dumps(made_up)}
    space.create("pods", pod)
    paper.say(space, "p", paper.ended("main", 0), paper.running("side"))
    done = space.until("pods", "p", lambda current: sidecars.record(current).get("uid") != "x")
    assert set(sidecars.record(done)["containers"]) == {"side"}
