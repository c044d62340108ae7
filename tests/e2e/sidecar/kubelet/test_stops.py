"""What comes of a container that the container runtime stops, and nobody told kubelet of.

Without any of our code; docs/sidecar.md has it as a table.
"""

import by_hand
import pytest
import rig

pytestmark = pytest.mark.e2e


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
    pod = by_hand.started(
        space, rig.container("main", by_hand.MAIN), rig.container("side", script)
    )
    by_hand.stop(runtime, pod, "side", 1 if code == 137 else 30)
    ended = space.until("pods", "p", rig.has_ended)
    assert (rig.exit_code(ended, "side"), rig.phase(ended)) == (code, phase)


@pytest.mark.row(9)
@pytest.mark.parametrize(("shared", "code"), [(True, 143), (False, 137)])
def test_in_one_process_namespace_a_sidecar_is_not_pid_1_and_a_signal_ends_it(
    space, runtime, shared, code
):
    side = rig.container("side", "")
    side["command"] = ["/bin/sleep", "1000"]  # does nothing about TERM
    main = rig.container("main", by_hand.MAIN)
    pod = by_hand.started(space, main, side, shareProcessNamespace=shared)
    by_hand.stop(runtime, pod, "side", 30 if shared else 1)
    assert rig.exit_code(space.until("pods", "p", rig.has_ended), "side") == code


def test_a_job_with_never_whose_sidecar_is_killed_runs_its_work_twice(space, runtime):
    template = rig.pod(
        "p", rig.container("main", by_hand.MAIN), rig.container("side", rig.IGNORES_TERM)
    )
    first = by_hand.started_job(space, template, backoffLimit=2)
    by_hand.stop(runtime, first, "side", 1)
    second = space.until_any(
        "pods",
        "batch.kubernetes.io/job-name=j",
        lambda it: by_hand.main_is_done(it) and it["metadata"]["uid"] != first["metadata"]["uid"],
    )
    assert rig.exit_code(second, "main") == 0
    assert space.read("jobs", "j")["status"]["failed"] == 1


def test_a_rule_that_ignores_the_code_only_replaces_the_pod(space, runtime):
    codes = {"operator": "In", "values": [137, 143]}
    template = rig.pod(
        "p", rig.container("main", by_hand.MAIN), rig.container("side", rig.IGNORES_TERM)
    )
    ignore = {"action": "Ignore", "onExitCodes": {**codes, "containerName": "side"}}
    first = by_hand.started_job(
        space, template, backoffLimit=2, podFailurePolicy={"rules": [ignore]}
    )
    by_hand.stop(runtime, first, "side", 1)
    space.until_any(
        "pods",
        "batch.kubernetes.io/job-name=j",
        lambda it: by_hand.main_is_done(it) and it["metadata"]["uid"] != first["metadata"]["uid"],
    )
    job = space.read("jobs", "j")
    assert job["status"].get("failed", 0) == 0
    assert not rig.condition(job, "Complete")


def test_a_sidecar_that_ends_with_0_completes_a_job(space, runtime):
    template = rig.pod(
        "p", rig.container("main", by_hand.MAIN), rig.container("side", rig.ENDS_WITH_0)
    )
    by_hand.stop(runtime, by_hand.started_job(space, template), "side")
    job = space.until("jobs", "j", lambda it: rig.condition(it, "Complete"))
    assert job["status"]["succeeded"] == 1


def test_with_on_failure_a_killed_sidecar_starts_again(space, runtime):
    pod = by_hand.started(
        space,
        rig.container("main", by_hand.MAIN),
        rig.container("side", rig.IGNORES_TERM),
        restartPolicy="OnFailure",
    )
    by_hand.stop(runtime, pod, "side", 1)
    again = space.until(
        "pods", "p", lambda it: rig.runs(it, "side") and rig.state(it, "side")["restartCount"]
    )
    assert rig.phase(again) == "Running"
    assert rig.state(again, "side")["lastState"]["terminated"]["exitCode"] == 137


def test_a_restart_of_the_sidecar_fails_a_job_without_retries_whose_work_was_done(space, runtime):
    template = rig.pod(
        "p",
        rig.container("main", by_hand.MAIN),
        rig.container("side", rig.ENDS_WITH_143),
        restartPolicy="OnFailure",
    )
    by_hand.stop(runtime, by_hand.started_job(space, template, backoffLimit=0), "side")
    job = space.until("jobs", "j", lambda it: rig.condition(it, "Failed"))
    reasons = [it["reason"] for it in job["status"]["conditions"] if it["type"] == "Failed"]
    assert reasons == ["BackoffLimitExceeded"]


def test_a_native_sidecar_that_is_stopped_early_starts_again(space, runtime):
    mounted = {"volumeMounts": [{"name": "seen", "mountPath": "/seen"}]}
    begins = f"[ ! -e /seen/once ] || echo > /seen/twice; echo > /seen/once; {rig.ENDS_WITH_0}"
    native = rig.container("side", begins, restartPolicy="Always", **mounted)
    main = rig.container("main", "until [ -e /seen/twice ]; do sleep 0.1; done", **mounted)
    seen = {"name": "seen", "emptyDir": {}}
    space.create("pods", rig.pod("p", main, initContainers=[native], volumes=[seen]))
    pod = space.until("pods", "p", lambda it: rig.runs(it, "main"))
    by_hand.stop(runtime, pod, "side")
    ended = space.until("pods", "p", rig.has_ended)
    assert (rig.phase(ended), rig.state(ended, "side")["restartCount"]) == ("Succeeded", 1)


def test_with_always_everything_that_is_stopped_starts_again(space, runtime):
    side = rig.container("side", rig.ENDS_WITH_0)
    space.create("pods", rig.pod("p", side, restartPolicy="Always"))
    pod = space.until("pods", "p", lambda it: rig.runs(it, "side"))
    by_hand.stop(runtime, pod, "side")
    space.until(
        "pods", "p", lambda it: rig.runs(it, "side") and rig.state(it, "side")["restartCount"]
    )
