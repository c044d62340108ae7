"""Decisions of the node part about a record, checked against the runtime's state."""

import datetime

import pod_objects as make
import pytest
import small_kubelet as model

from pyvgpu.controller.sidecar import node_requests, reconcile, sidecar_pods

ZERO = {"SIDECAR_TERMINATION_EXITS_ZERO": "true"}
HURRIED = {"SIDECAR_TERMINATION_GRACE_SECONDS": "2"}
DONE = node_requests.Running("main", "containerd://1", 0)
LOG = node_requests.Running("log", "containerd://log", None)


def begun(*sidecars, policy="Never"):
    """Return a pod whose sidecars the controller has begun to end."""
    pod = make.pod(make.container("main", make.ended(0)), *sidecars, policy=policy)
    moment = reconcile.DecisionMoment(model.BEGIN + datetime.timedelta(seconds=1), lambda: 0.5)
    decision = reconcile.reconcile(sidecar_pods.read(pod), model.around(), moment, model.SETTINGS)
    return model.apply(pod, decision.patch.operations)


def check(pod, *runtime, on="node-1", replacing=()):
    return node_requests.check(sidecar_pods.read(pod), on, runtime, frozenset(replacing))


STOP = begun(make.sidecar("log", environment=ZERO))
HYBRID = begun(make.sidecar("log", environment=HURRIED))


def test_a_stop_only_signals_while_a_swap_can_follow():
    stop = check(STOP, DONE, LOG).stops[0]
    assert stop == node_requests.Stop(
        "log", "containerd://log", 30, kill=False, command="", replaced=False
    )


def test_a_stop_without_an_alternative_ends_with_kill():
    pod = begun(make.sidecar("log", environment=ZERO, command=["/opt/log"]))
    assert check(pod, DONE, LOG).stops[0].kill


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_a_replaced_container_waits_for_kubelets_event(policy):
    pod = begun(make.sidecar("log", environment=HURRIED), policy=policy)
    assert check(pod, DONE, LOG).why == "kubelet has not begun to replace it"
    stop = check(pod, DONE, LOG, replacing=[LOG.id]).stops[0]
    assert (stop.grace_seconds, stop.kill, stop.replaced) == (2, True, True)


def changed(pod, **metadata):
    return {**pod, "metadata": {**pod["metadata"], **metadata}}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda: check(STOP, DONE, LOG, on="node-2"), "on another node"),
        (lambda: check(changed(STOP, uid="uid-2"), DONE, LOG), "not recorded"),
        (lambda: check(changed(STOP, annotations={}), DONE, LOG), "not recorded"),
        (lambda: check(changed(STOP, deletionTimestamp=make.AT), DONE, LOG), "being deleted"),
        (
            lambda: check(STOP, node_requests.Running("main", "x", None), LOG),
            "the runtime says that main container main is not done",
        ),
        (lambda: check(STOP, LOG), "the runtime says that main container main is not done"),
        (
            lambda: check(STOP, DONE, node_requests.Running("log", "containerd://log-2", None)),
            "no recorded container is running",
        ),
        (
            lambda: check(STOP, DONE, node_requests.Running("log", "containerd://log", 0)),
            "no recorded container is running",
        ),
        (lambda: check(STOP, DONE), "no recorded container is running"),
    ],
)
def test_an_outdated_request_is_dropped(answer, why):
    assert answer().stops == ()
    assert why in answer().why


def deleted(pod, seconds=1):
    return changed(pod, deletionTimestamp=make.AT, deletionGracePeriodSeconds=seconds)


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
@pytest.mark.parametrize("more", [{}, HURRIED], ids=["swap", "hybrid"])
def test_a_replaced_container_in_a_deleted_pod_gets_the_deletions_grace_period(policy, more):
    pod = deleted(begun(make.sidecar("log", environment=more), policy=policy))
    outdated = make.container("main", make.running())[1]  # as kubelet still reports it
    pod["status"] = {**pod["status"], "containerStatuses": [outdated]}
    assert check(pod, DONE, LOG).stops == ()
    assert check(pod, DONE, LOG).waits
    (stop,) = check(pod, DONE, LOG, replacing=[LOG.id]).stops
    assert (stop.grace_seconds, stop.kill, stop.replaced, stop.command) == (1, True, True, "")
    assert stop.mark == "log.1"  # differs from a stop with a longer grace period


def test_a_user_requested_swap_does_not_delay_deletion():
    pod = make.pod(
        make.container("main", make.running()),
        make.sidecar("log"),
        policy="Always",
        metadata={"annotations": {"pyvgpu.io/swapped": '{"log": {"image": "old"}}'}},
    )
    work = node_requests.Running("main", "containerd://1", None)
    assert check(deleted(pod), work, LOG, replacing=[LOG.id, work.id]).stops[0].name == "log"


@pytest.mark.parametrize(
    ("pod", "runtime"),
    [
        pytest.param(deleted(STOP), [DONE, LOG], id="only signaled"),
        pytest.param(deleted(HYBRID), [DONE], id="removed"),
        pytest.param(deleted(HYBRID), [DONE, node_requests.Running("log", LOG.id, 0)], id="ended"),
        pytest.param(deleted(make.pod(make.sidecar("log"))), [LOG], id="nothing begun"),
    ],
)
def test_other_containers_of_a_deleted_pod_are_left_to_kubelet(pod, runtime):
    answer = check(pod, *runtime, replacing=[LOG.id])
    assert (answer.stops, answer.waits) == ((), False)


def test_a_record_that_names_a_main_container_stops_nothing():
    text = STOP["metadata"]["annotations"]["pyvgpu.io/sidecar-stop"].replace('"log"', '"main"')
    forged = changed(STOP, annotations={"pyvgpu.io/sidecar-stop": text})
    assert check(forged, DONE, LOG).stops == ()


def test_the_lowest_order_is_stopped_first():
    pod = begun(
        make.sidecar("log", environment={**ZERO, "SIDECAR_TERMINATION_ORDER": "2"}),
        make.sidecar("mesh", make.running("containerd://mesh"), environment=ZERO),
    )
    mesh = node_requests.Running("mesh", "containerd://mesh", None)
    assert [stop.name for stop in check(pod, DONE, LOG, mesh).stops] == ["mesh"]
    ended = node_requests.Running("mesh", "containerd://mesh", 0)
    assert [stop.name for stop in check(pod, DONE, LOG, ended).stops] == ["log"]


def test_a_stop_waits_for_swaps_of_lower_order():
    pod = begun(
        make.sidecar("log", environment={**ZERO, "SIDECAR_TERMINATION_ORDER": "2"}),
        make.sidecar("mesh", make.running("containerd://mesh")),
    )
    mesh = node_requests.Running("mesh", "containerd://mesh", None)
    answer = check(pod, DONE, LOG, mesh)
    assert (answer.stops, answer.waits) == ((), True)
    for ended in (
        node_requests.Running("mesh", "containerd://mesh", 143),
        node_requests.Running("mesh", "2", None),
    ):
        assert [stop.name for stop in check(pod, DONE, LOG, ended).stops] == ["log"]


@pytest.mark.parametrize(("seconds", "left"), [(0, 30), (10.5, 19.5), (40, 0), (-3600, 30)])
def test_the_rest_of_a_grace_period_never_exceeds_it(seconds, left):
    stop = node_requests.Stop("log", "containerd://log", 30, kill=True, command="", replaced=False)
    assert stop.left_after(seconds) == left


def test_a_stop_includes_the_command():
    quits = {"SIDECAR_TERMINATION_COMMAND": "quit now"}
    assert check(begun(make.sidecar("log", environment=quits)), DONE, LOG).stops[0].command == (
        "quit now"
    )


def foresee(pod, *runtime, on="node-1"):
    return node_requests.foresee(sidecar_pods.read(pod), on, runtime)


def at_work(*sidecars, **more):
    """Return a pod whose main container kubelet still reports as running."""
    return make.pod(make.container("main", make.running()), *sidecars, **more)


CLEAN = at_work(make.sidecar("log", environment=ZERO))


def test_a_clean_sidecar_is_stopped_before_kubelet_reports_the_end():
    stop = foresee(CLEAN, DONE, LOG).stops[0]
    assert stop == node_requests.Stop(
        "log", "containerd://log", 30, kill=False, command="", replaced=False
    )


@pytest.mark.parametrize(
    ("pod", "runtime"),
    [
        pytest.param(at_work(make.sidecar("log")), [DONE, LOG], id="not known to end with 0"),
        pytest.param(CLEAN, [LOG], id="main not created yet"),
        pytest.param(CLEAN, [node_requests.Running("main", "m", None), LOG], id="main runs"),
        pytest.param(CLEAN, [DONE], id="sidecar not created yet"),
        pytest.param(CLEAN, [DONE, node_requests.Running("log", "l", 0)], id="sidecar has ended"),
        pytest.param(
            at_work(make.sidecar("log", environment=ZERO), policy="OnFailure"),
            [node_requests.Running("main", "m", 1), LOG],
            id="main restarts",
        ),
        pytest.param(
            at_work(
                make.sidecar("log", environment=ZERO), metadata={"deletionTimestamp": make.AT}
            ),
            [DONE, LOG],
            id="deleted",
        ),
        pytest.param(
            at_work(make.sidecar("log", environment=ZERO), conditions=["DisruptionTarget"]),
            [DONE, LOG],
            id="evicted",
        ),
        pytest.param(
            at_work(make.sidecar("log", environment=ZERO), policy="Always"),
            [DONE, LOG],
            id="Always",
        ),
        pytest.param(begun(make.sidecar("log", environment=ZERO)), [DONE, LOG], id="decided"),
        pytest.param(
            at_work(make.sidecar("log", environment=ZERO), initContainers=[make.RESTARTS_ALL]),
            [DONE, LOG],
            id="may restart as a whole",
        ),
    ],
)
def test_sidecars_that_the_controller_or_kubelet_handles_are_not_stopped_early(pod, runtime):
    assert not foresee(pod, *runtime).stops


def test_nothing_is_stopped_early_on_another_node():
    assert foresee(CLEAN, DONE, LOG, on="node-2").why == "the pod is on another node"


def test_early_stops_keep_the_order_and_wait_for_swaps():
    def sidecar(name, order, **more):
        return make.sidecar(name, environment={"SIDECAR_TERMINATION_ORDER": order, **more})

    first, second = node_requests.Running("a", "a", None), node_requests.Running("b", "b", None)
    pod = at_work(sidecar("b", "2", **ZERO), sidecar("a", "1", **ZERO))
    assert [stop.name for stop in foresee(pod, DONE, first, second).stops] == ["a"]
    ended = node_requests.Running("a", "a", 0)
    assert [stop.name for stop in foresee(pod, DONE, ended, second).stops] == ["b"]
    pod = at_work(sidecar("b", "2", **ZERO), sidecar("a", "1"))
    assert not foresee(pod, DONE, first, second).stops
