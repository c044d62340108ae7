"""Figures of a pod's termination."""

import copy
import datetime

import pod_objects as make
import pytest
import small_kubelet as model

from pyvgpu.controller.sidecar import projections, reconcile, sidecar_pods


def over(at="2026-11-21T10:00:02.500Z", phase="Succeeded"):
    """Return a pod whose sidecar was swapped, and ended *at*."""
    pod = make.pod(make.container("main", make.ended(0)), make.sidecar())
    moment = reconcile.DecisionMoment(model.BEGIN + datetime.timedelta(seconds=1), lambda: 0.5)
    decision = reconcile.reconcile(sidecar_pods.read(pod), model.around(), moment, model.SETTINGS)
    pod = model.apply(pod, decision.patch.operations)
    pod["status"]["phase"] = phase
    pod["status"]["containerStatuses"][1] |= make.ended(0, at=at)
    return pod


def test_seconds_are_from_the_last_main_to_the_last_sidecar():
    assert projections.measure_termination(
        sidecar_pods.read(over())
    ) == projections.TerminationMetrics(("swap",), 2.5, 1)


def test_a_clock_set_back_gives_no_negative_seconds():
    assert (
        projections.measure_termination(sidecar_pods.read(over(at="2026-11-21T09:59:59Z"))).seconds
        == 0
    )


def without_record():
    pod = copy.deepcopy(over())
    pod["metadata"]["annotations"] = {}
    return pod


@pytest.mark.parametrize(
    "pod",
    [
        over(phase="Running"),
        without_record(),
        over(at="9999-12-31T23:59:59Z"),
        make.pod(make.container("main", make.ended(0)), phase="Succeeded"),
        make.pod(make.sidecar(status=make.ended(0)), phase="Succeeded"),
    ],
)
def test_a_pod_without_our_record_or_a_possible_time_has_no_figures(pod):
    assert projections.measure_termination(sidecar_pods.read(pod)) is None
