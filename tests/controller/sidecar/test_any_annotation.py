"""Arbitrary text in our annotations must not make any component fail.

Annotations are text, and JSON in them may hold what no text can: halves of characters, numbers
without end.
"""

import datetime
import json

import pod_objects as make
import small_kubelet as model
from hypothesis import given
from hypothesis import strategies as st

from pyvgpu.controller.sidecar import (
    controller_settings,
    exit_reports,
    node_requests,
    projections,
    reconcile,
    sidecar_explanation,
    sidecar_pods,
    swaps,
)

MOMENT = reconcile.DecisionMoment(model.BEGIN + datetime.timedelta(seconds=30), lambda: 0.5)
AROUND = (model.around(), model.around(live=False, images={"a:1": True}))
UID, ENDED = "uid-1", "2026-11-21T10:00:00+00:00"  # of the pod, as a record has it

odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**70),
    st.floats(),
    st.sampled_from(["", " ", "\ud800", "\0", "a:1", "log:1", "pyvgpu/fast-exit", "stop", ENDED]),
)
names = st.sampled_from(["log", "main", "ghost", "\ud800"])
trees = st.recursive(
    odd,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner)),
    max_leaves=6,
)
requests = st.dictionaries(
    names, st.dictionaries(st.sampled_from(["image", "program", "pull"]), odd), max_size=2
)
paths = st.sampled_from(["stop", "swap", "hybrid", "raise", "leave", "explode"])
entries = st.fixed_dictionaries(
    {
        "path": paths,
        "id": st.sampled_from(["", "containerd://log", "x"]),
        "graceSeconds": st.one_of(st.integers(0, 10**9), odd),
        "kill": st.booleans(),
        "order": st.one_of(st.integers(), odd),
        "command": odd,
        "tried": st.lists(paths, max_size=2),
    }
)
records = st.fixed_dictionaries(
    {
        "v": st.just(1),
        "uid": st.just(UID),
        "mainsEnded": st.just(ENDED),
        "step": st.integers(1, 2),
        "at": st.sampled_from(
            ["2026-11-21T10:00:01Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59Z"]
        ),
        "seconds": st.one_of(st.floats(0, 1e8), odd),
        "containers": st.one_of(st.dictionaries(names, entries, max_size=2), trees),
    }
)


@given(
    st.one_of(requests, trees),
    st.one_of(requests, trees),
    st.one_of(records, trees),
    st.sampled_from([make.ended(0), make.running()]),
    st.sampled_from(["Running", "Succeeded"]),
)
def test_no_annotation_makes_a_component_fail(swap, swapped, record, main, phase):
    said = {"swap": swap, "swapped": swapped, "sidecar-stop": record}
    annotations = {f"pyvgpu.io/{name}": json.dumps(value) for name, value in said.items()}
    sidecar = make.sidecar("log")
    thing = make.pod(
        make.container("main", main), sidecar, metadata={"annotations": annotations}, phase=phase
    )
    projections.pod(thing, controller_settings.SidecarSettings())
    pod = sidecar_pods.read(thing)
    for around in AROUND:
        decision = reconcile.reconcile(pod, around, MOMENT, model.SETTINGS)
        if decision.patch:
            changed = {
                operation["path"].split("/")[3] for operation in decision.patch.operations[2:]
            }
            assert not changed & {"0"}  # the main container
        sidecar_explanation.explain(pod, around, MOMENT, model.SETTINGS)
    code = main["state"].get("terminated", {}).get("exitCode")
    runtime = [
        node_requests.Running("main", "containerd://1", code, 1.0),
        node_requests.Running("log", "containerd://log", None),
    ]
    answers = [
        node_requests.check(pod, "node-1", runtime, frozenset(["containerd://log"])),
        node_requests.foresee(pod, "node-1", runtime),
    ]
    for stop in (stop for answer in answers for stop in answer.stops):
        assert (stop.name, stop.id) == ("log", "containerd://log")
        assert stop.left_after(1) >= 0
    exit_reports.see(pod, runtime)
    for image in swaps.asked_for(pod):
        image.encode()
