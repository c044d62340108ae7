"""Unusual pods: sidecars that never start, restart rules, restricted security contexts."""

import pytest
import rig
import sidecars

pytestmark = pytest.mark.e2e

MAIN = "sleep 1"
ONCE = "if [ -e /work/once ]; then sleep 1; exit 0; fi; echo > /work/once; sleep 1; exit 1"
WORK = {"name": "work", "emptyDir": {}}
AT_WORK = [{"name": "work", "mountPath": "/work"}]


def is_done(pod):
    return rig.exit_code(pod, "main") == 0


@pytest.mark.row(2)
def test_sidecar_is_left_alone_until_the_main_container_has_succeeded(space, parts):
    main = rig.container("main", ONCE, volumeMounts=AT_WORK)
    side = sidecars.sidecar(rig.ENDS_WITH_143)
    sidecars.create_job(space, main, side, restartPolicy="OnFailure", volumes=[WORK])
    again = space.until_any(
        "pods",
        f"{sidecars.JOB}=j",
        lambda current: rig.state(current, "main")["restartCount"] and rig.runs(current, "side"),
    )
    assert not sidecars.record(again)
    pod = sidecars.has_ended(space)
    side = rig.state(pod, "side")
    assert (side["restartCount"], rig.exit_code(pod, "side")) == (1, 0)
    first = side["lastState"]["terminated"]["containerID"]
    assert first == rig.state(again, "side")["containerID"]


RULES = {
    "restartPolicy": "Never",
    "restartPolicyRules": [
        {"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}},
    ],
}


@pytest.mark.row(2)
@pytest.mark.parametrize(
    ("policy", "main", "side"),
    [
        pytest.param("Never", RULES, {}, id="main has rules"),
        pytest.param("Never", {"restartPolicy": "OnFailure"}, {}, id="main has a policy"),
        pytest.param("OnFailure", {}, {"restartPolicy": "Never"}, id="sidecar has a policy"),
        pytest.param("Never", RULES, {"restartPolicy": "OnFailure"}, id="both have one"),
    ],
)
def test_container_restart_policies_and_rules_override_the_pods(space, parts, policy, main, side):
    main = rig.container("main", ONCE, volumeMounts=AT_WORK) | main
    side = sidecars.sidecar(rig.ENDS_WITH_143) | side
    sidecars.create_job(space, main, side, restartPolicy=policy, volumes=[WORK])
    pod = sidecars.has_ended(space)
    counts = [rig.state(pod, name)["restartCount"] for name in ("main", "side")]
    assert (rig.phase(pod), counts) == ("Succeeded", [1, 1])


@pytest.mark.row(3)
def test_restarts_of_init_containers_count_for_the_backoff_limit(space, parts):
    init = rig.container("init", ONCE, volumeMounts=AT_WORK)
    main, side = rig.container("main", MAIN), sidecars.sidecar(rig.ENDS_WITH_143)
    more = {"restartPolicy": "OnFailure", "volumes": [WORK], "initContainers": [init]}
    sidecars.create_job(space, main, side, job={"backoffLimit": 2}, **more)
    assert rig.phase(sidecars.has_ended(space)) == "Succeeded"
    assert space.read("jobs", "j")["spec"]["backoffLimit"] == 3


@pytest.mark.row(4)
@pytest.mark.parametrize(
    ("script", "more", "reason"),
    [
        pytest.param(
            rig.ENDS_WITH_0,
            {"image": "localhost/none:1", "imagePullPolicy": "IfNotPresent"},
            "ImagePullBackOff",
            id="image",
        ),
        pytest.param("exit 1", {}, "CrashLoopBackOff", id="crash"),
        pytest.param(
            rig.ENDS_WITH_0,
            {"securityContext": {"runAsNonRoot": True}},  # but the image's user is root
            "CreateContainerConfigError",
            id="rights",
        ),
    ],
)
def test_sidecar_that_does_not_start_does_not_block_its_job(space, parts, script, more, reason):
    side = {**sidecars.sidecar(script), **more}
    main = rig.container("main", "sleep 4", securityContext={"runAsUser": 1})
    sidecars.create_job(space, main, side, restartPolicy="OnFailure")
    space.until_any(
        "pods",
        f"{sidecars.JOB}=j",
        lambda pod: rig.state(pod, "side")["state"].get("waiting", {}).get("reason") == reason,
    )
    assert rig.phase(sidecars.has_ended(space)) == "Succeeded"


@pytest.mark.row(4)
def test_sidecar_without_its_configmap_ends_once_it_exists(space, parts):
    """A swap keeps the container's configuration, so the new image does not start either."""
    side = sidecars.sidecar(rig.ENDS_WITH_0)
    missing = {"configMapKeyRef": {"name": "none", "key": "none"}}
    side["env"].append({"name": "LACKS", "valueFrom": missing})
    pod = sidecars.admitted(space, rig.pod("p", rig.container("main", MAIN), side))
    space.create("pods", pod)
    space.until("pods", "p", sidecars.record)
    space.create("configmaps", {"metadata": {"name": "none"}, "data": {"none": "1"}})
    assert rig.phase(space.until("pods", "p", rig.has_ended)) == "Succeeded"


@pytest.mark.row(4)
def test_sidecar_that_starts_slower_than_the_work_ends_after_its_start(space, parts):
    """kubelet does not update a pod's status while a postStart hook runs."""
    side = sidecars.sidecar(rig.IGNORES_TERM)
    side["lifecycle"] = {"postStart": {"exec": {"command": ["/bin/sh", "-c", "sleep 5"]}}}
    sidecars.create_job(space, rig.container("main", MAIN), side)
    assert rig.phase(sidecars.has_ended(space)) == "Succeeded"


@pytest.mark.row(8)
def test_native_sidecars_init_and_debug_containers_block_nothing(space, parts):
    native = rig.container("native", rig.IGNORES_TERM, restartPolicy="Always")
    init = rig.container("init", "true")
    side = sidecars.sidecar(rig.ENDS_WITH_143)
    pod = rig.pod("p", rig.container("main", "sleep 6"), side, initContainers=[init, native])
    space.create("pods", sidecars.admitted(space, pod))
    space.until("pods", "p", lambda current: rig.runs(current, "main"))
    debug = rig.container("debug", rig.IGNORES_TERM)
    change = {"op": "add", "path": "/spec/ephemeralContainers", "value": [debug]}
    space.patch("p", change, part="/ephemeralcontainers")
    space.until("pods", "p", lambda current: current["status"].get("ephemeralContainerStatuses"))
    ended = space.until("pods", "p", rig.has_ended)
    assert set(sidecars.record(ended)["containers"]) == {"side"}
    assert (rig.phase(ended), rig.exit_code(ended, "native")) == ("Succeeded", 137)


@pytest.mark.row(9)
def test_sidecar_ends_in_a_shared_process_namespace(space, parts):
    side = sidecars.sidecar("")
    side["command"] = ["/bin/busybox", "sleep", "1000"]  # no handler, but not PID 1
    main = rig.container("main", MAIN)
    sidecars.create_job(space, main, side, shareProcessNamespace=True)
    pod = sidecars.has_ended(space)
    assert rig.phase(pod) == "Succeeded"
    assert rig.state(pod, "side")["lastState"]["terminated"]["exitCode"] == 143


@pytest.mark.row(23)
def test_sidecar_with_a_restricted_security_context_ends(space, parts):
    tight = {
        "runAsNonRoot": True,
        "runAsUser": 1234,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    side = {**sidecars.sidecar(rig.IGNORES_TERM), "securityContext": tight}
    side["volumeMounts"] = AT_WORK
    main = rig.container("main", MAIN)
    around = {"securityContext": {"fsGroup": 77}, "volumes": [WORK]}
    sidecars.create_job(space, main, side, **around)
    assert rig.phase(sidecars.has_ended(space)) == "Succeeded"


@pytest.mark.alone
@pytest.mark.row(24)
def test_missing_fast_exit_image_delays_the_job_and_kills_nothing(space, parts):
    parts.finish("controller")
    parts.finish("node")
    parts.start_node(image="localhost/none:1", has="")
    parts.start_controller(image="localhost/none:1")
    try:
        sidecars.create_job(
            space, rig.container("main", MAIN), sidecars.sidecar(rig.ENDS_WITH_143)
        )
        done = space.until_any("pods", f"{sidecars.JOB}=j", is_done)
        said = space.until_event(done["metadata"]["name"], "SidecarLeft")
        (left,) = space.pods_of("j")
    finally:
        parts.finish("controller")
        parts.finish("node")
        parts.start_node()
        parts.start_controller()
    assert "the fast-exit image is not on the node" in said["message"]
    assert rig.state(left, "side") == rig.state(done, "side")
    assert not sidecars.record(left)
    assert rig.phase(sidecars.has_ended(space)) == "Succeeded"
