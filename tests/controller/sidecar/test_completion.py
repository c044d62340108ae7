"""Detection that the main containers are done."""

import pod_objects as make
import pytest

from pyvgpu.controller.sidecar import main_completion, marking, sidecar_pods

RUNNING, CREATED = make.running(), make.waiting()


def read(*mains, **pod):
    read = sidecar_pods.read(
        make.pod(
            *(make.container(f"main-{number}", status) for number, status in enumerate(mains)),
            make.sidecar(),
            **pod,
        )
    )
    return main_completion.read(read, marking.mark(read).mains)


@pytest.mark.parametrize(
    ("policy", "mains", "done", "succeeded"),
    [
        ("Never", [make.ended(0)], True, True),
        ("Never", [make.ended(3)], True, False),
        ("Never", [RUNNING], False, False),
        ("Never", [make.ended(0), RUNNING], False, False),
        ("Never", [make.ended(1), RUNNING], False, False),
        ("Never", [make.ended(0), make.ended(1)], True, False),
        ("Never", [make.ended(0), CREATED], False, False),
        ("Never", [make.ended(0), make.waiting("ImagePullBackOff")], False, False),
        ("Never", [make.ended(0), None], False, False),
        ("OnFailure", [make.ended(0)], True, True),
        ("OnFailure", [make.ended(3)], False, False),
        ("OnFailure", [make.waiting("CrashLoopBackOff", after=3)], False, False),
        ("OnFailure", [make.ended(0), make.ended(0)], True, True),
        ("OnFailure", [make.ended(0), make.ended(1)], False, False),
        ("OnFailure", [RUNNING], False, False),
    ],
)
def test_done(policy, mains, done, succeeded):
    moment = read(*mains, policy=policy)
    assert (moment.done, moment.succeeded) == (done, succeeded)


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        ({"metadata": {"deletionTimestamp": make.AT}}, "being deleted"),
        ({"conditions": ["DisruptionTarget"]}, "evicted or preempted"),
        ({"conditions": ["AllContainersRestarting"]}, "every container of the pod again"),
        ({"phase": "Succeeded"}, "has ended: Succeeded"),
        ({"phase": "Failed"}, "has ended: Failed"),
    ],
)
def test_pods_that_kubelet_ends_are_left_to_it(pod, why):
    moment = read(make.ended(0), **pod)
    assert not moment.done
    assert why in moment.why


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (RUNNING, "main container main-0 is running"),
        (None, "main container main-0 is unknown"),
        (make.waiting("ImagePullBackOff"), "has not started: ImagePullBackOff"),
        (make.waiting("CrashLoopBackOff", after=3), "ended with 3 and will be started again"),
    ],
)
def test_unfinished_main_containers_have_a_reason(status, why):
    assert why in read(status, policy="OnFailure").why


def rule(action, operator, *codes):
    return {"action": action, "exitCodes": {"operator": operator, "values": list(codes)}}


@pytest.mark.parametrize(
    ("pod_policy", "spec", "code", "done"),
    [
        # the container's own policy overrides the pod's
        ("Never", {"restartPolicy": "OnFailure"}, 1, False),
        ("Never", {"restartPolicy": "OnFailure"}, 0, True),
        ("Never", {"restartPolicy": "Always"}, 0, False),
        ("OnFailure", {"restartPolicy": "Never"}, 1, True),
        # the first rule that matches, then the policy
        (
            "Never",
            {"restartPolicy": "Never", "restartPolicyRules": [rule("Restart", "In", 42)]},
            42,
            False,
        ),
        (
            "Never",
            {"restartPolicy": "Never", "restartPolicyRules": [rule("Restart", "In", 42)]},
            1,
            True,
        ),
        (
            "Never",
            {"restartPolicy": "Never", "restartPolicyRules": [rule("Restart", "NotIn", 0)]},
            1,
            False,
        ),
        (
            "Never",
            {"restartPolicy": "Never", "restartPolicyRules": [rule("Restart", "NotIn", 0)]},
            0,
            True,
        ),
        (
            "Never",
            {
                "restartPolicy": "Never",
                "restartPolicyRules": [rule("RestartAllContainers", "In", 42)],
            },
            42,
            False,
        ),
        (
            "Never",
            {"restartPolicy": "Never", "restartPolicyRules": [rule("Unheard", "In", 42)]},
            42,
            True,
        ),
        # kubelet ignores rules without a policy
        ("Never", {"restartPolicyRules": [rule("Restart", "In", 42)]}, 42, True),
    ],
)
def test_a_containers_own_policy_and_rules_count(pod_policy, spec, code, done):
    read = sidecar_pods.read(
        make.pod(
            make.container("main", make.ended(code), **spec), make.sidecar(), policy=pod_policy
        )
    )
    assert main_completion.read(read, marking.mark(read).mains).done is done


def test_since_is_the_end_of_the_last_main_container():
    moment = read(
        make.ended(0, at="2026-11-21T10:00:05Z"), make.ended(0, at="2026-11-21T10:00:02Z")
    )
    assert moment.since.isoformat() == "2026-11-21T10:00:05+00:00"
