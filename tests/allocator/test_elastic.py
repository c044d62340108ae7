"""Policy for sharing a device's time: annotations of pods and configurations of claims."""

import pytest

from pyvgpu import errors, quota
from pyvgpu.allocator import elastic

HARD, ELASTIC = quota.TimePolicy.HARD, quota.TimePolicy.ELASTIC
OURS, POLICY = "pyvgpu.io/vcore-limit", "pyvgpu.io/vcore-policy"
THEIRS = "tencent.com/vcuda-core-limit"
PRIORITY = "pyvgpu.io/priority"
LOW, HIGH = quota.Priority.LOW, quota.Priority.HIGH


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, None),
        ({POLICY: "elastic"}, elastic.TimeSharing(ELASTIC)),
        ({POLICY: "hard"}, elastic.TimeSharing()),
        ({OURS: "80"}, elastic.TimeSharing(ELASTIC, 80)),
        ({POLICY: "elastic", OURS: "80"}, elastic.TimeSharing(ELASTIC, 80)),
        ({THEIRS: "80"}, elastic.TimeSharing(ELASTIC, 80)),
        ({THEIRS: "250"}, elastic.TimeSharing(ELASTIC, 100)),
        ({THEIRS: "80", OURS: "60"}, elastic.TimeSharing(ELASTIC, 60)),
        ({THEIRS: "80", POLICY: "hard"}, elastic.TimeSharing()),
        ({"pyvgpu.io/else": "1"}, None),
    ],
)
def test_annotations(annotations, expected):
    assert elastic.read(annotations) == expected


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({OURS: "0"}, "pyvgpu.io/vcore-limit '0': must be a whole percentage"),
        ({OURS: "101"}, "'101': must be a whole percentage"),
        ({OURS: "50%"}, "'50%'"),
        ({OURS: ""}, "''"),
        ({OURS: "٥٠"}, "'٥٠'"),
        ({THEIRS: "many"}, "vcuda-core-limit 'many'"),
        ({THEIRS: "9" * 400}, "vcuda-core-limit '999"),
        ({THEIRS: "-5"}, "vcuda-core-limit '-5'"),
        ({POLICY: "soft"}, "pyvgpu.io/vcore-policy 'soft': must be hard or elastic"),
        ({POLICY: "hard", OURS: "80"}, "needs pyvgpu.io/vcore-policy elastic"),
    ],
)
def test_invalid_annotations_are_refused_with_the_rule(annotations, said):
    with pytest.raises(errors.UsageError, match=said):
        elastic.read(annotations)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [({}, None)] + [({PRIORITY: priority.name.lower()}, priority) for priority in quota.Priority],
)
def test_priorities_of_pods(annotations, expected):
    assert elastic.read_priority(annotations) is expected
    assert elastic.read(annotations) is None, "the priority does not set a policy"


@pytest.mark.parametrize("word", ["", "LOW", "0", "highest", "system-node-critical"])
def test_an_unknown_priority_is_refused_with_the_valid_ones(word):
    said = f"pyvgpu.io/priority '{word}': must be low, normal or high, such as low"
    with pytest.raises(errors.UsageError, match=said):
        elastic.read_priority({PRIORITY: word})


def parameters(**members):
    return {"apiVersion": "pyvgpu.io/v1alpha1", "kind": "VGPUConfig", **members}


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, elastic.TimeSharing()),
        ({"policy": "hard"}, elastic.TimeSharing()),
        ({"policy": "elastic"}, elastic.TimeSharing(ELASTIC)),
        ({"vcoreLimit": 80}, elastic.TimeSharing(ELASTIC, 80)),
        ({"policy": "elastic", "vcoreLimit": 100}, elastic.TimeSharing(ELASTIC, 100)),
        ({"policy": None, "vcoreLimit": None, "priority": None}, elastic.TimeSharing()),
        ({"priority": "low"}, elastic.TimeSharing(priority=LOW)),
        ({"priority": "high", "vcoreLimit": 80}, elastic.TimeSharing(ELASTIC, 80, HIGH)),
    ],
)
def test_configurations_of_claims(members, expected):
    assert elastic.read_parameters(parameters(**members)) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "parameters None: must be such as {apiVersion: pyvgpu.io/v1alpha1,"),
        ("elastic", "parameters 'elastic': must be such as"),
        ([1], r"parameters \[1\]: must be such as"),
        ({}, "apiVersion None, kind None: must be a VGPUConfig of pyvgpu.io/v1alpha1"),
        (parameters(kind="GpuConfig"), "kind 'GpuConfig': must be a VGPUConfig"),
        (parameters(apiVersion="pyvgpu.io/v2"), "apiVersion 'pyvgpu.io/v2'"),
        (parameters(Policy="hard"), "'Policy': is not a field of a VGPUConfig; it has policy"),
        (parameters(policy="soft"), "policy 'soft': must be hard or elastic, such as hard"),
        (parameters(policy=1), "policy 1: must be hard or elastic"),
        (parameters(priority="top"), "priority 'top': must be low, normal or high, such as low"),
        (parameters(priority=0), "priority 0: must be low, normal or high, such as low"),
        (parameters(vcoreLimit=0), "vcoreLimit 0: must be a whole number from 1 to 100"),
        (parameters(vcoreLimit=101), "vcoreLimit 101: "),
        (parameters(vcoreLimit="80"), "vcoreLimit '80': must be a whole number"),
        (parameters(vcoreLimit=80.0), "vcoreLimit 80.0: "),
        (parameters(vcoreLimit=True), "vcoreLimit True: "),
        (parameters(policy="hard", vcoreLimit=80), "vcoreLimit 80: needs policy elastic"),
        (parameters(vcoreLimit="9" * 400), r"vcoreLimit '9{36}\.\.\.: must be"),
    ],
)
def test_an_invalid_configuration_is_refused_with_the_rule(given, said):
    with pytest.raises(errors.UsageError, match=said):
        elastic.read_parameters(given)


@pytest.mark.parametrize(
    "time_sharing",
    [
        elastic.TimeSharing(),
        elastic.TimeSharing(ELASTIC),
        elastic.TimeSharing(ELASTIC, 7),
        elastic.TimeSharing(priority=LOW),
    ],
)
def test_written_parameters_are_read_back(time_sharing):
    assert elastic.read_parameters(elastic.parameters_of(time_sharing)) == time_sharing


def said(limit, *requests, source="FromClaim", driver="pyvgpu.io"):
    opaque = {"driver": driver, "parameters": parameters(vcoreLimit=limit)}
    return {"source": source, "requests": list(requests), "opaque": opaque}


@pytest.mark.parametrize(
    ("configurations", "limit"),
    [
        ([], None),
        ([said(80)], 80),
        ([said(80, "main")], 80),
        ([said(80, "main/large")], None),
        ([said(80, "other")], None),
        ([said(80, driver="gpu.example")], None),
        ([said(70, source="FromClass")], 70),
        ([said(80), said(70, source="FromClass")], 80),
        ([said(70, source="FromClass"), said(80)], 80),
        ([said(80), said(90)], 90),
    ],
)
def test_the_claim_overrides_its_class_and_later_entries_win(configurations, limit):
    assert elastic.of_request(configurations, "main").ceiling == limit


def test_a_configuration_applies_to_a_request_or_one_alternative():
    assert elastic.of_request([said(80, "main")], "main/large").ceiling == 80
    assert elastic.of_request([said(80, "main/large")], "main/large").ceiling == 80
    assert elastic.of_request([said(80, "main/small")], "main/large").ceiling is None
