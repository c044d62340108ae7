"""kubelet's behaviour when the container runtime stops a container without kubelet's knowledge.

The sidecar components do not run; docs/sidecar.md has the results as a table.
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
def test_exit_code_of_a_stopped_sidecar_counts_with_never(space, runtime, script, code, phase):
    pod = by_hand.started(
        space, rig.container("main", by_hand.MAIN), rig.container("side", script)
    )
    by_hand.stop(runtime, pod, "side", 1 if code == 137 else 30)
    ended = space.until("pods", "p", rig.has_ended)
    assert (rig.exit_code(ended, "side"), rig.phase(ended)) == (code, phase)


@pytest.mark.row(9)
@pytest.mark.parametrize(("shared", "code"), [(True, 143), (False, 137)])
def test_signal_ends_a_sidecar_in_a_shared_process_namespace(space, runtime, shared, code):
    side = rig.container("side", "")
    side["command"] = ["/bin/sleep", "1000"]  # has no SIGTERM handler
    main = rig.container("main", by_hand.MAIN)
    pod = by_hand.started(space, main, side, shareProcessNamespace=shared)
    by_hand.stop(runtime, pod, "side", 30 if shared else 1)
    assert rig.exit_code(space.until("pods", "p", rig.has_ended), "side") == code


def test_job_with_never_runs_its_work_twice_if_its_sidecar_is_killed(space, runtime):
    template = rig.pod(
        "p", rig.container("main", by_hand.MAIN), rig.container("side", rig.IGNORES_TERM)
    )
    first = by_hand.started_job(space, template, backoffLimit=2)
    by_hand.stop(runtime, first, "side", 1)
    second = space.until_any(
        "pods",
        "batch.kubernetes.io/job-name=j",
        lambda pod: by_hand.main_is_done(pod)
        and pod["metadata"]["uid"] != first["metadata"]["uid"],
    )
    assert rig.exit_code(second, "main") == 0
    assert space.read("jobs", "j")["status"]["failed"] == 1


def test_ignore_rule_only_replaces_the_pod(space, runtime):
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
        lambda pod: by_hand.main_is_done(pod)
        and pod["metadata"]["uid"] != first["metadata"]["uid"],
    )
    job = space.read("jobs", "j")
    assert job["status"].get("failed", 0) == 0
    assert not rig.condition(job, "Complete")


def test_sidecar_that_exits_with_0_completes_a_job(space, runtime):
    template = rig.pod(
        "p", rig.container("main", by_hand.MAIN), rig.container("side", rig.ENDS_WITH_0)
    )
    by_hand.stop(runtime, by_hand.started_job(space, template), "side")
    job = space.until("jobs", "j", lambda current: rig.condition(current, "Complete"))
    assert job["status"]["succeeded"] == 1


def test_killed_sidecar_restarts_with_on_failure(space, runtime):
    pod = by_hand.started(
        space,
        rig.container("main", by_hand.MAIN),
        rig.container("side", rig.IGNORES_TERM),
        restartPolicy="OnFailure",
    )
    by_hand.stop(runtime, pod, "side", 1)
    again = space.until(
        "pods",
        "p",
        lambda current: rig.runs(current, "side") and rig.state(current, "side")["restartCount"],
    )
    assert rig.phase(again) == "Running"
    assert rig.state(again, "side")["lastState"]["terminated"]["exitCode"] == 137


def test_restart_of_the_sidecar_fails_a_finished_job_without_retries(space, runtime):
    template = rig.pod(
        "p",
        rig.container("main", by_hand.MAIN),
        rig.container("side", rig.ENDS_WITH_143),
        restartPolicy="OnFailure",
    )
    by_hand.stop(runtime, by_hand.started_job(space, template, backoffLimit=0), "side")
    job = space.until("jobs", "j", lambda current: rig.condition(current, "Failed"))
    reasons = [
        condition["reason"]
        for condition in job["status"]["conditions"]
        if condition["type"] == "Failed"
    ]
    assert reasons == ["BackoffLimitExceeded"]


def test_native_sidecar_stopped_early_restarts(space, runtime):
    mounted = {"volumeMounts": [{"name": "seen", "mountPath": "/seen"}]}
    begins = f"[ ! -e /seen/once ] || echo > /seen/twice; echo > /seen/once; {rig.ENDS_WITH_0}"
    native = rig.container("side", begins, restartPolicy="Always", **mounted)
    main = rig.container("main", "until [ -e /seen/twice ]; do sleep 0.1; done", **mounted)
    seen = {"name": "seen", "emptyDir": {}}
    space.create("pods", rig.pod("p", main, initContainers=[native], volumes=[seen]))
    pod = space.until("pods", "p", lambda current: rig.runs(current, "main"))
    by_hand.stop(runtime, pod, "side")
    ended = space.until("pods", "p", rig.has_ended)
    assert (rig.phase(ended), rig.state(ended, "side")["restartCount"]) == ("Succeeded", 1)


def test_stopped_container_restarts_with_always(space, runtime):
    side = rig.container("side", rig.ENDS_WITH_0)
    space.create("pods", rig.pod("p", side, restartPolicy="Always"))
    pod = space.until("pods", "p", lambda current: rig.runs(current, "side"))
    by_hand.stop(runtime, pod, "side")
    space.until(
        "pods",
        "p",
        lambda current: rig.runs(current, "side") and rig.state(current, "side")["restartCount"],
    )
