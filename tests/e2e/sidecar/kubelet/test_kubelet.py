"""What kubelet and the Job controller do of themselves, without any of our code.

The decisions rest on these; docs/sidecar.md has them as a table.
"""

import contextlib

import pytest
import rig

from pyvgpu.controller import server

pytestmark = pytest.mark.e2e

MAIN = "sleep 1"


def stop(runtime, pod, name, grace_seconds=1):
    """Stop a container through the container runtime, as nobody tells kubelet of."""
    found = {one.name: one for one in runtime.seen(pod["metadata"]["uid"])}
    runtime.stop(found[name].id, grace_seconds, kill=True)


def main_is_done(pod):
    return rig.exit_code(pod, "main") == 0 and rig.runs(pod, "side")


def started(space, *containers, **spec):
    """Create a pod, and return it when its main container is done and its sidecar runs."""
    space.create("pods", rig.pod("p", *containers, **spec))
    return space.until("pods", "p", main_is_done)


def started_job(space, template, **spec):
    """The same with a Job; its first pod."""
    space.create("jobs", rig.job("j", template, **spec))
    return space.until_any("pods", "batch.kubernetes.io/job-name=j", main_is_done)


def swap(space, pod, image=rig.FAST_EXIT, **annotations):
    """Give the sidecar another image, and the pod other annotations, in one write."""
    name = pod["metadata"]["name"]
    changes = [
        {"op": "replace", "path": f"/metadata/annotations/{key}", "value": value}
        for key, value in annotations.items()
    ]
    place = [it["name"] for it in pod["spec"]["containers"]].index("side")
    at = f"/spec/containers/{place}"
    space.patch(
        name,
        {"op": "test", "path": "/metadata/uid", "value": pod["metadata"]["uid"]},
        {"op": "test", "path": f"{at}/name", "value": "side"},
        {"op": "replace", "path": f"{at}/image", "value": image},
        *changes,
    )


def moved(script, **more):
    """A sidecar whose argv[0] comes out of an annotation."""
    side = rig.container("side", script, **more)
    field = {"fieldRef": {"fieldPath": "metadata.annotations['program']"}}
    side["command"] = ["$(PROGRAM)", *side["command"][1:]]
    side["env"] = [{"name": "PROGRAM", "valueFrom": field}]
    return side


def with_program(pod):
    pod["metadata"]["annotations"] = {"program": "/bin/sh"}
    return pod


@pytest.mark.parametrize(
    ("script", "code", "phase"),
    [
        pytest.param(rig.ENDS_WITH_0, 0, "Succeeded", id="0"),
        pytest.param(rig.ENDS_WITH_143, 143, "Failed", id="143"),
        pytest.param(rig.IGNORES_TERM, 137, "Failed", id="137"),
    ],
)
def test_the_code_of_a_stopped_sidecar_counts_for_a_pod_with_never(
    space, runtime, script, code, phase
):
    pod = started(space, rig.container("main", MAIN), rig.container("side", script))
    stop(runtime, pod, "side")
    ended = space.until("pods", "p", rig.has_ended)
    assert (rig.exit_code(ended, "side"), rig.phase(ended)) == (code, phase)


@pytest.mark.row(9)
@pytest.mark.parametrize(("shared", "code"), [(True, 143), (False, 137)])
def test_in_one_process_namespace_a_sidecar_is_not_pid_1_and_a_signal_ends_it(
    space, runtime, shared, code
):
    side = rig.container("side", "")
    side["command"] = ["/bin/sleep", "1000"]  # does nothing about TERM
    main = rig.container("main", MAIN)
    stop(runtime, started(space, main, side, shareProcessNamespace=shared), "side")
    assert rig.exit_code(space.until("pods", "p", rig.has_ended), "side") == code


def test_a_job_with_never_whose_sidecar_is_killed_runs_its_work_twice(space, runtime):
    template = rig.pod("p", rig.container("main", MAIN), rig.container("side", rig.IGNORES_TERM))
    first = started_job(space, template, backoffLimit=2)
    stop(runtime, first, "side")
    second = space.until_any(
        "pods",
        "batch.kubernetes.io/job-name=j",
        lambda it: main_is_done(it) and it["metadata"]["uid"] != first["metadata"]["uid"],
    )
    assert rig.exit_code(second, "main") == 0
    assert space.read("jobs", "j")["status"]["failed"] == 1


def test_a_rule_that_ignores_the_code_only_replaces_the_pod(space, runtime):
    codes = {"operator": "In", "values": [137, 143]}
    template = rig.pod("p", rig.container("main", MAIN), rig.container("side", rig.IGNORES_TERM))
    ignore = {"action": "Ignore", "onExitCodes": {**codes, "containerName": "side"}}
    first = started_job(space, template, backoffLimit=2, podFailurePolicy={"rules": [ignore]})
    stop(runtime, first, "side")
    space.until_any(
        "pods",
        "batch.kubernetes.io/job-name=j",
        lambda it: main_is_done(it) and it["metadata"]["uid"] != first["metadata"]["uid"],
    )
    job = space.read("jobs", "j")
    assert job["status"].get("failed", 0) == 0
    assert not rig.condition(job, "Complete")


def test_a_sidecar_that_ends_with_0_completes_a_job(space, runtime):
    template = rig.pod("p", rig.container("main", MAIN), rig.container("side", rig.ENDS_WITH_0))
    stop(runtime, started_job(space, template), "side")
    job = space.until("jobs", "j", lambda it: rig.condition(it, "Complete"))
    assert job["status"]["succeeded"] == 1


def test_with_on_failure_a_killed_sidecar_starts_again(space, runtime):
    pod = started(
        space,
        rig.container("main", MAIN),
        rig.container("side", rig.IGNORES_TERM),
        restartPolicy="OnFailure",
    )
    stop(runtime, pod, "side")
    again = space.until(
        "pods", "p", lambda it: rig.runs(it, "side") and rig.state(it, "side")["restartCount"]
    )
    assert rig.phase(again) == "Running"
    assert rig.state(again, "side")["lastState"]["terminated"]["exitCode"] == 137


def test_a_restart_of_the_sidecar_fails_a_job_without_retries_whose_work_was_done(space, runtime):
    template = rig.pod(
        "p",
        rig.container("main", MAIN),
        rig.container("side", rig.ENDS_WITH_143),
        restartPolicy="OnFailure",
    )
    stop(runtime, started_job(space, template, backoffLimit=0), "side")
    job = space.until("jobs", "j", lambda it: rig.condition(it, "Failed"))
    reasons = [it["reason"] for it in job["status"]["conditions"] if it["type"] == "Failed"]
    assert reasons == ["BackoffLimitExceeded"]


def test_an_image_that_lacks_the_command_of_the_sidecar_fails_the_pod(space):
    side = rig.container("side", rig.ENDS_WITH_0)
    side["command"][0] = "/bin/busybox"  # which the other image has not
    side["command"].insert(1, "sh")
    pod = started(space, rig.container("main", MAIN), side)
    swap(space, pod)
    ended = space.until("pods", "p", rig.has_ended)
    assert (rig.exit_code(ended, "side"), rig.phase(ended)) == (128, "Failed")
    assert rig.state(ended, "side")["state"]["terminated"]["reason"] == "StartError"


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_a_swap_with_the_program_from_an_annotation_succeeds_whatever_the_policy(space, policy):
    template = with_program(
        rig.pod("p", rig.container("main", MAIN), moved(rig.ENDS_WITH_143), restartPolicy=policy)
    )
    pod = started_job(space, template)
    swap(space, pod, program="/pyvgpu-exit")
    space.until("jobs", "j", lambda it: rig.condition(it, "Complete"))
    ended = space.read("pods", pod["metadata"]["name"])
    assert (rig.exit_code(ended, "side"), rig.phase(ended)) == (0, "Succeeded")
    side = rig.state(ended, "side")
    assert (side["restartCount"], side["lastState"]["terminated"]["exitCode"]) == (1, 143)


def test_a_changed_annotation_alone_restarts_nothing(space):
    pod = with_program(rig.pod("p", rig.container("main", "sleep 6"), moved(rig.ENDS_WITH_0)))
    space.create("pods", pod)
    running = space.until("pods", "p", lambda it: rig.runs(it, "side") and rig.runs(it, "main"))
    change = {"op": "replace", "path": "/metadata/annotations/program", "value": "/none"}
    space.patch("p", change)
    done = space.until("pods", "p", main_is_done)
    assert rig.state(done, "side")["containerID"] == rig.state(running, "side")["containerID"]


def test_a_failed_main_container_stays_failed_after_a_swap(space):
    main = rig.container("main", "sleep 1; exit 3")
    space.create("pods", with_program(rig.pod("p", main, moved(rig.ENDS_WITH_0))))
    pod = space.until("pods", "p", lambda it: rig.exit_code(it, "main") == 3)
    swap(space, pod, program="/pyvgpu-exit")
    ended = space.until("pods", "p", rig.has_ended)
    assert (rig.exit_code(ended, "side"), rig.phase(ended)) == (0, "Failed")


def test_a_stop_during_kubelets_own_grace_period_cuts_it_short(space, runtime):
    template = rig.pod(
        "p",
        rig.container("main", MAIN),
        moved(rig.IGNORES_TERM),
        terminationGracePeriodSeconds=10 * rig.SECONDS,
    )
    space.create("pods", with_program(template))
    pod = space.until("pods", "p", main_is_done)
    swap(space, pod, program="/pyvgpu-exit")
    space.until_event("p", "Killing", "definition changed")
    stop(runtime, pod, "side")
    ended = space.until("pods", "p", rig.has_ended)
    assert (rig.exit_code(ended, "side"), rig.phase(ended)) == (0, "Succeeded")
    assert rig.state(ended, "side")["lastState"]["terminated"]["exitCode"] == 137


def test_a_phase_that_is_written_completes_a_job_whose_sidecar_runs_on(space):
    template = rig.pod("p", rig.container("main", MAIN), rig.container("side", rig.ENDS_WITH_0))
    name = started_job(space, template)["metadata"]["name"]
    change = {"op": "replace", "path": "/status/phase", "value": "Succeeded"}
    for _ in range(10):  # kubelet may be faster than the Job controller
        space.patch(name, change, part="/status")
        with contextlib.suppress(rig.NotSeenError):
            space.until("jobs", "j", lambda it: rig.condition(it, "Complete"), seconds=3)
            break
    assert rig.condition(space.read("jobs", "j"), "Complete")
    pod = space.until("pods", name, lambda it: rig.phase(it) == "Running")
    assert rig.runs(pod, "side")


def test_a_sidecar_without_its_image_keeps_a_pod_pending_until_it_is_swapped(space):
    side = moved(rig.ENDS_WITH_0, image="localhost/none:1", imagePullPolicy="IfNotPresent")
    space.create("pods", with_program(rig.pod("p", rig.container("main", MAIN), side)))
    pod = space.until("pods", "p", lambda it: rig.exit_code(it, "main") == 0)
    assert rig.phase(pod) == "Pending"
    swap(space, pod, program="/pyvgpu-exit")
    assert rig.phase(space.until("pods", "p", rig.has_ended)) == "Succeeded"


def test_a_sidecar_that_crashes_again_and_again_is_ended_by_a_swap(space):
    template = rig.pod(
        "p", rig.container("main", MAIN), moved("exit 1"), restartPolicy="OnFailure"
    )
    space.create("pods", with_program(template))
    pod = space.until(
        "pods",
        "p",
        lambda it: (
            rig.exit_code(it, "main") == 0
            and rig.state(it, "side")["state"].get("waiting", {}).get("reason")
            == "CrashLoopBackOff"
        ),
    )
    swap(space, pod, program="/pyvgpu-exit")
    assert rig.phase(space.until("pods", "p", rig.has_ended)) == "Succeeded"


def test_a_patch_for_another_uid_is_refused(space):
    space.create("pods", rig.pod("p", rig.container("main", MAIN)))
    test = {"op": "test", "path": "/metadata/uid", "value": "another"}
    change = {"op": "replace", "path": "/spec/containers/0/image", "value": rig.FAST_EXIT}
    with pytest.raises(server.ServerError) as refused:
        space.patch("p", test, change)
    assert refused.value.status == 422


def test_the_command_of_a_pod_cannot_be_changed(space):
    space.create("pods", rig.pod("p", rig.container("main", MAIN)))
    change = {"op": "replace", "path": "/spec/containers/0/command", "value": ["/bin/true"]}
    with pytest.raises(server.ServerError, match="may not change fields other than") as refused:
        space.patch("p", change)
    assert refused.value.status == 422


def test_a_containers_own_rules_count_before_the_pods_policy(space):
    rules = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]
    main = rig.container(
        "main",
        "if [ -e /work/once ]; then exit 0; fi; echo > /work/once; exit 42",
        restartPolicy="Never",
        restartPolicyRules=rules,
        volumeMounts=[{"name": "work", "mountPath": "/work"}],
    )
    volume = {"name": "work", "emptyDir": {}}
    space.create("pods", rig.pod("p", main, volumes=[volume]))
    ended = space.until("pods", "p", rig.has_ended)
    assert (rig.phase(ended), rig.state(ended, "main")["restartCount"]) == ("Succeeded", 1)


def test_a_native_sidecar_ends_after_the_main_containers_and_its_code_does_not_count(space):
    native = rig.container("side", rig.IGNORES_TERM, restartPolicy="Always")
    template = rig.pod("p", rig.container("main", MAIN), initContainers=[native])
    space.create("jobs", rig.job("j", template, backoffLimit=0))
    space.until("jobs", "j", lambda it: rig.condition(it, "Complete"))
    (pod,) = space.pods_of("j")
    assert (rig.exit_code(pod, "side"), rig.phase(pod)) == (137, "Succeeded")


def test_a_native_sidecar_that_is_stopped_early_starts_again(space, runtime):
    native = rig.container("side", rig.ENDS_WITH_0, restartPolicy="Always")
    space.create("pods", rig.pod("p", rig.container("main", "sleep 5"), initContainers=[native]))
    pod = space.until("pods", "p", lambda it: rig.runs(it, "main"))
    stop(runtime, pod, "side")
    ended = space.until("pods", "p", rig.has_ended)
    assert (rig.phase(ended), rig.state(ended, "side")["restartCount"]) == ("Succeeded", 1)


def test_with_always_everything_that_is_stopped_starts_again(space, runtime):
    side = rig.container("side", rig.ENDS_WITH_0)
    space.create("pods", rig.pod("p", side, restartPolicy="Always"))
    pod = space.until("pods", "p", lambda it: rig.runs(it, "side"))
    stop(runtime, pod, "side")
    space.until(
        "pods", "p", lambda it: rig.runs(it, "side") and rig.state(it, "side")["restartCount"]
    )


def test_without_us_a_job_with_a_sidecar_hangs(space):
    template = rig.pod("p", rig.container("main", MAIN), rig.container("side", rig.IGNORES_TERM))
    pod = started_job(space, template)
    with pytest.raises(rig.NotSeenError):
        space.until("jobs", "j", lambda it: it["status"].get("succeeded"), seconds=8)
    assert rig.phase(space.read("pods", pod["metadata"]["name"])) == "Running"
