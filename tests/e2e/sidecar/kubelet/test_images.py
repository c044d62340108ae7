"""kubelet's behaviour for changed and missing images, without the sidecar components.

docs/sidecar.md has the results as a table.
"""

import by_hand
import pytest
import rig

pytestmark = pytest.mark.e2e


def test_image_without_the_sidecars_command_fails_the_pod(space):
    side = rig.container("side", rig.ENDS_WITH_0)
    side["command"][0] = "/bin/busybox"  # missing in the other image
    side["command"].insert(1, "sh")
    pod = by_hand.started(space, rig.container("main", by_hand.MAIN), side)
    by_hand.swap(space, pod)
    ended = space.until("pods", "p", rig.has_ended)
    assert (rig.exit_code(ended, "side"), rig.phase(ended)) == (128, "Failed")
    assert rig.state(ended, "side")["state"]["terminated"]["reason"] == "StartError"


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_swap_with_the_program_in_an_annotation_succeeds_with_any_policy(space, policy):
    template = by_hand.with_program(
        rig.pod(
            "p",
            rig.container("main", by_hand.MAIN),
            by_hand.moved(rig.ENDS_WITH_143),
            restartPolicy=policy,
        )
    )
    pod = by_hand.started_job(space, template)
    by_hand.swap(space, pod, program="/pyvgpu-exit")
    space.until("jobs", "j", lambda job: rig.condition(job, "Complete"))
    ended = space.read("pods", pod["metadata"]["name"])
    assert (rig.exit_code(ended, "side"), rig.phase(ended)) == (0, "Succeeded")
    side = rig.state(ended, "side")
    assert (side["restartCount"], side["lastState"]["terminated"]["exitCode"]) == (1, 143)


def test_changed_annotation_alone_restarts_nothing(space):
    pod = by_hand.with_program(
        rig.pod("p", rig.container("main", "sleep 6"), by_hand.moved(rig.ENDS_WITH_0))
    )
    space.create("pods", pod)
    running = space.until(
        "pods", "p", lambda current: rig.runs(current, "side") and rig.runs(current, "main")
    )
    change = {"op": "replace", "path": "/metadata/annotations/program", "value": "/none"}
    space.patch("p", change)
    done = space.until("pods", "p", by_hand.main_is_done)
    assert rig.state(done, "side")["containerID"] == rig.state(running, "side")["containerID"]


def test_failed_main_container_stays_failed_after_a_swap(space):
    main = rig.container("main", "sleep 1; exit 3")
    space.create("pods", by_hand.with_program(rig.pod("p", main, by_hand.moved(rig.ENDS_WITH_0))))
    pod = space.until("pods", "p", lambda current: rig.exit_code(current, "main") == 3)
    by_hand.swap(space, pod, program="/pyvgpu-exit")
    ended = space.until("pods", "p", rig.has_ended)
    assert (rig.exit_code(ended, "side"), rig.phase(ended)) == (0, "Failed")


def test_stop_during_kubelets_grace_period_shortens_it(space, runtime):
    template = rig.pod(
        "p",
        rig.container("main", by_hand.MAIN),
        by_hand.moved(rig.IGNORES_TERM),
        terminationGracePeriodSeconds=10 * rig.SECONDS,
    )
    space.create("pods", by_hand.with_program(template))
    pod = space.until("pods", "p", by_hand.main_is_done)
    by_hand.swap(space, pod, program="/pyvgpu-exit")
    space.until_event("p", "Killing", "definition changed")
    by_hand.stop(runtime, pod, "side", 1)
    ended = space.until("pods", "p", rig.has_ended)
    assert (rig.exit_code(ended, "side"), rig.phase(ended)) == (0, "Succeeded")
    assert rig.state(ended, "side")["lastState"]["terminated"]["exitCode"] == 137


def test_sidecar_without_its_image_keeps_a_pod_pending_until_swapped(space):
    side = by_hand.moved(rig.ENDS_WITH_0, image="localhost/none:1", imagePullPolicy="IfNotPresent")
    space.create(
        "pods", by_hand.with_program(rig.pod("p", rig.container("main", by_hand.MAIN), side))
    )
    pod = space.until("pods", "p", lambda current: rig.exit_code(current, "main") == 0)
    assert rig.phase(pod) == "Pending"
    by_hand.swap(space, pod, program="/pyvgpu-exit")
    assert rig.phase(space.until("pods", "p", rig.has_ended)) == "Succeeded"


def test_crash_looping_sidecar_is_ended_by_a_swap(space):
    template = rig.pod(
        "p",
        rig.container("main", by_hand.MAIN),
        by_hand.moved("exit 1"),
        restartPolicy="OnFailure",
    )
    space.create("pods", by_hand.with_program(template))
    pod = space.until(
        "pods",
        "p",
        lambda current: (
            rig.exit_code(current, "main") == 0
            and rig.state(current, "side")["state"].get("waiting", {}).get("reason")
            == "CrashLoopBackOff"
        ),
    )
    by_hand.swap(space, pod, program="/pyvgpu-exit")
    assert rig.phase(space.until("pods", "p", rig.has_ended)) == "Succeeded"
