"""Jobs whose sidecars we end: the controller and the node part as processes, in a real cluster."""

import pytest
import rig
import sidecars

pytestmark = pytest.mark.e2e

MAIN = "sleep 1"
LONG = 10 * rig.SECONDS


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_a_sidecar_that_ignores_every_signal_does_not_keep_its_job(space, parts, policy):
    sidecars.create_job(
        space,
        rig.container("main", MAIN),
        sidecars.sidecar(rig.IGNORES_TERM),
        restartPolicy=policy,
    )
    pod = sidecars.has_ended(space)
    side = rig.state(pod, "side")
    assert (rig.phase(pod), rig.exit_code(pod, "side")) == ("Succeeded", 0)
    assert side["lastState"]["terminated"]["exitCode"] == 137


def test_a_job_that_could_not_bear_a_restart_bears_the_one_of_its_sidecar(space, parts):
    sidecars.create_job(
        space,
        rig.container("main", MAIN),
        sidecars.sidecar(rig.ENDS_WITH_143),
        restartPolicy="OnFailure",
        job={"backoffLimit": 0},
    )
    assert rig.phase(sidecars.has_ended(space)) == "Succeeded"
    assert space.read("jobs", "j")["spec"]["backoffLimit"] == 2


def test_a_sidecar_that_ends_with_0_is_only_told(space, parts):
    sidecars.create_job(
        space, rig.container("main", MAIN), sidecars.sidecar(rig.ENDS_WITH_0, EXITS_ZERO="true")
    )
    pod = sidecars.has_ended(space)
    assert (rig.exit_code(pod, "side"), rig.state(pod, "side")["restartCount"]) == (0, 0)
    assert rig.state(pod, "side")["image"] == rig.BUSYBOX


def test_a_sidecar_that_said_wrongly_that_it_ends_with_0_is_swapped(space, parts):
    side = sidecars.sidecar(rig.IGNORES_TERM, EXITS_ZERO="true", GRACE_SECONDS="1")
    sidecars.create_job(space, rig.container("main", MAIN), side)
    pod = sidecars.has_ended(space)
    assert rig.exit_code(pod, "side") == 0
    assert rig.state(pod, "side")["lastState"]["terminated"]["exitCode"] == 137


def test_a_grace_period_of_its_own_cuts_the_pods_short(space, parts):
    side = sidecars.sidecar(rig.IGNORES_TERM, GRACE_SECONDS="1")
    sidecars.create_job(
        space, rig.container("main", MAIN), side, terminationGracePeriodSeconds=LONG
    )
    assert rig.phase(sidecars.has_ended(space)) == "Succeeded"


def test_work_that_failed_stays_failed(space, parts):
    main = rig.container("main", "sleep 1; exit 3")
    sidecars.create_job(space, main, sidecars.sidecar(rig.ENDS_WITH_143), job={"backoffLimit": 0})
    pod = sidecars.has_ended(space, "Failed")
    assert (rig.exit_code(pod, "main"), rig.exit_code(pod, "side")) == (3, 0)


def test_a_sidecar_whose_image_cannot_be_had_does_not_keep_its_job(space, parts):
    side = {**sidecars.sidecar(""), "image": "localhost/none:1", "imagePullPolicy": "IfNotPresent"}
    sidecars.create_job(space, rig.container("main", MAIN), side)
    assert rig.phase(sidecars.has_ended(space)) == "Succeeded"


HOOKED = "trap 'echo term >> /work/said; cat /work/said > /dev/termination-log; exit 0' TERM"


def hooked(hook):
    side = sidecars.sidecar(f"{HOOKED}; {rig.RUNS}", EXITS_ZERO="true")
    side["lifecycle"] = {"preStop": {"exec": {"command": ["/bin/sh", "-c", hook]}}}
    side["volumeMounts"] = [{"name": "work", "mountPath": "/work"}]
    return {"containers": side, "volumes": [{"name": "work", "emptyDir": {}}]}


def test_its_hook_runs_before_its_signal(space, parts):
    made = hooked("echo hook >> /work/said")
    sidecars.create_job(
        space, rig.container("main", MAIN), made["containers"], volumes=made["volumes"]
    )
    said = rig.state(sidecars.has_ended(space), "side")["state"]["terminated"]["message"]
    assert said.split() == ["hook", "term"]


def test_a_node_part_that_is_killed_in_a_hook_runs_it_once(space, parts):
    made = hooked("echo hook >> /work/said; sleep 3")
    sidecars.create_job(
        space,
        rig.container("main", MAIN),
        made["containers"],
        volumes=made["volumes"],
        terminationGracePeriodSeconds=30,
    )
    pod = space.until_any("pods", f"{sidecars.JOB}=j", lambda it: rig.runs(it, "side"))
    parts.wait_for_mark(rig.state(pod, "side")["containerID"])
    parts.kill("node")
    parts.start_node()
    said = rig.state(sidecars.has_ended(space), "side")["state"]["terminated"]["message"]
    assert said.split() == ["hook", "term"]


def test_a_controller_that_was_killed_finds_what_was_done_meanwhile(space, parts):
    parts.kill("controller")
    sidecars.create_job(space, rig.container("main", MAIN), sidecars.sidecar(rig.IGNORES_TERM))
    space.until_any("pods", f"{sidecars.JOB}=j", lambda it: rig.exit_code(it, "main") == 0)
    parts.start_controller()
    assert rig.phase(sidecars.has_ended(space)) == "Succeeded"
