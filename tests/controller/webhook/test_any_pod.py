"""Properties for arbitrary pods: the result is a pod that an API server accepts."""

import copy
import re

import pod_objects as make
import pytest
import small_kubelet as model
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvgpu.controller.webhook import transform
from pyvgpu.controller.webhook.transform import Admission, Expansion, Provider
from pyvgpu.kube import objects

KEY = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
WORDS = st.lists(
    st.sampled_from(
        ["/opt/log", "sh", "", "$(A)", "$$(A)", "$(START_COMMAND_0)", "é", "x" * 70_000]
    ),
    max_size=4,
)
ENVIRONMENTS = st.sampled_from(
    [
        {},
        {"SIDECAR_TERMINATION": "true"},
        {"sidecar_termination": "ture", "A": "/bin/a"},
        {"SIDECAR_TERMINATION": "true", "START_COMMAND_0": "mine"},
        {"KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT": "true", "SIDECAR_TERMINATION_ORDER": "1"},
        {"ECI_CONTAINER_TYPE": "sidecar"},
    ]
)
MOUNTS = [{"name": "mine", "mountPath": "/mine"}]
SPECS = st.sampled_from([{}, {}, {"env": None}, {"volumeMounts": MOUNTS}, {"startupProbe": {}}])
NAMES = st.sampled_from([transform.LAUNCH_VOLUME, "log", "start-command", "x" * 63])
METADATA = st.sampled_from(
    [
        {},
        {"annotations": None, "labels": None},
        {"annotations": {"pyvgpu.io/sidecar-stop": "{}", "pyvgpu.io/start_command.a.0": "b"}},
        {"annotations": {"note": "x" * 200_000}},
        {"annotations": {"note": "x" * (objects.MOST_ANNOTATION_BYTES - 10)}},
        {"labels": {"pyvgpu.io/sidecars": "mine"}},
        {"labels": {"workflows.argoproj.io/workflow": "w"}},
    ]
)
POD_SPECS = st.sampled_from(
    [
        {},
        {"initContainers": [{"name": "init"}], "volumes": [{"name": "mine", "emptyDir": {}}]},
        {"nodeSelector": {"type": "virtual-kubelet"}},
        {"tolerations": [{"operator": "Exists"}], "volumes": None},
    ]
)
ADMISSIONS = st.builds(
    Admission,
    native_namespaces=st.sampled_from([(), ("*",)]),
    oldest_kubelet=st.sampled_from([None, (1, 28), (1, 36)]),
    virtual_expansion=st.sampled_from(Expansion),
    virtual_provider=st.sampled_from(Provider),
)


@st.composite
def pods(draw):
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    containers = []
    for name in names:
        environment, spec = draw(ENVIRONMENTS), draw(SPECS)
        words = {"command": draw(WORDS), "args": draw(WORDS)}
        made, _ = make.container(name, None, environment, **words)
        containers.append(({**made, **copy.deepcopy(spec)}, None))
    policy = draw(st.sampled_from(["Never", "OnFailure", "Always"]))
    pod = make.pod(*containers, policy=policy, **draw(POD_SPECS))
    pod["metadata"] = copy.deepcopy({"generateName": "p-", **draw(METADATA)})
    return pod


def check(pod):
    """Validate *pod* like an API server."""
    annotations = pod["metadata"].get("annotations") or {}
    assert objects.annotation_bytes(annotations) <= objects.MOST_ANNOTATION_BYTES
    assert all(KEY.fullmatch(key) for key in annotations)
    spec = pod["spec"]
    assert spec["containers"]
    everyone = [*spec["containers"], *(spec.get("initContainers") or ())]
    volumes = [volume["name"] for volume in spec.get("volumes") or ()]
    for found in ([part["name"] for part in everyone], volumes):
        assert len(found) == len(set(found))
    for container in everyone:
        mounts = container.get("volumeMounts") or ()
        paths = [mount["mountPath"] for mount in mounts]
        assert len(paths) == len(set(paths))
        assert {mount["name"] for mount in mounts} <= {*volumes, "mine"}
        assert all(variable.get("name") for variable in container.get("env") or ())


@pytest.mark.slow
@settings(max_examples=300)
@given(pods(), ADMISSIONS)
def test_the_result_is_a_valid_pod(pod, admission):
    done = transform.transform(pod, "team", admission)
    changed = model.apply(pod, done.operations)
    check(changed)
    again = transform.transform(changed, "team", admission)
    assert model.apply(changed, again.operations) == changed


@settings(max_examples=200)
@given(pods(), ADMISSIONS)
def test_unmarked_containers_stay_unchanged(pod, admission):
    def plain(document):
        return [container for container in document["spec"]["containers"] if not container["env"]]

    done = transform.transform(pod, "team", admission)
    assert plain(model.apply(pod, done.operations)) == plain(pod)
