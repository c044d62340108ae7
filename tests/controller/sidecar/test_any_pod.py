"""Properties for arbitrary pods: one write, only to sidecars, and not repeated."""

import dataclasses
import datetime

import pod_objects as make
import pytest
import small_kubelet as model
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvgpu.controller.sidecar import (
    main_completion,
    marking,
    node_requests,
    reconcile,
    records,
    sidecar_pods,
    termination_methods,
)

STATUSES = st.sampled_from(
    [
        None,
        make.running(),
        make.running("containerd://2"),
        make.ended(0),
        make.ended(1),
        make.ended(143),
        make.ended(0, at=None),
        make.ended(0, at="9999-12-31T23:59:59Z"),
        make.ended(0, at="10000-01-01T00:59:59Z"),
        make.waiting(),
        make.waiting("ImagePullBackOff"),
        make.waiting("CrashLoopBackOff", after=1),
    ]
)
RULE = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [143]}}
SPECS = st.sampled_from(
    [
        {},
        {"command": ["/opt/log"]},
        {"command": ["/bin/sh", "-c", "x"]},
        {"restartPolicy": "Always"},
        {"restartPolicy": "Never"},
        {"restartPolicy": "OnFailure", "restartPolicyRules": [RULE]},
        {"imagePullPolicy": "Always"},
        {"image": model.FAST_EXIT},
    ]
)
ENVIRONMENTS = st.sampled_from(
    [
        {},
        {"SIDECAR_TERMINATION": "true"},
        {"SIDECAR_TERMINATION": "true", "SIDECAR_TERMINATION_EXITS_ZERO": "true"},
        {"SIDECAR_TERMINATION": "true", "SIDECAR_TERMINATION_GRACE_SECONDS": "1"},
        {"SIDECAR_TERMINATION": "true", "SIDECAR_TERMINATION_COMMAND": "quit"},
        {"ECI_CONTAINER_TYPE": "sidecar", "ECI_CONTAINER_IGNORE_EXIT_CODE": "true"},
    ]
)
ANY = st.tuples(ENVIRONMENTS, SPECS, STATUSES)
ALMOST_DONE = st.tuples(st.just({}), st.just({}), st.sampled_from([make.ended(0), make.ended(3)]))
PODS = st.builds(
    lambda containers, policy, phase, conditions: make.pod(
        *(
            make.container(f"c-{number}", status, environment, **spec)
            for number, (environment, spec, status) in enumerate(containers)
        ),
        policy=policy,
        phase=phase,
        conditions=conditions,
    ),
    st.one_of(
        st.lists(ANY, min_size=1, max_size=4),
        st.tuples(ALMOST_DONE, ANY, ANY),
        st.tuples(ALMOST_DONE, ALMOST_DONE, ANY),
    ),
    st.sampled_from(["Never", "OnFailure", "Always"]),
    st.sampled_from(["Running", "Running", "Pending", "Succeeded"]),
    st.sampled_from([(), (), (), ("DisruptionTarget",)]),
)
AROUND = st.builds(
    model.around,
    live=st.booleans(),
    virtual=st.booleans(),
    job=st.sampled_from(
        [None, termination_methods.OwningJob(0, 0, 1), termination_methods.OwningJob(6, 0, 1)]
    ),
    has_fast_exit=st.booleans(),
)


def decide(pod, around, seconds):
    moment = reconcile.DecisionMoment(
        model.BEGIN + datetime.timedelta(seconds=seconds), lambda: 0.5
    )
    return reconcile.reconcile(sidecar_pods.read(pod), around, moment, model.SETTINGS)


@pytest.mark.row(29)
@settings(max_examples=400)
@given(PODS, AROUND)
def test_a_decision_writes_once_and_only_to_sidecars(pod, around):
    writes = 0
    for seconds in (1, 1, 50, 50, 5_000, 50_000):
        decision = decide(pod, around, seconds)
        assert decision.why
        if decision.patch is None:
            continue
        if decision.patch.resource == "jobs":
            job = dataclasses.replace(
                around.job, backoff_limit=decision.patch.operations[-1]["value"]
            )
            around = dataclasses.replace(around, job=job)
            continue
        read = sidecar_pods.read(pod)
        marks = marking.mark(read)
        assert main_completion.read(read, marks.mains).done
        after = model.apply(pod, decision.patch.operations)
        mains = [entry.index for entry in marks.mains]
        for index in mains:
            assert after["spec"]["containers"][index] == pod["spec"]["containers"][index]
        assert after["status"] == pod["status"]
        pod, writes = after, writes + 1
        assert decide(pod, around, seconds).patch is None
    assert writes <= records.MOST_STEPS


@settings(max_examples=200)
@given(PODS, AROUND, st.lists(st.sampled_from([None, 0, 1]), min_size=4, max_size=4))
def test_the_node_part_stops_only_sidecars_by_id(pod, around, codes):
    decision = decide(pod, around, 1)
    if decision.patch and decision.patch.resource == "pods":
        pod = model.apply(pod, decision.patch.operations)
    read = sidecar_pods.read(pod)
    runtime = [
        node_requests.Running(entry.name, entry.id, code)
        for entry, code in zip(read.containers, codes, strict=False)
    ]
    marked = {entry.name: entry.id for entry in marking.mark(read).sidecars}
    running = {entry.id for entry in runtime if entry.exit_code is None}
    for stop in node_requests.check(read, model.NODE, runtime, frozenset(running)).stops:
        assert marked[stop.name] == stop.id
        assert stop.id in running
