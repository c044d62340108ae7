"""Labelling of pods with marked sidecars that lack our label."""

import pod_objects as make
import pytest
import small_kubelet

from pyvgpu.controller.sidecar import controller_settings, label_sweep, marking, sidecar_pods
from pyvgpu.controller.sidecar.meters import ControllerMeter

POD = "/api/v1/namespaces/team/pods/train-0"


def adopted(pod, *policies):
    found = label_sweep.Sweep(
        None, controller_settings.SidecarSettings(policies=policies), None, None, None
    )
    operations = found.operations_of(sidecar_pods.read(pod))
    return small_kubelet.apply(pod, operations)["metadata"].get("labels") if operations else None


def bare(*containers, labels=None, **more):
    pod = make.pod(make.container("main", make.running()), *containers, **more)
    pod["metadata"]["labels"] = labels
    return pod


def test_a_pod_with_a_marked_sidecar_is_labelled():
    pod = bare(make.sidecar(), labels={"app": "a"})
    assert adopted(pod) == {"app": "a", "pyvgpu.io/sidecars": "managed"}
    assert adopted(bare(make.sidecar())) == {"pyvgpu.io/sidecars": "managed"}


def test_a_pod_that_a_policy_marks_is_labelled():
    pod = bare(make.container("log-1", make.running()))
    assert adopted(pod) is None
    assert adopted(pod, marking.MarkingPolicy(("log-*",)))
    assert adopted(pod, marking.MarkingPolicy(("log-*",), namespace="others")) is None
    assert adopted(pod, marking.MarkingPolicy(("log-*",), labels={"app": "b"})) is None


@pytest.mark.parametrize(
    "pod",
    [
        bare(make.container("log", make.running())),
        bare(make.sidecar(), policy="Always"),
        bare(make.sidecar(), metadata={"deletionTimestamp": make.AT}),
        bare(make.sidecar(), labels={"workflows.argoproj.io/workflow": "w"}),
    ],
)
def test_a_pod_that_is_not_handled_is_not_labelled(pod):
    assert adopted(pod) is None


@pytest.fixture
def adopt(small):
    """Adopt a pod while each event happens before a write; return how many were labelled."""
    api, connection = small
    found = api.put(POD, bare(make.sidecar()))

    def adopt_while(*happen):
        turns, meter = Meanwhile(*happen), ControllerMeter()
        it = label_sweep.Sweep(
            connection, controller_settings.SidecarSettings(), lambda: True, turns, meter
        )
        it.adopt(sidecar_pods.read(found))
        return meter.registry.get_sample_value("pyvgpu_sidecar_adopted_pods_total")

    return adopt_while


class Meanwhile:
    """Runs the next event while a write waits for the rate limiter."""

    def __init__(self, *happen):
        self._happen = list(happen)

    def wait(self):
        if self._happen:
            self._happen.pop(0)()


def test_a_conflicting_write_is_retried(small, adopt):
    api, _ = small
    assert adopt(lambda: api.put(POD, api.read(POD)), lambda: api.put(POD, api.read(POD))) == 1
    assert api.read(POD)["metadata"]["labels"] == {"pyvgpu.io/sidecars": "managed"}


@pytest.mark.slow
def test_a_pod_with_endless_conflicts_is_left_to_the_next_sweep(small, adopt):
    api, _ = small
    assert adopt(*[lambda: api.put(POD, api.read(POD))] * 100) == 0
    assert api.asked.count(("PATCH", POD)) < 10


@pytest.mark.parametrize(
    "now",
    [
        bare(make.sidecar(), labels={"pyvgpu.io/sidecars": "off"}),
        bare(make.sidecar(), phase="Succeeded"),
        bare(make.container("log", make.running())),
    ],
)
def test_a_pod_that_is_not_handled_any_more_is_left_alone(small, adopt, now):
    api, _ = small
    assert adopt(lambda: api.put(POD, now)) == 0
    assert api.read(POD)["metadata"].get("labels") == now["metadata"].get("labels")


def test_a_pod_deleted_meanwhile_is_not_an_error(small, adopt):
    api, _ = small
    assert adopt(lambda: api.delete(POD)) == 0
