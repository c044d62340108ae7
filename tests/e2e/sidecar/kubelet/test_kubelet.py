"""Behaviour of kubelet and the Job controller without the sidecar components.

The controller's decisions rest on it; docs/sidecar.md has the results as a table.
"""

import contextlib

import by_hand
import pytest
import rig

from pyvgpu.kube import apiserver

pytestmark = pytest.mark.e2e


def test_written_phase_completes_a_job_while_its_sidecar_runs(space):
    template = rig.pod(
        "p", rig.container("main", by_hand.MAIN), rig.container("side", rig.ENDS_WITH_0)
    )
    name = by_hand.started_job(space, template)["metadata"]["name"]
    change = {"op": "replace", "path": "/status/phase", "value": "Succeeded"}
    for _ in range(10):  # kubelet may overwrite it before the Job controller reads it
        space.patch(name, change, part="/status")
        with contextlib.suppress(rig.NotSeenError):
            space.until("jobs", "j", lambda job: rig.condition(job, "Complete"), seconds=3)
            break
    assert rig.condition(space.read("jobs", "j"), "Complete")
    pod = space.until("pods", name, lambda current: rig.phase(current) == "Running")
    assert rig.runs(pod, "side")


def test_patch_for_another_uid_is_refused(space):
    space.create("pods", rig.pod("p", rig.container("main", by_hand.MAIN)))
    test = {"op": "test", "path": "/metadata/uid", "value": "another"}
    change = {"op": "replace", "path": "/spec/containers/0/image", "value": rig.FAST_EXIT}
    with pytest.raises(apiserver.ServerError) as refused:
        space.patch("p", test, change)
    assert refused.value.status == 422


def test_command_of_a_pod_cannot_be_changed(space):
    space.create("pods", rig.pod("p", rig.container("main", by_hand.MAIN)))
    change = {"op": "replace", "path": "/spec/containers/0/command", "value": ["/bin/true"]}
    with pytest.raises(apiserver.ServerError, match="may not change fields other than") as refused:
        space.patch("p", change)
    assert refused.value.status == 422


def test_container_restart_rules_override_the_pods_policy(space):
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


def test_native_sidecar_ends_last_and_its_exit_code_does_not_count(space):
    native = rig.container("side", rig.IGNORES_TERM, restartPolicy="Always")
    template = rig.pod("p", rig.container("main", by_hand.MAIN), initContainers=[native])
    space.create("jobs", rig.job("j", template, backoffLimit=0))
    space.until("jobs", "j", lambda job: rig.condition(job, "Complete"))
    (pod,) = space.pods_of("j")
    assert (rig.exit_code(pod, "side"), rig.phase(pod)) == (137, "Succeeded")


def test_job_with_a_sidecar_hangs_without_pyvgpu(space):
    template = rig.pod(
        "p", rig.container("main", by_hand.MAIN), rig.container("side", rig.IGNORES_TERM)
    )
    pod = by_hand.started_job(space, template)
    with pytest.raises(rig.NotSeenError):
        space.until("jobs", "j", lambda job: job["status"].get("succeeded"), seconds=8)
    assert rig.phase(space.read("pods", pod["metadata"]["name"])) == "Running"
