"""Explanations of how a pod's sidecars end and what blocks it."""

import datetime

import pod_objects as make
import small_kubelet as model

from pyvgpu.controller.sidecar import reconcile, sidecar_explanation, sidecar_pods

LABEL = {"labels": {"pyvgpu.io/sidecars": "managed"}}


def said(pod, seconds=1, labelled=True):
    if labelled:
        pod = {**pod, "metadata": {**pod["metadata"], **LABEL}}
    moment = reconcile.DecisionMoment(
        model.BEGIN + datetime.timedelta(seconds=seconds), lambda: 0.5
    )
    return sidecar_explanation.explain(
        sidecar_pods.read(pod), model.around(), moment, model.SETTINGS
    ).lines


def test_a_running_pod():
    pod = make.pod(make.container("main", make.running()), make.sidecar())
    assert said(pod) == [
        "main container main: running",
        "sidecar log: running; when the work is done: swap, because it ends with code 0, also if "
        "it never started or ignores every signal",
        "main container main is running",
    ]


def test_a_pod_whose_sidecars_are_ending():
    pod = make.pod(make.container("main", make.ended(3)), make.sidecar())
    moment = reconcile.DecisionMoment(model.BEGIN, lambda: 0.5)
    patch = reconcile.reconcile(
        sidecar_pods.read(pod), model.around(), moment, model.SETTINGS
    ).patch
    assert said(model.apply(pod, patch.operations)) == [
        "main container main: ended with 3",
        "sidecar log: running; it is being ended by swap",
        "the sidecars are ending",
    ]


def test_a_pod_that_hangs():
    pod = make.pod(make.container("main", make.ended(0)), make.sidecar(command=["/opt/log"]))
    assert said(pod)[-1] == (
        "sidecar log is left running: to stop it would make finished work fail and run again (its "
        "command was not transformed when the pod was created; if it ends with code 0, set "
        "SIDECAR_TERMINATION_EXITS_ZERO=true)"
    )


def test_a_pod_that_is_not_handled():
    assert said(make.pod(make.container("main", make.running()))) == [
        "no container is marked as a sidecar"
    ]
    pod = make.pod(make.container("main", make.running()), make.sidecar(), policy="Always")
    assert "restartPolicy is Always" in said(pod)[-1]
    pod = make.pod(make.container("main", make.ended(0)), make.sidecar(), phase="Failed")
    assert said(pod) == [
        "main container main: ended with 0",
        "sidecar log: running",
        "the pod has ended: Failed",
    ]


def test_a_pod_that_hangs_without_marked_sidecars():
    done, mesh = make.container("main", make.ended(0)), make.container("mesh", make.running())
    assert said(make.pod(done, mesh)) == [
        "mesh: still there, while main is done, and no container is marked as a sidecar. To end "
        "one with the others, set SIDECAR_TERMINATION=true in its environment, in the "
        "Job's template: this pod cannot be changed any more"
    ]
    assert said(make.pod(done)) == ["no container is marked as a sidecar"]
    assert said(make.pod(done, mesh, metadata={"deletionTimestamp": make.AT})) == [
        "no container is marked as a sidecar"
    ]


def test_a_pod_without_our_label():
    pod = make.pod(make.container("main", make.running()), make.sidecar())
    assert "has no label pyvgpu.io/sidecars=managed" in said(pod, labelled=False)[-2]
    pod["metadata"]["labels"] = {"pyvgpu.io/sidecars": "off"}
    assert "pyvgpu.io/sidecars=off opts the pod out" in said(pod, labelled=False)[-2]
