"""The chart's matchConditions pass every pod that a webhook would change, refuse or warn about."""

import copy
import json
import tempfile
from pathlib import Path

import charted
import conditions
import gpu_pods as gpu
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvgpu import names
from pyvgpu.allocator import datatypes
from pyvgpu.cli import webhook
from pyvgpu.controller.sidecar import config, mark_names
from pyvgpu.controller.webhook import (
    conversions,
    devices,
    imagenames,
    review,
    transform,
)

POLICIES = [
    {"namespace": "train-*", "containers": ["log-*"]},
    {"namespace": "tea?", "containers": ["proxy"], "labels": {"app": "x*"}},
]
RULES = [
    {"prefix": "docker.io/", "to": "mirror.example/", "namespaces": ["team", "train-?"]},
    {"pattern": "quay.io/(.*)", "to": r"mirror.example/\1", "namespaces": ["[!t]*"]},
]
NAMESPACES = ("team", "train-a", "train", "other", "a-train-b")
T4 = datatypes.NodeDevice("", 0, 16 << 30, "Tesla T4", least_bytes=1 << 30)


def renames():
    """Return RULES, loaded from a file as the webhook loads them."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(json.dumps(RULES))
        file.flush()
        return imagenames.load(Path(file.name))


def of_chart(given):
    found = charted.made(values=given)
    return {
        (kind, hook["name"]): hook
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for hook in found[kind, webhook.NAME]["webhooks"]
    }


CHART = of_chart({"sidecar": {"enabled": True}})
WITH_POLICIES = of_chart({"sidecar": {"enabled": True, "settings": {"policies": POLICIES}}})
HAMI = of_chart({"webhook": {"convert": ["hami"]}})
CONVERTING = of_chart({"webhook": {"convert": ["hami", "nvidia"]}})
RENAMING = of_chart({"webhook": {"imageRules": RULES}})
WORDS = {
    "hami": (conversions.Words.HAMI,),
    "converting": (conversions.Words.HAMI, conversions.Words.NVIDIA),
}
ALL = {
    "hami": HAMI,
    "chart": CHART,
    "policies": WITH_POLICIES,
    "converting": CONVERTING,
    "renaming": RENAMING,
}


def by_path(hooks):
    """Return the webhook entries by kind and path; it suffices if one of them is called."""
    found = {}
    for (kind, _), hook in hooks.items():
        found.setdefault((kind, hook["clientConfig"]["service"]["path"]), []).append(hook)
    return found


def mutation_of(path, source):
    rules = devices.DeviceRules(words=frozenset(WORDS.get(source, ())))
    policies = POLICIES if source == "policies" else []
    admission = transform.Admission(
        settings=config.parse(yaml.safe_dump({"policies": policies}), "test")
    )
    return {
        webhook.DEVICES: devices.mutation(rules, lambda: (T4,), gpu.no_claims),
        webhook.VALIDATE: devices.validation(rules, lambda: (T4,)),
        webhook.EPHEMERAL: devices.ephemeral(rules),
        webhook.SIDECARS: transform.mutation(admission, lambda: (1, 36)),
        webhook.IMAGES: imagenames.mutation(renames()),
    }[path]


@st.composite
def cased(draw, text):
    """Return *text* in any mix of lower and upper case."""
    small = draw(st.lists(st.booleans(), min_size=len(text), max_size=len(text)))
    return "".join(
        letter.lower() if one else letter for letter, one in zip(text, small, strict=True)
    )


MARKS = st.sampled_from([name for name, _ in mark_names.MARKS]).flatmap(cased)
VARIABLES = st.one_of(
    st.builds(
        lambda name, value: {"name": name, "value": value},
        st.one_of(MARKS, st.sampled_from([*mark_names.VARIABLES, "PATH", "XSIDECAR_TERMINATION"])),
        st.sampled_from(["true", "false", "ture", "sidecar", "", "TRUE ", "maybe"]),
    ),
    st.builds(
        lambda name: {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        MARKS,
    ),
)
AMOUNTS = st.dictionaries(
    st.sampled_from(
        [
            *gpu.OURS,
            *gpu.GAIA,
            names.VMEMORY_MIB_RESOURCE,
            "cpu",
            conversions.GPU,
            conversions.PRIORITY,
            *conversions.HAMI_ALONE,
        ]
    ),
    st.sampled_from(["0", "1", "50", "100", "4Gi"]),
    max_size=2,
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from(
        [
            *devices.STATE_ANNOTATIONS,
            f"{devices.STATE_PREFIX}gpu-idx-0",
            "note",
            names.GANG_ANNOTATION,
            names.VCORE_POLICY_ANNOTATION,
            "nvidia.com/use-gputype",
            mark_names.BCI_IGNORE,
        ]
    ),
    st.sampled_from(["", "1", "a"]),
    max_size=2,
)
LABELS = st.dictionaries(
    st.sampled_from(["app", names.SIDECAR_LABEL, "workflows.argoproj.io/workflow"]),
    st.sampled_from(["managed", "mine", "x1"]),
    max_size=2,
)


def present(**members):
    """Return members of an object as the API server stores them: without empty ones."""
    return {key: value for key, value in members.items() if value}


@st.composite
def containers(draw, name):
    limits, requests = draw(AMOUNTS), draw(AMOUNTS)
    return {
        "name": name,
        "image": draw(st.sampled_from(["nginx", "quay.io/a/b:1", "mirror.example/x"])),
        "resources": present(limits=limits, requests=requests),
        **present(
            env=draw(st.lists(VARIABLES, max_size=2)),
            command=draw(st.sampled_from([[], ["/opt/log"]])),
        ),
    }


CLAIMS = st.lists(
    st.sampled_from(
        [
            {"name": "a", "resourceClaimTemplateName": "pyvgpu-share-1"},
            {"name": "b", "resourceClaimTemplateName": "pyvgpu-whole-1"},
            {"name": "c", "resourceClaimTemplateName": "mine"},
            {"name": "d", "resourceClaimName": "pyvgpu-share-1"},
        ]
    ),
    max_size=2,
    unique_by=lambda entry: entry["name"],
)
DEBUGGER = {"name": "debug", "image": "a", "securityContext": {"privileged": True}}


@st.composite
def pods(draw):
    chosen = draw(st.lists(st.sampled_from(["main", "log-1", "proxy"]), min_size=1, unique=True))
    return {
        "metadata": {
            "generateName": "p-",
            **present(annotations=draw(ANNOTATIONS), labels=draw(LABELS)),
        },
        "spec": {
            "containers": [draw(containers(name)) for name in chosen],
            "restartPolicy": draw(st.sampled_from(["Never", "OnFailure", "Always"])),
            **present(
                initContainers=draw(st.lists(containers("init"), max_size=1)),
                ephemeralContainers=draw(st.sampled_from([[], [DEBUGGER]])),
                resourceClaims=draw(CLAIMS),
                nodeName=draw(st.sampled_from(["", "n"])),
            ),
        },
    }


def says_something(hook, mutation, pod, namespace):
    rule = hook["rules"][0]
    request = review.AdmissionRequest(
        "u", rule["operations"][0], rule["resources"][0], namespace, copy.deepcopy(pod)
    )
    answer = mutation(request)
    return bool(answer.operations or answer.warnings or answer.refusal)


CASES = [
    pytest.param(hooks, mutation_of(path, source), id=f"{source}-{path}")
    for source, found in ALL.items()
    for (_, path), hooks in by_path(found).items()
]


@pytest.mark.slow
@pytest.mark.parametrize(("hooks", "mutation"), CASES)
@settings(max_examples=100)
@given(pods(), st.sampled_from(NAMESPACES))
def test_conditions_pass_every_pod_the_webhook_would_answer(hooks, mutation, pod, namespace):
    if says_something(hooks[0], mutation, pod, namespace):
        assert any(conditions.holds(hook, pod, namespace) for hook in hooks)


PLAIN = {
    "metadata": {"generateName": "p-", "labels": {"app": "x1"}, "annotations": {"note": "a"}},
    "spec": {
        "containers": [
            {"name": "main", "image": "nginx", "resources": {"limits": {"cpu": "1"}}},
            {
                "name": "proxy",
                "image": "a",
                "resources": {},
                "env": [{"name": "PATH", "value": "/bin"}, {"name": "MY_SIDECAR_TERMINATION"}],
            },
        ],
        "initContainers": [{"name": "i", "image": "a", "env": [{"name": "SIDECAR_TERMINATION"}]}],
        "resourceClaims": [{"name": "mine", "resourceClaimTemplateName": "mine"}],
    },
}
SMALLEST = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "resources": {}}]}}
ASKED = [  # namespace, source, and the webhooks that are called all the same
    ("other", "hami", set()),
    ("other", "chart", set()),
    ("other", "converting", set()),
    ("other", "policies", set()),
    ("train-a", "policies", {"sidecars.pyvgpu.io"}),
    ("team", "policies", {"sidecars.pyvgpu.io"}),
    ("train-ab", "renaming", set()),
    ("train-a", "renaming", {"images.pyvgpu.io"}),
    ("other", "renaming", {"images.pyvgpu.io"}),
]


@pytest.mark.parametrize("pod", [PLAIN, SMALLEST])
@pytest.mark.parametrize(("namespace", "source", "asked"), ASKED)
def test_pod_without_devices_or_sidecars_calls_no_webhook(namespace, source, asked, pod):
    found = {
        hook["name"] for hook in ALL[source].values() if conditions.holds(hook, pod, namespace)
    }
    assert found == asked


def test_fail_open_webhook_delays_a_pod_by_at_most_two_seconds():
    hooks = [entry for found in ALL.values() for entry in found.values()]
    for hook in hooks:
        assert hook["timeoutSeconds"] <= (2 if hook["failurePolicy"] == "Ignore" else 5)


def test_image_rules_without_namespaces_match_every_pod():
    hooks = of_chart({"webhook": {"imageRules": [{"prefix": "a", "to": "b/"}]}})
    hook = hooks["MutatingWebhookConfiguration", "images.pyvgpu.io"]
    assert conditions.holds(hook, SMALLEST, "any")
