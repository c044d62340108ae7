"""Every kind of Job ends by its main containers alone; for CronJobs see test_crons."""

import pytest
import rig
import sidecars

from pyvgpu.kube import apiserver

pytestmark = pytest.mark.e2e

MAIN = "sleep 1"


def shipper():
    return sidecars.sidecar(rig.IGNORES_TERM)


def exits_by_index(*codes):
    """Return a container that exits with the code for its pod's index."""
    cases = " ".join(f"{index}) exit {code};;" for index, code in enumerate(codes))
    return rig.container("main", f"sleep 1; case $JOB_COMPLETION_INDEX in {cases} esac")


def is_over(kind):
    return lambda job: rig.condition(job, kind)


def test_job_with_completions_and_parallelism_ends(space, parts):
    job = {"completions": 4, "parallelism": 2, "backoffLimit": 0}
    sidecars.create_job(space, rig.container("main", MAIN), shipper(), job=job)
    done = space.until("jobs", "j", is_over("Complete"))
    assert (done["status"]["succeeded"], done["status"].get("failed", 0)) == (4, 0)
    assert [rig.phase(pod) for pod in space.pods_of("j")] == ["Succeeded"] * 4


def test_indexed_job_fails_at_the_index_of_the_failed_main_container(space, parts):
    job = {
        "completionMode": "Indexed",
        "completions": 3,
        "parallelism": 3,
        "backoffLimitPerIndex": 0,
    }
    sidecars.create_job(space, exits_by_index(0, 7, 0), shipper(), job=job)
    status = space.until("jobs", "j", is_over("Failed"))["status"]
    assert (status["completedIndexes"], status["failedIndexes"]) == ("0,2", "1")


def test_success_policy_is_met_by_main_containers(space, parts):
    """The Job controller ends pods that still run."""
    rule = {"succeededIndexes": "0"}
    job = {
        "completionMode": "Indexed",
        "completions": 2,
        "parallelism": 2,
        "successPolicy": {"rules": [rule]},
    }
    main = rig.container("main", "sleep 1; [ $JOB_COMPLETION_INDEX = 0 ] || sleep 1000")
    sidecars.create_job(space, main, shipper(), job=job)
    done = space.until("jobs", "j", is_over("Complete"))
    assert rig.condition(done, "SuccessCriteriaMet")


@pytest.mark.parametrize(
    ("action", "code", "condition"),
    [
        pytest.param("FailJob", 7, "Failed", id="FailJob"),
        pytest.param("Ignore", 143, "Complete", id="Ignore"),
    ],
)
def test_pod_failure_policy_applies_only_to_main_containers(space, parts, action, code, condition):
    """A rule for the sidecar's exit code has no effect, one for the main container's has."""
    main = rig.container("main", "sleep 1; exit 7" if action == "FailJob" else MAIN)
    codes = {"operator": "In", "values": [code]}
    rule = {"action": action, "onExitCodes": codes}
    job = {"backoffLimit": 3, "podFailurePolicy": {"rules": [rule]}}
    sidecars.create_job(space, main, sidecars.sidecar(rig.ENDS_WITH_143), job=job)
    space.until("jobs", "j", is_over(condition))
    assert len(space.pods_of("j")) == 1


def test_failed_work_is_retried_with_its_sidecar(space, parts):
    main = rig.container(
        "main",
        "if [ -e /work/once ]; then exit 0; fi; echo > /work/once; exit 1",
        volumeMounts=[{"name": "work", "mountPath": "/work"}],
    )
    path = {"path": f"/tmp/{space.name}", "type": "DirectoryOrCreate"}
    volumes = [{"name": "work", "hostPath": path}]
    sidecars.create_job(space, main, shipper(), volumes=volumes, job={"backoffLimit": 1})
    status = space.until("jobs", "j", is_over("Complete"))["status"]
    assert (status["succeeded"], status["failed"]) == (1, 1)


def change(space, spec):
    path = space.path("jobs", "j")
    return space.server.call("PATCH", path, body={"spec": spec}, kind=apiserver.MERGE_PATCH)


def test_suspended_and_resumed_job_ends(space, parts):
    main = rig.container("main", "sleep 3")
    sidecars.create_job(space, main, shipper())
    space.until_any("pods", f"{sidecars.JOB}=j", lambda pod: rig.runs(pod, "side"))
    change(space, {"suspend": True})
    space.until("jobs", "j", is_over("Suspended"))
    change(space, {"suspend": False})
    done = space.until("jobs", "j", is_over("Complete"))
    assert done["status"].get("failed", 0) == 0


def test_job_with_a_ttl_is_deleted_when_its_work_is_done(space, parts):
    job = {"ttlSecondsAfterFinished": 1}
    sidecars.create_job(space, rig.container("main", MAIN), shipper(), job=job)
    assert space.until_gone("jobs", "j")
