"""Properties for arbitrary pods with devices: mutations are idempotent and commute, or refuse."""

import copy

import gpu_pods as gpu
import pytest
import small_kubelet
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvgpu.allocator import datatypes
from pyvgpu.controller.webhook import conversions, devices, review, transform

GIB = 1 << 30
KNOWN = st.sampled_from(
    [
        (),
        (
            datatypes.NodeDevice("", 0, 16 * GIB, "T4", least_bytes=GIB),
            datatypes.NodeDevice("", 0, 80 * GIB, "A100"),
        ),
    ]
)
AMOUNTS = st.sampled_from(["0", "1", "30", "99", "100", "150", "2k", "1.5", "x"])
RESOURCES = st.sampled_from(
    [*gpu.OURS, *gpu.GAIA, "cpu"]
    + [f"nvidia.com/{suffix}" for suffix in ("gpu", "gpumem", "gpumem-percentage", "gpucores")]
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from(
        [
            "pyvgpu.io/devices",
            "pyvgpu.io/device-count",
            "pyvgpu.io/device-models",
            "pyvgpu.io/start_command.a.0",
            "tencent.com/predicate-gpu-idx-0",
            "nvidia.com/use-gputype",
            "hami.io/gpu-scheduler-policy",
        ]
    ),
    st.sampled_from(["2", "a=2", "A100", "spread", "", "{}"]),
    max_size=3,
)
MARKED = [{"name": "SIDECAR_TERMINATION", "value": "true"}]
RULES = st.builds(
    devices.DeviceRules,
    fallback=st.sampled_from([0, GIB]),
    schedulers=st.sampled_from([(), ("gpu",)]),
    words=st.frozensets(st.sampled_from(conversions.Words)),
)


@st.composite
def containers(draw, name):
    made = gpu.asking(name, draw(st.dictionaries(RESOURCES, AMOUNTS, max_size=3)))
    if draw(st.booleans()):
        made |= {"env": copy.deepcopy(MARKED), "command": ["/opt/log", "a$b"]}
    if draw(st.booleans()):
        made["resources"].pop("requests", None)
    return made


@st.composite
def pods(draw):
    apps = [draw(containers(name)) for name in "ab"]
    spec = draw(st.sampled_from([{}, {"nodeName": "n"}, {"schedulerName": "mine"}]))
    pod = gpu.pod(*apps, annotations=draw(ANNOTATIONS), restartPolicy="Never", **spec)
    if draw(st.booleans()):
        pod["spec"]["initContainers"] = [draw(containers("i"))]
    return pod


def ask(mutation, pod):
    """Return the mutated *pod*; None if it is refused."""
    answer = mutation(review.AdmissionRequest("u", "CREATE", "pods", "team", pod))
    assert not answer.failed
    return None if answer.refusal else small_kubelet.apply(copy.deepcopy(pod), answer.operations)


@pytest.mark.slow
@settings(max_examples=200)
@given(pods(), RULES, KNOWN)
def test_the_mutation_is_idempotent_or_refuses(pod, rules, known):
    mutation = devices.mutation(rules, lambda: known, gpu.no_claims)
    changed = ask(mutation, pod)
    if changed is not None:
        assert ask(mutation, changed) == changed
        ask(devices.validation(rules, lambda: known), changed)


@pytest.mark.slow
@settings(max_examples=200)
@given(pods(), RULES, KNOWN, st.sampled_from([(), ("*",)]))
def test_device_and_sidecar_mutations_commute(pod, rules, known, native):
    ours = devices.mutation(rules, lambda: known, gpu.no_claims)
    theirs = transform.mutation(transform.Admission(native_namespaces=native), lambda: (1, 36))
    first = ask(ours, pod)
    last = ask(ours, ask(theirs, pod))
    assert last == (None if first is None else ask(theirs, first))
