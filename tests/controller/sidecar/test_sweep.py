"""Which pods without our label get it."""

import pod_objects as make
import pytest
import small_kubelet

from pyvgpu.controller.sidecar import marking, pods, settings, sweep


def adopted(pod, *policies):
    found = sweep.Sweep(None, settings.Settings(policies=policies), None, None, None)
    operations = found.look(pods.read(pod))
    return small_kubelet.apply(pod, operations)["metadata"].get("labels") if operations else None


def bare(*containers, labels=None, **more):
    pod = make.pod(make.container("main", make.running()), *containers, **more)
    pod["metadata"]["labels"] = labels
    return pod


def test_a_pod_with_a_marked_sidecar_gets_it_beside_its_own():
    pod = bare(make.sidecar(), labels={"app": "a"})
    assert adopted(pod) == {"app": "a", "pyvgpu.io/sidecars": "managed"}
    assert adopted(bare(make.sidecar())) == {"pyvgpu.io/sidecars": "managed"}


def test_a_pod_that_a_policy_marks_gets_it():
    pod = bare(make.container("log-1", make.running()))
    assert adopted(pod) is None
    assert adopted(pod, marking.Policy(("log-*",)))
    assert adopted(pod, marking.Policy(("log-*",), namespace="others")) is None
    assert adopted(pod, marking.Policy(("log-*",), labels={"app": "b"})) is None


@pytest.mark.parametrize(
    "pod",
    [
        bare(make.container("log", make.running())),
        bare(make.sidecar(), policy="Always"),
        bare(make.sidecar(), metadata={"deletionTimestamp": make.AT}),
        bare(make.sidecar(), labels={"workflows.argoproj.io/workflow": "w"}),
    ],
)
def test_a_pod_that_is_none_of_ours_does_not(pod):
    assert adopted(pod) is None
