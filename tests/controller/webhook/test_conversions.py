"""Conversion of requests in the resources of HAMi, NVIDIA's plugin and gpu-manager."""

import copy
import re

import gpu_pods as gpu
import pytest
import small_kubelet

from pyvgpu.allocator import datatypes
from pyvgpu.controller.webhook import conversions, devices, review

GIB = 1 << 30
T4 = datatypes.NodeDevice("", 0, 16 * GIB, "Tesla T4", least_bytes=GIB)
A100 = datatypes.NodeDevice("", 0, 80 * GIB, "NVIDIA A100-SXM4-80GB", least_bytes=GIB)
HAMI, NVIDIA, GPU_MANAGER = conversions.Words
UNIT = 256 << 20
MIB_RESOURCE = "pyvgpu.io/vmemory-mib"


def hami(name="a", **amounts):
    return gpu.asking(
        name, {f"nvidia.com/{key.replace('_', '-')}": amount for key, amount in amounts.items()}
    )


def ask(pod, *words, known=(T4, A100), unit=UNIT):
    rules = devices.DeviceRules(unit=unit, words=frozenset(words))
    asked = review.AdmissionRequest("u", "CREATE", "pods", "team", pod)
    return devices.mutation(rules, lambda: known, gpu.no_claims)(asked)


def convert(pod, *words, **more):
    answer = ask(pod, *words, **more)
    assert not answer.refusal
    changed = small_kubelet.apply(copy.deepcopy(pod), answer.operations)
    assert not ask(changed, *words, **more).operations  # idempotent
    rules = devices.DeviceRules(words=frozenset(words))
    asked = review.AdmissionRequest("u", "CREATE", "pods", "team", changed)
    assert not devices.validation(rules, lambda: ())(asked).refusal
    return changed


def resources(pod):
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == container["resources"]["requests"]
    return container["resources"]["limits"]


def ours(vcore, vmemory=None):
    found = {"pyvgpu.io/vcore": str(vcore)}
    return found if vmemory is None else {**found, "pyvgpu.io/vmemory": str(vmemory)}


def noted(pod):
    return pod["metadata"].get("annotations") or {}


@pytest.mark.parametrize(
    ("amounts", "asked", "annotations"),
    [
        ({"gpu": "1", "gpumem": "4000", "gpucores": "30"}, ours(30, 16), {}),
        ({"gpumem": "4096", "gpucores": "30"}, ours(30, 16), {}),
        ({"gpu": "1", "gpumem": "1", "gpucores": "1"}, ours(1, 1), {}),
        (
            {"gpu": "2", "gpumem": "4096", "gpucores": "30"},
            ours(60, 32),
            {"pyvgpu.io/device-count": "a=2"},
        ),
        ({"gpu": "1", "gpumem": "4096"}, ours(25, 16), {"pyvgpu.io/vcore-policy": "elastic"}),
        (
            {"gpu": "1", "gpumem-percentage": "50"},
            ours(50, 32),
            {"pyvgpu.io/vcore-policy": "elastic"},
        ),
        ({"gpu": "1", "gpumem-percentage": "50", "gpucores": "20"}, ours(20, 32), {}),
        ({"gpu": "1", "gpucores": "30"}, ours(30, 64), {}),  # all of the memory
        ({"gpu": "1", "gpucores": "100"}, ours(100), {}),
        ({"gpu": "2", "gpumem-percentage": "100"}, ours(200), {}),
        (
            {"gpu": "1", "gpumem": "4096", "gpucores": "30", "priority": "1"},
            ours(30, 16),
            {"pyvgpu.io/priority": "low"},
        ),
        (
            {"gpu": "1", "gpumem": "4096", "gpucores": "30", "priority": "0"},
            ours(30, 16),
            {"pyvgpu.io/priority": "high"},
        ),
    ],
)
def test_hami_resources_are_converted(amounts, asked, annotations):
    pod = gpu.pod(
        gpu.asking("a", {f"nvidia.com/{key}": amount for key, amount in amounts.items()})
    )
    changed = convert(pod, HAMI)
    assert resources(changed) == asked
    assert noted(changed) == annotations


@pytest.mark.parametrize(
    ("value", "priority"),
    [
        pytest.param("00", "high", id="zero"),
        pytest.param("9" * 5000, "low", id="more digits than int() takes"),
    ],
)
def test_a_hami_priority_of_any_length_is_read(value, priority):
    server = gpu.asking("a", {"nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"})
    server["env"] = [{"name": "CUDA_TASK_PRIORITY", "value": value}]
    changed = convert(gpu.pod(server), HAMI)
    assert changed["metadata"]["annotations"]["pyvgpu.io/priority"] == priority


def test_a_pod_gets_the_highest_priority_of_its_containers():
    share = {"nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"}
    server = gpu.asking("a", share)
    server["env"] = [{"name": "CUDA_TASK_PRIORITY", "value": "0"}]
    changed = convert(
        gpu.pod(server, gpu.asking("b", {**share, "nvidia.com/priority": "2"})), HAMI
    )
    assert changed["metadata"]["annotations"]["pyvgpu.io/priority"] == "high"


@pytest.mark.parametrize("value", ["-1", "high", "", "1.5"])
def test_an_invalid_hami_priority_is_refused(value):
    share = {"nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"}
    server = gpu.asking("a", share)
    server["env"] = [{"name": "CUDA_TASK_PRIORITY", "value": value}]
    said = f"container a: CUDA_TASK_PRIORITY '{value}': must be 0, which is high, or a larger"
    assert ask(gpu.pod(server), HAMI).refusal.startswith(said)


def test_plain_nvidia_gpu_is_converted_only_with_nvidia_enabled():
    pod = gpu.pod(hami(gpu="2"))
    assert convert(pod, HAMI) == pod
    assert resources(convert(pod, NVIDIA)) == ours(200)


def test_zero_devices_are_removed():
    assert not resources(convert(gpu.pod(hami(gpu="0", gpumem="4")), HAMI))


def test_nothing_is_converted_unless_enabled():
    for pod in (gpu.pod(hami(gpu="1", gpumem="4")), gpu.pod(gpu.container("a", 50, 8, gpu.GAIA))):
        assert convert(pod) == pod


def test_hami_annotations_are_converted_unless_ours_exist():
    theirs = {
        "nvidia.com/use-gputype": "A100,V100",
        "nvidia.com/nouse-gputype": "T4",
        "nvidia.com/use-gpuuuid": "GPU-1",
        "nvidia.com/nouse-gpuuuid": "GPU-2",
        "hami.io/gpu-scheduler-policy": "spread",
        "hami.io/node-scheduler-policy": "binpack",
        "nvidia.com/numa-bind": "true",
    }
    own = {"pyvgpu.io/device-uuids": "GPU-3"}
    pod = gpu.pod(hami(gpumem="4096", gpucores="30"), annotations={**theirs, **own})
    assert noted(convert(pod, HAMI)) == {
        **theirs,
        "pyvgpu.io/device-models": "A100,V100",
        "pyvgpu.io/not-device-models": "T4",
        "pyvgpu.io/device-uuids": "GPU-3",
        "pyvgpu.io/not-device-uuids": "GPU-2",
        "pyvgpu.io/packing": "spread",
        "pyvgpu.io/placement": "binpack",
        "pyvgpu.io/topology-policy": "numa",
    }


def test_a_percentage_refers_to_the_devices_that_the_selector_allows():
    wants = {"nvidia.com/use-gputype": "A100"}
    pod = gpu.pod(hami(gpumem_percentage="50", gpucores="50"), annotations=wants)
    assert resources(convert(pod, HAMI)) == ours(50, 160)


def test_an_unknown_hami_policy_is_ignored():
    wants = {"hami.io/gpu-scheduler-policy": "topology-aware"}
    pod = gpu.pod(hami(gpumem="4096", gpucores="30"), annotations=wants)
    assert noted(convert(pod, HAMI)) == wants


def test_hami_scheduler_name_is_replaced():
    pod = gpu.pod(hami(gpumem="4096", gpucores="30"), schedulerName="hami-scheduler")
    assert convert(pod, HAMI)["spec"]["schedulerName"] == "default-scheduler"
    other = gpu.pod(gpu.container("a", 50, 8), schedulerName="hami-scheduler")
    assert convert(other, HAMI)["spec"]["schedulerName"] == "hami-scheduler"


def test_each_container_has_its_device_count():
    pod = gpu.pod(
        hami("a", gpu="2", gpumem="4096", gpucores="30"),
        hami("b", gpu="3", gpumem="4096", gpucores="10"),
        gpu.container("c", 50, 8),
    )
    changed = convert(pod, HAMI)
    assert noted(changed) == {"pyvgpu.io/device-count": "a=2,b=3"}
    assert [gpu.asked(changed, name) for name in "abc"] == [(60, 32), (30, 48), (50, 8)]


@pytest.mark.parametrize(
    ("container", "why"),
    [
        (hami(gpumem="4", gpucores="150"), "nvidia.com/gpucores '150': must be from 0 to 100"),
        (hami(gpumem_percentage="101"), "nvidia.com/gpumem-percentage '101': must be from 0"),
        (hami(gpumem="4G4"), "nvidia.com/gpumem '4G4': must be a whole number"),
        (
            gpu.asking("a", {"nvidia.com/gpumem": "4", "pyvgpu.io/vcore": "1"}),
            "nvidia.com/gpu and pyvgpu.io/vcore: must not both be asked for",
        ),
    ],
)
def test_an_invalid_request_is_refused(container, why):
    assert ask(gpu.pod(container), HAMI).refusal.startswith(f"container a: {why}")


@pytest.mark.parametrize(
    ("amounts", "valid"),
    [
        ({"gpumem": "4096"}, "valid would be nvidia.com/gpucores 30"),
        ({"gpumem_percentage": "50"}, "valid would be nvidia.com/gpumem 4096"),
        ({"gpucores": "50"}, "valid would be nvidia.com/gpumem 4096"),
    ],
)
def test_a_ratio_of_unknown_devices_is_refused(amounts, valid):
    refusal = ask(gpu.pod(hami(**amounts)), HAMI, known=()).refusal
    assert "no device is known yet" in refusal
    assert refusal.endswith(valid)


@pytest.mark.parametrize(
    ("core", "memory", "unit", "asked"),
    [
        (50, 8, UNIT, ours(50, 8)),
        (50, 8, 1 << 30, ours(50, 2)),
        (50, 7, 1 << 30, ours(50, 2)),
        (50, None, UNIT, ours(50, 32)),
        (200, None, UNIT, ours(200)),
        (100, 1, UNIT, ours(100, 1)),
    ],
)
def test_gpu_manager_resources_are_converted(core, memory, unit, asked):
    keeps = {"tencent.com/vcuda-core-limit": "80"}
    pod = gpu.pod(gpu.container("a", core, memory, gpu.GAIA), annotations=keeps)
    changed = convert(pod, GPU_MANAGER, unit=unit)
    assert resources(changed) == asked
    assert noted(changed) == keeps


def test_gpu_manager_resources_beside_ours_are_refused():
    container = gpu.asking("a", {"tencent.com/vcuda-core": "50", "pyvgpu.io/vcore": "50"})
    assert "must not both be asked for" in ask(gpu.pod(container), GPU_MANAGER).refusal


@pytest.mark.parametrize(
    ("container", "words", "said"),
    [
        (hami(gpu="1", gpumem="4Gi"), HAMI, "nvidia.com/gpumem '4Gi': .*1MiB.*4Gi is 4096"),
        (
            hami(gpu="1", gpumem="4294967296", gpucores="30"),
            HAMI,
            "nvidia.com/gpumem '4294967296': .*; 4294967296 bytes are 4096 units",
        ),
        (
            gpu.container("a", 30, "4Gi", gpu.GAIA),
            GPU_MANAGER,
            "tencent.com/vcuda-memory '4Gi': .*; 4Gi is 16",
        ),
    ],
)
def test_memory_in_another_unit_is_refused_under_the_original_name(container, words, said):
    refusal = ask(gpu.pod(container), words, unit=1 << 30).refusal
    assert re.match(f"container a: {said}$", refusal), refusal


# Memory in MiB: converted without any option.


def in_mebibytes(vcore, written, **more):
    return gpu.asking("a", {"pyvgpu.io/vcore": str(vcore), MIB_RESOURCE: written, **more})


@pytest.mark.parametrize(
    ("vcore", "written", "unit", "units"),
    [
        (30, "4096", UNIT, 16),
        (30, "4097", UNIT, 17),  # rounded up
        (30, "1", UNIT, 1),
        (30, "3000", 1 << 20, 3000),
        (30, "4k", UNIT, 16),  # as the API server writes 4000
        (100, "0", UNIT, 0),
        (800, str(8 * 288 * 1024), UNIT, 8 * 288 * 4),  # of eight devices
    ],
)
def test_mebibytes_become_units_of_the_cluster(vcore, written, unit, units):
    changed = convert(gpu.pod(in_mebibytes(vcore, written)), unit=unit)
    assert resources(changed) == ours(vcore, units)


def test_mebibytes_of_init_containers_are_converted_too():
    init = {**in_mebibytes(20, "2000"), "name": "i"}
    changed = convert(gpu.pod(in_mebibytes(50, "4096"), initContainers=[init]))
    assert gpu.asked(changed, "i") == (20, 8)
    assert gpu.asked(changed, "a") == (50, 16)


def test_limits_alone_are_converted_to_limits_and_requests():
    pod = gpu.pod(in_mebibytes(30, "4096"))
    del pod["spec"]["containers"][0]["resources"]["requests"][MIB_RESOURCE]
    assert resources(convert(pod)) == ours(30, 16)


@pytest.mark.parametrize(
    ("container", "said"),
    [
        (in_mebibytes(30, "4Gi"), "'4Gi': counts units of 1MiB and takes .*; 4Gi is 4096"),
        (in_mebibytes(30, "4096Mi"), "'4096Mi': .*; 4096Mi is 4096"),
        (in_mebibytes(30, "1.5"), "'1.5': must be a whole number, such as 4096"),
        (in_mebibytes(30, "1500m"), "'1500m': must be a whole number, such as 4096"),
        (in_mebibytes(30, "-1"), "'-1': must be a whole number, such as 4096"),
        (
            in_mebibytes(30, "1048576"),
            "'1048576': 1048576 units of 1MiB are 1TiB; no GPU has that much; .* such as 4096|"
            "'1048576': .*; 1048576 bytes are 1 unit",
        ),
        (in_mebibytes(30, "4G"), "'4000000000': .*; 4000000000 bytes are 3815 units"),
        (in_mebibytes(200, "4194304"), "'4194304': .* are 2TiB on each of 2 devices; .*"),
    ],
)
def test_invalid_mebibytes_are_refused_with_a_valid_example(container, said):
    refusal = ask(gpu.pod(container)).refusal
    assert re.match(f"container a: {MIB_RESOURCE} ({said})$", refusal), refusal


def test_memory_is_requested_under_one_name_only():
    container = in_mebibytes(30, "4096", **{"pyvgpu.io/vmemory": "16"})
    said = "pyvgpu.io/vmemory and pyvgpu.io/vmemory-mib: must not both be asked for; valid would"
    assert said in ask(gpu.pod(container)).refusal


def test_requests_that_differ_from_limits_are_refused():
    container = in_mebibytes(30, "4096")
    container["resources"]["requests"][MIB_RESOURCE] = "2048"
    said = "2048 and 4096: the request must equal the limit, such as 4096 in both"
    assert said in ask(gpu.pod(container)).refusal


def test_mebibytes_alone_are_refused_for_the_missing_vcore():
    pod = gpu.pod(gpu.asking("a", {MIB_RESOURCE: "4096"}))
    changed = small_kubelet.apply(copy.deepcopy(pod), ask(pod).operations)
    assert "vmemory without vcore: a share" in evaluated(changed)


def test_unconverted_mebibytes_are_never_admitted():
    said = evaluated(gpu.pod(in_mebibytes(30, "4096")))
    assert f"{MIB_RESOURCE}: no node has that resource; the admission webhook converts it" in said
    assert said.endswith("valid would be pyvgpu.io/vmemory 16")


def evaluated(pod):
    asked = review.AdmissionRequest("u", "CREATE", "pods", "team", pod)
    return devices.validation(devices.DeviceRules(unit=UNIT), lambda: ())(asked).refusal
