"""Admission of pods that request devices: defaults and refusals."""

import copy
import re

import gpu_pods as gpu
import mig_profiles
import pytest
import small_kubelet

from pyvgpu.allocator import datatypes
from pyvgpu.controller.webhook import confines, conversions, devices, review

GIB = 1 << 30
T4 = datatypes.NodeDevice("", 0, 16 * GIB, "Tesla T4", least_bytes=GIB)
A100 = datatypes.NodeDevice("", 0, 80 * GIB, "NVIDIA A100-SXM4-80GB", "large", least_bytes=GIB)
BOTH = (T4, A100)
RULES = devices.DeviceRules()


def request(pod, **more):
    return review.AdmissionRequest("u", "CREATE", "pods", "team", pod, **more)


def mutate(pod, rules=RULES, known=BOTH):
    answer = devices.mutation(rules, lambda: known, gpu.no_claims)(request(pod))
    assert not answer.refusal
    return small_kubelet.apply(copy.deepcopy(pod), answer.operations), answer


def evaluate(pod, rules=RULES, known=BOTH, **more):
    return devices.validation(rules, lambda: known)(request(pod, **more))


def refused(pod, rules=RULES, **more):
    answer = evaluate(pod, rules, **more)
    assert answer.code == review.FORBIDDEN
    return answer.refusal


# Default memory of a share.


@pytest.mark.parametrize(
    ("vcore", "known", "annotations", "vmemory"),
    [
        (50, BOTH, {}, 32),  # of 16 GiB, in units of 256 MiB
        (50, (A100,), {}, 160),
        (50, BOTH, {"pyvgpu.io/device-models": "a100"}, 160),
        (50, BOTH, {"pyvgpu.io/device-uuids": "GPU-1"}, 32),
        (1, BOTH, {}, 4),  # the minimum, the size of a context
        (100, BOTH, {"pyvgpu.io/device-count": "2"}, 64),
        (99, BOTH, {}, 63),
    ],
)
def test_a_share_gets_its_ratio_of_the_smallest_devices_memory(vcore, known, annotations, vmemory):
    pod = gpu.pod(gpu.container("a", vcore), annotations=annotations)
    changed, _ = mutate(pod, known=known)
    for section in ("limits", "requests"):
        assert changed["spec"]["containers"][0]["resources"][section] == {
            "pyvgpu.io/vcore": str(vcore),
            "pyvgpu.io/vmemory": str(vmemory),
        }
    assert not evaluate(changed, known=known).refusal


def test_without_known_devices_the_configured_default_applies():
    rules = devices.DeviceRules(fallback=3 * GIB)
    changed, _ = mutate(gpu.pod(gpu.container("a", 50)), rules, known=())
    assert gpu.asked(changed, "a") == (50, 12)


def test_without_a_default_it_is_refused_with_a_valid_example():
    answer = devices.mutation(RULES, lambda: (), gpu.no_claims)(
        request(gpu.pod(gpu.container("a", 50)))
    )
    assert answer.refusal == (
        "container a: pyvgpu.io/vcore 50 without pyvgpu.io/vmemory: no device is known yet, "
        "so the memory cannot be derived from the vcore; valid would be pyvgpu.io/vmemory 16, and "
        "an administrator can set --default-vmemory"
    )


@pytest.mark.parametrize(
    "containers",
    [
        [gpu.container("a", 50, 8)],
        [gpu.container("a", 100)],
        [gpu.container("a", "1k")],
        [gpu.container("a", None, None)],
        [gpu.container("a", 150)],  # refused later
        [gpu.container("a", 50, 0)],
        [gpu.container("a", "garbage", 3)],
    ],
)
def test_complete_or_invalid_requests_stay_unchanged(containers):
    pod = gpu.pod(*containers)
    assert mutate(pod)[0] == pod


def test_init_containers_and_gpu_managers_names_get_the_default():
    theirs = gpu.container("b", 50, names=gpu.GAIA)
    pod = gpu.pod(theirs, initContainers=[gpu.container("i", 25)])
    changed, _ = mutate(pod)
    assert gpu.asked(changed, "i") == (25, 16)
    assert changed["spec"]["containers"][0]["resources"]["limits"] == {
        "tencent.com/vcuda-core": "50",
        "tencent.com/vcuda-memory": "32",
    }


def test_limits_and_requests_are_both_set():
    pod = gpu.pod(gpu.container("a", 50))
    del pod["spec"]["containers"][0]["resources"]["requests"]
    resources = mutate(pod)[0]["spec"]["containers"][0]["resources"]
    assert resources["requests"] == {"pyvgpu.io/vmemory": "32"}


# Annotations, schedulers.


def test_forged_annotations_are_removed_with_a_warning():
    forged = {"pyvgpu.io/devices": "{}", "tencent.com/predicate-gpu-idx-0": "1", "a": "b"}
    pod = gpu.pod(gpu.container("a", None, None), annotations=forged)
    changed, answer = mutate(pod)
    assert changed["metadata"]["annotations"] == {"a": "b"}
    (warning,) = answer.warnings
    assert warning.startswith("removed pyvgpu.io/devices, tencent.com/predicate-gpu-idx-0: ")


@pytest.mark.parametrize(
    ("annotation", "value", "why"),
    [
        ("priority", "top", "must be low, normal or high, such as low"),
        ("vcore-policy", "soft", "must be hard or elastic, such as hard"),
        ("vcore-limit", "180", "must be a whole percentage"),
    ],
)
def test_an_invalid_policy_is_refused_at_once(annotation, value, why):
    pod = gpu.pod(gpu.container("a", 50, 8), annotations={f"pyvgpu.io/{annotation}": value})
    said = refused(pod)
    assert said.startswith(f"pyvgpu.io/{annotation} '{value}': ")
    assert why in said
    idle = gpu.pod(gpu.container("a", None, None), annotations={f"pyvgpu.io/{annotation}": value})
    assert not refused(idle), "it has no effect there"


@pytest.mark.parametrize(
    ("schedulers", "said", "gets"),
    [
        ((), "default-scheduler", "default-scheduler"),
        ((), "mine", "mine"),
        (("gpu", "other"), "default-scheduler", "gpu"),
        (("gpu", "other"), None, "gpu"),
        (("gpu", "other"), "other", "other"),
        (("gpu", "other"), "mine", "mine"),
        (("default-scheduler",), "default-scheduler", "default-scheduler"),
    ],
)
def test_the_configured_scheduler_is_set(schedulers, said, gets):
    pod = gpu.pod(gpu.container("a", 50, 8), schedulerName=said)
    if said is None:
        del pod["spec"]["schedulerName"]
    rules = devices.DeviceRules(schedulers=schedulers)
    changed, _ = mutate(pod, rules)
    assert changed["spec"]["schedulerName"] == gets
    why = refused(changed, rules)
    assert bool(why) == bool(schedulers and gets == "mine")
    if why:
        assert why.startswith("spec.schedulerName mine: ")
        assert "valid would be gpu or other" in why


def test_a_pod_without_devices_keeps_its_scheduler():
    pod = gpu.pod(gpu.container("a", None, None), schedulerName="default-scheduler")
    assert mutate(pod, devices.DeviceRules(schedulers=("gpu",)))[0] == pod


# Refusals.


@pytest.mark.parametrize(
    ("container", "why"),
    [
        (gpu.container("a", 150, 1), "container a: vcore 150: above 100 it must be a multiple"),
        (gpu.container("a", 50, 0), "container a: vcore 50 without vmemory: a share of a device"),
        (gpu.container("a", 50), "container a: vcore 50 without vmemory"),
        (gpu.container("a", None, 4), "container a: vmemory without vcore: a share"),
        (gpu.container("a", "500m", 4), "pyvgpu.io/vcore '500m': must be a whole number"),
        (gpu.container("a", "-1", 4), "pyvgpu.io/vcore '-1': must be a whole number"),
        (gpu.container("a", 50, "1.5"), "pyvgpu.io/vmemory '1.5': must be a whole number"),
    ],
)
def test_an_impossible_request_is_refused_with_a_valid_example(container, why):
    assert why in refused(gpu.pod(container))
    assert why in refused(gpu.pod(gpu.container("b", None, None), initContainers=[container]))


def test_two_vocabularies_in_one_container_are_refused():
    container = gpu.container("a", 50, 8)
    container["resources"]["limits"]["tencent.com/vcuda-core"] = "50"
    assert "must not both be asked for" in refused(gpu.pod(container))


def test_invalid_annotations_are_refused():
    pod = gpu.pod(gpu.container("a", 50, 8), annotations={"pyvgpu.io/packing": "tight"})
    assert "pyvgpu.io/packing" in refused(pod)
    with_count = gpu.pod(gpu.container("a", 50, 8), annotations={"pyvgpu.io/device-count": "3"})
    assert "vcore 50 on 3 devices" in refused(with_count)


def test_values_of_the_suspend_annotation_are_checked():
    def noted(value):
        annotations = {"pyvgpu.io/suspend": value}
        return gpu.pod(gpu.container("a", 50, 8), annotations=annotations)

    assert refused(noted("no")) == (
        "pyvgpu.io/suspend 'no': must be keep, release or never, such as keep, or absent"
    )
    for value in ("keep", "release", "never"):
        assert not evaluate(noted(value)).refusal


def test_limit_below_the_vcore_of_a_container_is_refused():
    def noted(limit):
        annotations = {"pyvgpu.io/vcore-limit": limit}
        return gpu.pod(gpu.container("a", 50, 8), annotations=annotations)

    assert refused(noted("49")) == (
        "pyvgpu.io/vcore-limit '49': must be from the 50 vcore of container a to 100, such as 100"
    )
    assert not evaluate(noted("50")).refusal
    whole = gpu.pod(gpu.container("a", 100), annotations={"pyvgpu.io/vcore-limit": "49"})
    assert not evaluate(whole).refusal, "the agent ignores it there"


def test_a_pod_that_no_known_device_suits_causes_a_warning():
    pod = gpu.pod(gpu.container("a", 50, 8), annotations={"pyvgpu.io/device-models": "h100"})
    warnings = evaluate(pod).warnings
    assert warnings == ("the pod waits: its annotations allow none of the devices that are known",)


@pytest.mark.parametrize(
    ("key", "warnings"),
    [
        (
            "pyvgpu.io/vcore_policy",
            (
                "annotation pyvgpu.io/vcore_policy has no effect; did you mean "
                "pyvgpu.io/vcore-policy?",
            ),
        ),
        ("pyvgpu.io/vcore-policy", ()),
        ("pyvgpu.io/start_command.main.0", ()),
        ("pyvgpu.io/colour", ()),
        ("team.example/vcore_policy", ()),
    ],
)
def test_misspelt_annotations_cause_a_warning(key, warnings):
    pod = gpu.pod(gpu.container("a", 50, 8), annotations={key: "hard"})
    assert evaluate(pod).warnings == warnings


def test_a_request_larger_than_any_known_device_causes_a_warning():
    pod = gpu.pod(gpu.container("a", 50, 321))
    answer = evaluate(pod)
    assert not answer.refusal
    (warning,) = answer.warnings
    assert warning.startswith("container a waits for a device with 80.2GiB: the largest that is")
    assert not evaluate(pod, known=()).warnings
    assert not evaluate(gpu.pod(gpu.container("a", 50, 320))).warnings


SHARE, WHOLE = gpu.container("a", 50, 8), gpu.container("a", 100)
HOST = {"volumes": [{"name": "v", "hostPath": {"path": "/data"}}]}
MIGHTY = {"name": "m", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}
PRIVILEGED = {"name": "p", "securityContext": {"privileged": True}}


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (gpu.pod(SHARE, nodeName="n"), "spec.nodeName n"),
        (gpu.pod(WHOLE, nodeName="n"), "spec.nodeName n"),
        (gpu.pod(SHARE, PRIVILEGED), "container p: securityContext.privileged true"),
        (gpu.pod(WHOLE, PRIVILEGED), "container p: securityContext.privileged true"),
        (gpu.pod(SHARE, **HOST), "volume v: hostPath /data"),
        (gpu.pod(SHARE, MIGHTY), "container m: securityContext.capabilities.add SYS_ADMIN"),
        (gpu.pod(WHOLE, MIGHTY), "container m: securityContext.capabilities.add SYS_ADMIN"),
        (gpu.pod(SHARE, hostPID=True), "spec.hostPID true"),
        (gpu.pod(WHOLE, **HOST), ""),
        (gpu.pod(WHOLE, hostPID=True), ""),
        (gpu.pod(PRIVILEGED, nodeName="n", **HOST), ""),
    ],
)
def test_settings_that_bypass_limits_are_refused_with_devices(pod, why):
    assert refused(pod).startswith(why)
    assert bool(refused(pod)) is bool(why)
    everything = confines.Confines(("*",), ("*",), ("*",), ("/",))
    assert not evaluate(pod, devices.DeviceRules(confines=everything)).refusal


def test_mirrors_of_static_pods_are_not_refused():
    pod = gpu.pod(SHARE, PRIVILEGED, nodeName="n", **HOST)
    by_node = {"user": "system:node:n", "groups": ("system:nodes", "system:authenticated")}
    assert not evaluate(pod, **by_node).refusal
    assert refused(pod, user="system:node:n")  # the username without the group
    assert refused(pod, groups=("system:nodes",))


# Ephemeral containers.


def debug(pod, *news, former=()):
    spec = {**pod["spec"], "ephemeralContainers": [*former, *news]}
    was = {**pod, "spec": {**pod["spec"], "ephemeralContainers": list(former)}}
    asked = review.AdmissionRequest(
        "u", "UPDATE", "pods/ephemeralcontainers", "team", {**pod, "spec": spec}, was
    )
    return devices.ephemeral(RULES)(asked).refusal


def test_privileged_ephemeral_containers_are_refused_with_devices():
    pod = gpu.pod(SHARE)
    assert debug(pod, PRIVILEGED).startswith("container p: securityContext.privileged true")
    assert not debug(pod, {"name": "q"})
    assert not debug(pod, {"name": "q"}, former=[PRIVILEGED])  # it existed before
    assert not debug(gpu.pod(PRIVILEGED), PRIVILEGED)


def test_host_paths_of_ephemeral_containers_are_refused():
    pod = gpu.pod(SHARE, **HOST)
    mounts = {"name": "q", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    assert debug(pod, mounts).startswith("volume v: hostPath /data")
    assert not debug(pod, {"name": "q"})
    assert not debug(gpu.pod(WHOLE, **HOST), mounts)


# All requests.

# Groups of other systems, which our scheduler does not know.

GROUPS = [
    pytest.param({"labels": {"scheduling.x-k8s.io/pod-group": "train"}}, {}, id="coscheduling"),
    pytest.param({"labels": {"pod-group.scheduling.sigs.k8s.io": "train"}}, {}, id="earlier"),
    pytest.param({"annotations": {"scheduling.k8s.io/group-name": "train"}}, {}, id="volcano"),
    pytest.param(
        {"annotations": {"scheduling.volcano.sh/group-name": "train"}}, {}, id="volcano newer"
    ),
    pytest.param(
        {"annotations": {"yunikorn.apache.org/task-group-name": "train"}}, {}, id="yunikorn"
    ),
    pytest.param(
        {"annotations": {"gang.scheduling.koordinator.sh/name": "train"}}, {}, id="koordinator"
    ),
    pytest.param({}, {"workloadRef": {"name": "train", "podGroup": "w"}}, id="workload"),
    pytest.param({}, {"schedulingGroup": {"podGroupName": "train"}}, id="pod-group"),
]


@pytest.mark.parametrize(("metadata", "spec"), GROUPS)
def test_a_group_that_our_scheduler_does_not_know_is_refused(metadata, spec):
    pod = gpu.pod(gpu.container("a", 50, 4))
    pod["metadata"] |= metadata
    pod["spec"] |= {**spec, "schedulerName": "gpu"}
    ours = devices.DeviceRules(schedulers=("gpu",))
    assert "valid would be the annotations pyvgpu.io/gang: train and" in refused(pod, ours)
    assert not evaluate(pod).refusal  # another scheduler places it, which may know the group
    gang = {"pyvgpu.io/gang": "train", "pyvgpu.io/gang-size": "2"}
    pod["metadata"]["annotations"] = {**pod["metadata"].get("annotations", {}), **gang}
    assert not evaluate(pod, ours).refusal


def test_a_pod_group_of_kueue_is_admitted():
    pod = gpu.pod(gpu.container("a", 50, 4))
    pod["metadata"] |= {
        "labels": {"kueue.x-k8s.io/pod-group-name": "train", "kueue.x-k8s.io/queue-name": "q"},
        "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
    }
    pod["spec"] |= {
        "schedulerName": "gpu",
        "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}],
    }
    assert not evaluate(pod, devices.DeviceRules(schedulers=("gpu",))).refusal


EVERYTHING = devices.DeviceRules(
    fallback=GIB, schedulers=("gpu",), words=frozenset(conversions.Words)
)


@pytest.mark.parametrize(
    "more",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE"},
        {"resource": "pods/status"},
        {"resource": "deployments.apps"},
    ],
)
def test_other_requests_are_admitted_unchanged(more):
    pod = gpu.pod(gpu.container("a", 150), nodeName="n", annotations={"pyvgpu.io/devices": ""})
    asked = review.AdmissionRequest(**{"uid": "u", "operation": "CREATE", "resource": "pods",
                              "namespace": "team", "thing": pod, **more})  # fmt: skip
    for route in (
        devices.mutation(EVERYTHING, lambda: BOTH, gpu.no_claims),
        devices.validation(EVERYTHING, lambda: BOTH),
        devices.ephemeral(EVERYTHING),
    ):
        assert route(asked) == review.Review()


@pytest.mark.parametrize(
    "pod",
    [{}, {"spec": None}, {"spec": {"containers": None}}, {"spec": {"containers": [7, {}]}}],
)
def test_a_malformed_pod_is_left_to_the_api_server(pod):
    assert not devices.mutation(EVERYTHING, lambda: BOTH, gpu.no_claims)(request(pod)).operations
    assert not evaluate(pod, EVERYTHING).refusal


def test_an_internal_error_refuses_the_pod_for_now():
    def broken():
        raise ZeroDivisionError

    for route in (
        devices.mutation(RULES, broken, gpu.no_claims),
        devices.validation(RULES, broken),
    ):
        answer = route(request(gpu.pod(gpu.container("a", 50, 8))))
        assert (answer.failed, answer.code) == (True, review.FAILED)
        assert "refuses it for now" in answer.refusal


# Sizes and excessive numbers, which no device could ever satisfy.


@pytest.mark.parametrize("names", [gpu.OURS, gpu.GAIA])
@pytest.mark.parametrize(
    ("vcore", "written", "said"),
    [
        (30, "4Gi", "'4Gi': counts units of 256MiB and takes .*; 4Gi is 16"),
        (100, "4096Mi", "'4096Mi': counts units of 256MiB and takes .*; 4096Mi is 16"),
        (30, "4096", "'4096': 4096 units of 256MiB are 1TiB; .*; 4096 MiB are 16 units"),
        (200, "8192", "'8192': .* are 1TiB on each of 2 devices; .*; 8192 MiB are 32 units"),
        (30, "4294967296", "are 1048576TiB; .*; 4294967296 bytes are 16 units"),
        (30, "4G", "4000000000 bytes are 15 units"),
    ],
)
def test_memory_in_another_unit_is_refused_with_the_intended_number(names, vcore, written, said):
    pod = gpu.pod(gpu.container("a", vcore, written, names))
    changed, _ = mutate(pod)
    other = r" \(or pyvgpu\.io/vmemory-mib: [1-9][0-9]*\)" if names is gpu.OURS else ""
    for each in (pod, changed):
        assert re.match(f"container a: {names[1]} .*{said}{other}$", refused(each)), refused(each)


def test_memory_of_init_containers_is_checked_with_the_agents_unit():
    rules = devices.DeviceRules(unit=1 << 20)
    pod = gpu.pod(gpu.container("a", 50, "4096"), initContainers=[gpu.container("i", 20, "2Gi")])
    assert refused(pod, rules).endswith("2Gi is 2048 (or pyvgpu.io/vmemory-mib: 2048)")
    pod["spec"]["initContainers"] = [gpu.container("i", 20, "2k")]
    assert not evaluate(pod, rules).refusal


def test_whole_devices_may_have_the_sum_of_their_memory():
    assert not evaluate(gpu.pod(gpu.container("a", 800, 8 * 288 * 4))).refusal


# MIG instances.

CUT = mig_profiles.gpu()


@pytest.mark.parametrize(
    ("annotations", "vcore", "words"),
    [
        ({"pyvgpu.io/mig": "5g.50gb"}, 10, "has no MIG profile 5g.50gb; it has 1g.10gb (12 vcore"),
        ({"pyvgpu.io/mig": "1g.10gb"}, 50, "50 vcore and 1GiB are requested, it has 12 vcore"),
        ({"pyvgpu.io/mig": "small"}, 10, "must be the name of a MIG profile"),
        ({"pyvgpu.io/mig": "1g.10gb", "pyvgpu.io/isolation": "quota"}, 10, "isolated by hardware"),
        ({"pyvgpu.io/isolation": "hardware"}, 200, "a container gets one instance"),
        (
            {"pyvgpu.io/mig": "1g.10gb", "pyvgpu.io/device-models": "MIG 1g.10gb, mig 2g.20gb"},
            10,
            "device-models 'MIG 1g.10gb,mig 2g.20gb' with pyvgpu.io/mig or",
        ),
        (
            {"pyvgpu.io/isolation": "hardware", "pyvgpu.io/device-uuids": "MIG-1"},
            10,
            "device-uuids 'MIG-1' with pyvgpu.io/mig or pyvgpu.io/isolation hardware: it selects",
        ),
        (
            {"pyvgpu.io/device-models": "MIG 3g.40gb"},
            200,
            "container a: 2 devices with pyvgpu.io/device-models 'MIG 3g.40gb', which selects MIG",
        ),
        ({"pyvgpu.io/isolation": "hard"}, 10, "must be quota, hardware or mps"),
    ],
)
def test_instances_that_no_known_gpu_has_are_refused_with_the_valid_profiles(
    annotations, vcore, words
):
    pod = gpu.pod(gpu.container("a", vcore, 4), annotations=annotations)
    answer = evaluate(pod, known=(T4, CUT))
    assert answer.code == review.FORBIDDEN
    assert words in answer.refusal


@pytest.mark.parametrize(
    "annotations",
    [
        {"pyvgpu.io/mig": "1g.10gb"},
        {"pyvgpu.io/isolation": "hardware"},
        {"pyvgpu.io/mig": "1g.10gb", "pyvgpu.io/device-models": "100,MIG 1g.10gb"},
    ],
)
def test_instances_that_a_known_gpu_has_are_admitted(annotations):
    pod = gpu.pod(gpu.container("a", 10, 4), annotations=annotations)
    for known in ((T4, CUT), (mig_profiles.gpu(model="a100"), CUT), ()):
        assert not evaluate(pod, known=known).refusal


@pytest.mark.parametrize("option", ["vcore-policy: elastic", "vcore-limit: 50", "priority: high"])
def test_options_of_time_without_effect_on_instances_are_warned_of(option):
    name, _, value = option.partition(": ")
    noted = {f"pyvgpu.io/{name}": value}
    container = gpu.container("a", 10, 4)
    assert not evaluate(gpu.pod(container, annotations=noted)).warnings
    noted["pyvgpu.io/mig"] = "1g.10gb"
    answer = evaluate(gpu.pod(container, annotations=noted), known=(CUT,))
    assert not answer.refusal
    (warning,) = answer.warnings
    assert warning.startswith(f"pyvgpu.io/{name} {value}: has no effect, a MIG instance")


# MPS.


@pytest.mark.parametrize(
    ("annotations", "vcore", "words"),
    [
        ({}, 100, "whole devices are requested; valid would be 1 to 99 vcore"),
        ({"pyvgpu.io/device-count": "2"}, 50, "shares of 2 devices are requested"),
        ({"pyvgpu.io/vcore-policy": "elastic"}, 50, "must be hard under MPS"),
        ({"pyvgpu.io/vcore-limit": "60"}, 50, "vcore limit 60: has no meaning under MPS"),
        ({"pyvgpu.io/priority": "high"}, 50, "must be normal under MPS"),
    ],
)
def test_what_mps_cannot_give_is_refused(annotations, vcore, words):
    noted = {"pyvgpu.io/isolation": "mps", **annotations}
    units = 0 if vcore == 100 else 16
    answer = evaluate(gpu.pod(gpu.container("a", vcore, units), annotations=noted))
    assert answer.code == review.FORBIDDEN
    assert words in answer.refusal


def test_a_share_under_mps_is_admitted():
    noted = {"pyvgpu.io/isolation": "mps", "pyvgpu.io/vcore-policy": "hard"}
    assert not evaluate(gpu.pod(gpu.container("a", 50, 16), annotations=noted)).refusal


@pytest.mark.parametrize(
    ("isolation", "place", "refused"),
    [
        pytest.param("mps", "/dev/shm", True, id="in its place"),
        pytest.param("mps", "/dev/shm/", True, id="with a slash"),
        pytest.param("mps", "/dev/shm/own", False, id="below"),
        pytest.param("quota", "/dev/shm", False, id="without MPS"),
    ],
)
def test_volume_in_place_of_the_daemons_shared_memory_is_refused(isolation, place, refused):
    container = gpu.container("a", 50, 16)
    container["volumeMounts"] = [{"name": "own", "mountPath": place}]
    answer = evaluate(gpu.pod(container, annotations={"pyvgpu.io/isolation": isolation}))
    assert ("has a volume at /dev/shm" in answer.refusal) is refused


# Time slices.


@pytest.mark.parametrize(
    ("slices", "refused"),
    [
        pytest.param({"a": "1"}, True, id="of one container"),
        pytest.param({"a": "0"}, False, id="none"),
        pytest.param({"b": "1"}, False, id="of two containers"),
    ],
)
def test_share_and_time_slice_for_one_container_are_refused(slices, refused):
    containers = [
        gpu.asking(
            name,
            {
                **({"pyvgpu.io/vcore": "50", "pyvgpu.io/vmemory": "16"} if name == "a" else {}),
                **({"pyvgpu.io/gpu-shared": slices[name]} if name in slices else {}),
            },
        )
        for name in "ab"
    ]
    answer = evaluate(gpu.pod(*containers))
    words = "container a: asks for pyvgpu.io/gpu-shared and for pyvgpu.io/vcore"
    assert (words in answer.refusal) is refused


def test_claims_give_no_shares_under_mps():
    pod = gpu.pod(gpu.container("a", 10, 4), annotations={"pyvgpu.io/isolation": "mps"})
    answer = devices.mutation(
        devices.DeviceRules(claims=("team",)), lambda: (CUT,), gpu.no_claims
    )(request(pod))
    assert "claims give no devices that MPS divides" in answer.refusal
