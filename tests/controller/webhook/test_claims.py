"""Conversion of plain limits to claims."""

import copy
import re

import gpu_pods as gpu
import mig_profiles
import pytest
import small_kubelet

from pyvgpu import errors
from pyvgpu.allocator import datatypes
from pyvgpu.controller.claims import claim_templates
from pyvgpu.controller.webhook import claim_conversion, conversions, devices, review

GIB = 1 << 30
T4 = datatypes.NodeDevice("", 0, 16 * GIB, "Tesla T4", least_bytes=GIB)
RULES = devices.DeviceRules(claims=("team", "ml-*"))


class Cluster:
    """The webhook's handlers, and the templates that they created."""

    def __init__(self, rules=RULES, known=(T4,)):
        self.known = known
        self.made = {}
        self.rules = rules
        self.failing = None

    def _ensure(self, namespace, specs, dry_run):
        if self.failing:
            raise self.failing
        for name, spec in () if dry_run else specs.items():
            self.made[namespace, name] = spec

    def ask(self, pod, namespace="team", **more):
        asked = review.AdmissionRequest("u", "CREATE", "pods", namespace, pod, **more)
        return devices.mutation(self.rules, lambda: self.known, self._ensure)(asked)

    def create(self, pod, namespace="team", **more):
        """Return the mutated pod; its claims must be created, and it must be admitted."""
        answer = self.ask(pod, namespace, **more)
        assert not answer.refusal
        changed = small_kubelet.apply(copy.deepcopy(pod), answer.operations)
        assert not self.evaluate(changed, namespace)
        return changed

    def evaluate(self, pod, namespace="team"):
        asked = review.AdmissionRequest("u", "CREATE", "pods", namespace, pod)
        return devices.validation(self.rules, lambda: self.known)(asked).refusal

    def request_of(self, pod, container):
        """Return a container's request in its claim."""
        (name,) = (claim["name"] for claim in find(pod, container)["resources"]["claims"])
        (template,) = (
            claim["resourceClaimTemplateName"]
            for claim in pod["spec"]["resourceClaims"]
            if claim["name"] == name
        )
        (request,) = self.made["team", template]["devices"]["requests"]
        return request["exactly"]


def find(pod, name):
    spec = pod["spec"]
    everyone = [*spec["containers"], *spec.get("initContainers", ())]
    (found,) = (container for container in everyone if container["name"] == name)
    return found


def capacity(vcore, size):
    return {"requests": {"vcore": str(vcore), "vmemory": size}}


def test_limits_become_a_claim():
    cluster = Cluster()
    changed = cluster.create(gpu.pod(gpu.container("main", 50, 4)))
    ((template, spec),) = ((name, spec) for (_, name), spec in cluster.made.items())
    assert changed["spec"]["resourceClaims"] == [
        {"name": "vgpu-main", "resourceClaimTemplateName": template}
    ]
    assert find(changed, "main")["resources"] == {
        "limits": {},
        "requests": {},
        "claims": [{"name": "vgpu-main"}],
    }
    assert claim_templates.name_of(spec, datatypes.ContainerNeed(50, GIB)) == template
    assert cluster.request_of(changed, "main")["capacity"] == capacity(50, "1Gi")


def test_other_limits_are_kept():
    pod = gpu.pod(gpu.container("main", 50, 4))
    pod["spec"]["containers"][0]["resources"]["limits"]["memory"] = "1Gi"
    changed = Cluster().create(pod)
    assert find(changed, "main")["resources"]["limits"] == {"memory": "1Gi"}


def test_the_conversion_is_idempotent():
    cluster = Cluster()
    changed = cluster.create(gpu.pod(gpu.container("main", 50, 4)))
    made = dict(cluster.made)
    assert not cluster.ask(changed).operations
    assert cluster.made == made


def test_a_container_added_later_gets_its_own_claim():
    cluster = Cluster()
    changed = cluster.create(gpu.pod(gpu.container("main", 50, 4)))
    changed["spec"]["containers"].append(gpu.container("late", 20, 4))
    again = cluster.create(changed)
    assert [claim["name"] for claim in again["spec"]["resourceClaims"]] == [
        "vgpu-main",
        "vgpu-late",
    ]
    assert find(again, "main") == find(changed, "main")


def test_pods_with_equal_requests_share_a_template():
    cluster = Cluster()
    for name in ("a", "b"):
        cluster.create(gpu.pod(gpu.container(name, 50, 4)))
    assert len(cluster.made) == 1
    cluster.create(gpu.pod(gpu.container("a", 50, 5)))
    assert len(cluster.made) == 2


def test_each_container_has_its_claim_and_an_init_container_uses_an_apps():
    init, sidecar = gpu.container("i", 20, 4), gpu.container("s", 10, 4)
    pod = gpu.pod(
        gpu.container("a", 50, 8),
        gpu.container("b", 30, 4),
        gpu.asking("c", {}),
        initContainers=[init, {**sidecar, "restartPolicy": "Always"}],
    )
    cluster = Cluster()
    changed = cluster.create(pod)
    held = {
        name: [claim["name"] for claim in find(changed, name)["resources"].get("claims", ())]
        for name in "abcis"
    }
    assert held == {
        "a": ["vgpu-a"],
        "b": ["vgpu-b"],
        "c": [],
        "i": ["vgpu-b"],  # the smallest sufficient claim
        "s": ["vgpu-s"],
    }
    assert cluster.request_of(changed, "a")["capacity"] == capacity(50, "2Gi")
    assert cluster.request_of(changed, "i")["capacity"] == capacity(30, "1Gi")


def test_a_share_without_memory_gets_the_default_first():
    cluster = Cluster()
    changed = cluster.create(gpu.pod(gpu.container("main", 50)))
    assert cluster.request_of(changed, "main")["capacity"] == capacity(50, "8Gi")


def test_gpu_manager_and_hami_resources_become_claims():
    cluster = Cluster(devices.DeviceRules(claims=("*",), words=frozenset(conversions.Words)))
    changed = cluster.create(gpu.pod(gpu.container("main", 50, 4, gpu.GAIA)))
    assert cluster.request_of(changed, "main")["capacity"] == capacity(50, "1Gi")
    amounts = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"}
    changed = cluster.create(gpu.pod(gpu.asking("main", amounts)))
    assert cluster.request_of(changed, "main")["capacity"] == capacity(30, "4Gi")


def test_selectors_and_spare_time_policy_are_in_the_claim():
    annotations = {
        "pyvgpu.io/device-models": "T4",
        "pyvgpu.io/device-count": "2",
        "pyvgpu.io/topology-policy": "numa",
        "pyvgpu.io/vcore-limit": "80",
    }
    cluster = Cluster()
    cluster.create(gpu.pod(gpu.container("main", 100, 8), annotations=annotations))
    (spec,) = cluster.made.values()
    found = spec["devices"]
    asked = found["requests"][0]["exactly"]
    assert asked["count"] == 2
    assert asked["capacity"] == capacity(50, "1Gi")
    assert "lowerAscii().contains" in asked["selectors"][0]["cel"]["expression"]
    assert {"matchAttribute": "pyvgpu.io/numa"} in found["constraints"]
    assert found["config"][0]["opaque"]["parameters"]["vcoreLimit"] == 80


@pytest.mark.parametrize(
    ("key", "value"), [("pyvgpu.io/placement", "spread"), ("pyvgpu.io/packing", "binpack")]
)
def test_annotations_that_kube_scheduler_ignores_cause_a_warning(key, value):
    pod = gpu.pod(gpu.container("main", 50, 4), annotations={key: value})
    (warning,) = Cluster().ask(pod).warnings
    assert warning.startswith(f"{key} {value}: has no effect on claims, kube-scheduler")


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        (
            {"pyvgpu.io/gang": "g", "pyvgpu.io/gang-size": "2"},
            "pyvgpu.io/gang 'g': gangs are not supported in a namespace that",
        ),
        ({"pyvgpu.io/vcore-policy": "soft"}, "pyvgpu.io/vcore-policy 'soft': must be hard or"),
        (
            {"pyvgpu.io/vcore-limit": "40"},
            "container main: pyvgpu.io/vcore-limit '40': must be from the container's own 50",
        ),
    ],
)
def test_a_request_that_claims_cannot_express_is_refused(annotations, why):
    cluster = Cluster()
    answer = cluster.ask(gpu.pod(gpu.container("main", 50, 4), annotations=annotations))
    assert answer.refusal.startswith(why)
    assert answer.code == review.FORBIDDEN
    assert not cluster.made


HOST = {"name": "v", "hostPath": {"path": "/run"}}


@pytest.mark.parametrize(
    "pod",
    [
        gpu.pod(gpu.container("main", 150, 4)),
        gpu.pod(gpu.container("main", None, 4)),
        gpu.pod(gpu.container("main", 50, 4), nodeName="n"),
        gpu.pod(gpu.container("main", 50, 4), volumes=[HOST]),
        gpu.pod({**gpu.container("main", 50, 4), "securityContext": {"privileged": True}}),
        gpu.pod(gpu.container("a", 50, 4), annotations={"pyvgpu.io/device-numa": "x"}),
    ],
)
def test_a_refused_pod_gets_no_template_and_the_usual_message(pod):
    cluster = Cluster()
    answer = cluster.ask(pod)
    assert not answer.operations
    assert not cluster.made
    why = cluster.evaluate(pod)
    assert why
    assert why == Cluster(devices.DeviceRules()).evaluate(pod)


def test_a_dry_run_mutates_the_pod_and_creates_nothing():
    cluster, pod = Cluster(), gpu.pod(gpu.container("main", 50, 4))
    dry = cluster.create(pod, dry_run=True)
    assert not cluster.made
    assert dry == cluster.create(pod)


def test_pods_in_other_namespaces_are_not_converted():
    cluster, pod = Cluster(), gpu.pod(gpu.container("main", 50, 4))
    assert cluster.create(pod, "other") == pod
    assert cluster.create(pod, "ml-7") != pod
    mirror = {"user": "system:node:n", "groups": ("system:nodes",)}
    assert cluster.create(pod, **mirror) == pod  # a static pod's mirror, without claims


def test_pods_with_claims_may_use_any_scheduler():
    cluster = Cluster(devices.DeviceRules(claims=("team",), schedulers=("gpu",)))
    pod = gpu.pod(gpu.container("main", 50, 4))
    assert cluster.create(pod)["spec"]["schedulerName"] == "default-scheduler"
    assert cluster.create(pod, "other")["spec"]["schedulerName"] == "gpu"


@pytest.mark.parametrize(
    ("kind", "code", "failed"),
    [
        (errors.UnavailableError, review.FAILED, True),  # the client may retry
        (errors.PermissionDeniedError, review.FORBIDDEN, False),
    ],
)
def test_a_pod_is_refused_if_its_template_cannot_be_created(kind, code, failed):
    cluster = Cluster()
    cluster.failing = kind("template x of its claim could not be created: POST: ...")
    answer = cluster.ask(gpu.pod(gpu.container("main", 50, 4)))
    assert (answer.code, answer.failed) == (code, failed)
    assert "could not be created" in answer.refusal


PRIVILEGED = {"name": "x", "image": "a", "securityContext": {"privileged": True}}


def test_later_additions_are_validated_as_in_any_pod_with_devices():
    changed = Cluster().create(gpu.pod(gpu.container("main", 50, 4)))
    changed["spec"]["containers"].append(PRIVILEGED)
    assert "securityContext.privileged true" in Cluster().evaluate(changed)
    changed["spec"]["containers"].pop()
    changed["spec"]["volumes"] = [HOST]
    assert "hostPath /run" in Cluster().evaluate(changed)
    whole = Cluster().create(gpu.pod(gpu.container("main", 100)))
    whole["spec"]["volumes"] = [HOST]
    assert not Cluster().evaluate(whole)


def test_ephemeral_containers_are_validated_as_in_any_pod_with_devices():
    changed = Cluster().create(gpu.pod(gpu.container("main", 50, 4)))
    debugged = copy.deepcopy(changed)
    debugged["spec"]["ephemeralContainers"] = [PRIVILEGED]
    asked = review.AdmissionRequest(
        "u", "UPDATE", "pods/ephemeralcontainers", "team", debugged, changed
    )
    assert "privileged" in devices.ephemeral(RULES)(asked).refusal


def test_names_of_claims_are_short_and_unique():
    long = "a" * 62 + "b"
    pod = gpu.pod(gpu.container(long, 50, 4), gpu.container("a", 20, 4))
    theirs = [{"name": "vgpu-a", "resourceClaimName": "theirs"}]
    pod["spec"]["resourceClaims"] = theirs
    changed = Cluster().create(pod)
    names = [claim["name"] for claim in changed["spec"]["resourceClaims"]]
    assert names == ["vgpu-a", "vgpu-" + "a" * 58, "vgpu-a-2"]
    assert find(changed, "a")["resources"]["claims"] == [{"name": "vgpu-a-2"}]
    assert max(map(len, names)) == claim_conversion.MOST_NAME


@pytest.mark.parametrize("written", ["4Gi", "4096"])
def test_memory_in_another_unit_is_refused_without_a_claim(written):
    cluster = Cluster()
    pod = gpu.pod(gpu.container("main", 30, written))
    assert not cluster.ask(pod).operations
    assert not cluster.made
    assert re.search("(are 16 units|4Gi is 16) ", cluster.evaluate(pod))


# MIG partitions.

CUT = mig_profiles.gpu()
HARDWARE = {"pyvgpu.io/isolation": "hardware"}


def partition_request(vcore, size, annotations):
    cluster = Cluster(known=(T4, CUT))
    changed = cluster.create(gpu.pod(gpu.container("main", vcore, size), annotations=annotations))
    return cluster.request_of(changed, "main")


@pytest.mark.parametrize(
    ("annotations", "selectors"),
    [
        (
            {"pyvgpu.io/mig": "1g.10gb"},
            ['device.attributes["pyvgpu.io"].migProfile == "1g.10gb"'],
        ),
        (HARDWARE, []),
        (
            {**HARDWARE, "pyvgpu.io/device-models": "H100"},
            ['device.attributes["pyvgpu.io"].model.lowerAscii().contains("h100")'],
        ),
    ],
)
def test_annotations_become_a_claim_of_a_mig_partition(annotations, selectors):
    found = partition_request(10, 4, annotations)
    assert found["deviceClassName"] == "vgpu-mig"
    assert found["capacity"] == capacity(10, "1Gi")
    assert [one["cel"]["expression"] for one in found.get("selectors", ())] == selectors


def test_a_claim_of_the_whole_gpu_as_a_partition_requests_all_vcore():
    found = partition_request(100, 40, HARDWARE)
    assert found["capacity"] == capacity(100, "10Gi")
    assert "selectors" not in found


@pytest.mark.parametrize(
    ("annotations", "vcore", "why"),
    [
        ({"pyvgpu.io/mig": "5g.50gb"}, 10, "container main: no GPU serves it: one has no MIG"),
        ({"pyvgpu.io/mig": "1g.10gb"}, 50, "container main: no GPU serves it: one has too"),
        (HARDWARE, 200, "container main: 2 devices with pyvgpu.io/mig or pyvgpu.io/isolation ha"),
        (
            {**HARDWARE, "pyvgpu.io/device-memory": "40Gi"},
            10,
            "pyvgpu.io/device-memory with pyvgpu.io/mig or pyvgpu.io/isolation hardware: a MIG",
        ),
    ],
)
@pytest.mark.parametrize("schedulers", [(), ("gpu",)])
def test_partitions_that_no_gpu_has_are_refused(annotations, vcore, why, schedulers):
    rules = devices.DeviceRules(claims=("team",), schedulers=schedulers)
    cluster = Cluster(rules, known=(T4, CUT))
    pod = gpu.pod(gpu.container("main", vcore, 4), annotations=annotations)
    answer = cluster.ask(pod)
    assert (answer.refusal or cluster.evaluate(pod)).startswith(why)
    assert not cluster.made


def test_annotations_without_effect_on_a_partition_cause_a_warning():
    noted = {**HARDWARE, "pyvgpu.io/vcore-policy": "elastic", "pyvgpu.io/priority": "high"}
    cluster = Cluster(known=(CUT,))
    answer = cluster.ask(gpu.pod(gpu.container("main", 10, 4), annotations=noted))
    assert [warning.partition(":")[0] for warning in answer.warnings] == [
        "pyvgpu.io/vcore-policy elastic",
        "pyvgpu.io/priority high",
    ]
    (spec,) = cluster.made.values()
    assert "config" not in spec["devices"]
