"""Pods, claims and quotas that DRA users write, with a real API server and kube-scheduler."""

import concurrent.futures
import contextlib
import subprocess

import agents
import claim_objects as make
import claimants
import claimed
import pytest
import rig
import runner
import waiting
import webhooks
from claimants import consumed, container

from pyvgpu import errors
from pyvgpu.allocator import elastic
from pyvgpu.controller.claims import claim_explanation, template_collector, templates
from pyvgpu.kube import apiserver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

LONG_AGO = {"metadata": {"annotations": {"pyvgpu.io/used": "2020-01-01T00:00:00Z"}}}


@pytest.fixture(scope="module", autouse=True)
def _shipped(tmp_path_factory, _cluster):
    """The chart's DRA and webhook objects, a webhook process, and a node with devices."""
    webhook = webhooks.Webhook(tmp_path_factory.mktemp("webhook"))
    with webhooks.installed("dra/", "webhook/", setting="dra.enabled=true"), claimants.node():
        webhook.start(*webhook.options, "--claims=users-*")
        yield
        code = webhook.stop()
        said = webhook.log.read_text()
    assert code == 0
    assert "Traceback" not in said
    assert " 403 " not in said  # the shipped RBAC rules suffice


@pytest.fixture
def space():
    with rig.space("users") as made:
        yield made


def listed(space):
    return {
        template["metadata"]["name"] for template in space.server.items(space.path(KIND), {})[0]
    }


KIND = "resourceclaimtemplates"
HALF = claimants.pod("half", container("main", 50, 32))


def has(space, pod, name):
    """Wait until a pod's claim is allocated; return its devices and amounts."""
    made = space.until("pods", pod, lambda current: name in claimants.claim_names(current))
    return consumed(space.until("resourceclaims", claimants.claim_names(made)[name], consumed))


def explain(space, pod):
    command = [runner.PYVGPU, "explain", pod, "-n", space.name]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_limits_become_claims_with_collected_templates(space, tmp_path):
    dry = webhooks.dry_run(space, HALF)
    assert not listed(space)  # a dry run creates nothing
    one = space.create("pods", HALF)
    assert one["spec"]["resourceClaims"] == dry["spec"]["resourceClaims"]
    (entry,) = one["spec"]["resourceClaims"]
    assert listed(space) == {entry["resourceClaimTemplateName"]}
    assert has(space, "half", "vgpu-main") == [("gpu-0", "50", "8Gi")]

    # Each container has its own claim; an init container reuses that of an app that is big enough.
    several = claimants.pod(
        "several",
        container("big", 70, 16),
        container("small", 30, 8),
        initContainers=[
            {**container("side", 40, 8), "restartPolicy": "Always"},
            container("init", 25, 4),
        ],
    )
    made = space.create("pods", several)
    held = {
        holder["name"]: [one["name"] for one in holder["resources"]["claims"]]
        for part in ("containers", "initContainers")
        for holder in made["spec"][part]
    }
    assert held == {
        "big": ["vgpu-big"],
        "small": ["vgpu-small"],
        "side": ["vgpu-side"],
        "init": ["vgpu-small"],
    }
    found = {name: has(space, "several", f"vgpu-{name}") for name in ("big", "small", "side")}
    sizes = {name: (vcore, size) for name, ((_, vcore, size),) in found.items()}
    assert sizes == {"big": ("70", "4Gi"), "small": ("30", "2Gi"), "side": ("40", "2Gi")}

    # No device has room for the next pod, and both kube-scheduler and `pyvgpu explain` say so.
    space.create("pods", claimants.pod("waits", container("main", 50, 32)))
    space.until_event("waits", "FailedScheduling", "cannot allocate all claims")
    said = explain(space, "waits")
    assert f"{space.name}/waits asks for 50 vcore and 8GiB" in said
    assert f"{claimants.NODE}  gpu" in said
    assert "needs 50 vcore, has " in said
    waits = space.read("pods", "waits")["spec"]["resourceClaims"]
    assert waits == one["spec"]["resourceClaims"]  # equal requests share a template

    # The collector deletes templates unused for long, unless a pod names them.
    for name in listed(space):
        path = templates.path(space.name, name)
        space.server.call("PATCH", path, None, LONG_AGO, apiserver.MERGE_PATCH)
    config = tmp_path / "controller"
    rig.write_kubeconfig(config, "pyvgpu", "claim-controller")
    gone = []
    rights = apiserver.connect(str(config))
    collector = template_collector.TemplateCollector(rights, lambda: True, lambda: gone.append(1))
    before = listed(space)
    now = {"gracePeriodSeconds": 0}
    space.server.call("DELETE", space.path("pods", "several"), body=now)
    assert space.until_gone("pods", "several")
    collector.sweep()
    assert listed(space) == {entry["resourceClaimTemplateName"]}
    assert len(gone) == len(before) - 1
    has(space, "waits", "vgpu-main")  # there is room again


DRIVEN = "/client > /dev/termination-log 2>&1"


def test_containers_run_with_the_quotas_of_their_limits(space, agent):
    first = agents.container("first", 20, 4, DRIVEN)
    apps = [agents.container("a", 30, 16, DRIVEN), agents.container("b", 40, 8, DRIVEN)]
    real = {"nodeSelector": {"kubernetes.io/hostname": agents.NODE}}  # the other has no kubelet
    pod = rig.pod("real", *apps, initContainers=[first], **real, **claimed.TOKEN)
    space.create("pods", pod)
    # Two claims were created just before: a kubelet that has not seen them retries in 1 to 2 min.
    ended = space.until("pods", "real", rig.has_ended, 400)
    totals = {name: int(agents.said(ended, name)["total"]) >> 20 for name in ("first", "a", "b")}
    assert totals == {"first": 4096, "a": 4096, "b": 2048}  # MiB; "first" uses a's claim


def test_pod_may_request_whole_devices_by_a_limit_or_a_claim(space):
    limited = claimants.limited("main", {"pyvgpu.io/device": "1"})
    space.create("pods", claimants.pod("limit", limited))
    space.create("pods", claimants.pod("whole", container("main", 100)))
    (device,) = has(space, "whole", "vgpu-main")
    assert device[1:] == ("100", "16Gi")
    one = space.until(
        "pods", "limit", lambda pod: pod["status"].get("extendedResourceClaimStatus")
    )
    name = one["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    (other,) = consumed(space.until("resourceclaims", name, consumed))
    assert other[1:] == ("100", "16Gi")
    assert {device[0], other[0]} == {"gpu-0", "gpu-1"}


def test_several_devices_are_selected_by_annotations(space):
    annotations = {
        "pyvgpu.io/device-count": "2",
        "pyvgpu.io/device-models": "t4",
        "pyvgpu.io/device-memory": "8Gi",
        "pyvgpu.io/vcore-limit": "90",
    }
    pod = claimants.pod("pair", container("main", 60, 8))
    pod["metadata"]["annotations"] = annotations
    space.create("pods", pod)
    found = has(space, "pair", "vgpu-main")
    assert sorted(found) == [("gpu-0", "30", "1Gi"), ("gpu-1", "30", "1Gi")]
    for number, (key, value) in enumerate(
        [
            ("device-models", "h100"),
            ("not-device-models", "T4"),
            ("device-classes", "fast"),
            ("device-numa", "0"),
            ("device-memory", "40Gi"),
            ("not-device-uuids", "GPU-0,GPU-1"),
        ]
    ):
        name = f"none-{number}"
        pod = claimants.pod(name, container("main", 10, 1))
        pod["metadata"]["annotations"] = {f"pyvgpu.io/{key}": value}
        space.create("pods", pod)
        # No device matches the selector; it is no CEL error.
        space.until_event(name, "FailedScheduling", "cannot allocate all claims")


HOST = [{"name": "v", "hostPath": {"path": "/run"}}]


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (claimants.pod("p", container("main", 150, 8)), "vcore 150: above 100 it must be a mul"),
        (claimants.pod("p", container("main", 50, 8), volumes=HOST), "hostPath /run"),
    ],
)
def test_impossible_request_is_refused_as_without_claims(space, pod, why):
    assert why in webhooks.refused(space.create, "pods", pod)
    assert not listed(space)


def configured(parameters):
    opaque = {"driver": "pyvgpu.io", "parameters": parameters}
    made = make.claim("c", make.request(50, "1Gi"))
    made["spec"]["devices"]["config"] = [{"opaque": opaque}]
    return {"metadata": {"name": "c"}, "spec": made["spec"]}


def parameters(**members):
    return {"apiVersion": elastic.API_VERSION, "kind": elastic.KIND, **members}


CONFIGURATIONS = [
    parameters(),
    parameters(policy="hard"),
    parameters(policy="elastic", vcoreLimit=80),
    parameters(vcoreLimit=1),
    parameters(vcoreLimit=100),
    parameters(policy=None, vcoreLimit=None),
    parameters(priority="low"),
    parameters(priority="high", policy="elastic"),
    parameters(priority=None),
    parameters(priority="top"),
    parameters(priority=0),
    {},
    parameters(kind="GpuConfig"),
    parameters(apiVersion="pyvgpu.io/v2"),
    parameters(Policy="hard"),
    parameters(policy="soft"),
    parameters(policy=1),
    parameters(policy=["hard"]),
    parameters(vcoreLimit=0),
    parameters(vcoreLimit=101),
    parameters(vcoreLimit="80"),
    parameters(vcoreLimit=80.5),
    parameters(vcoreLimit=True),
    parameters(vcoreLimit={"a": 1}),
    parameters(policy="hard", vcoreLimit=80),
]


def valid(given):
    with contextlib.suppress(errors.UsageError):
        return bool(elastic.read_parameters(given))
    return False


def test_admission_policy_refuses_the_same_configurations_as_the_driver(space):
    def create(kind, thing):
        space.server.call("POST", space.path(kind), webhooks.DRY, thing)

    # A policy takes effect some time after its creation.
    waiting.wait_until(lambda: not admits(create, "resourceclaims", configured({})))
    for given in CONFIGURATIONS:
        claim = configured(given)
        template = {"metadata": {"name": "t"}, "spec": {"spec": claim["spec"]}}
        for kind, thing in (("resourceclaims", claim), (KIND, template)):
            assert admits(create, kind, thing) == valid(given), (kind, given)
    why = webhooks.refused(create, "resourceclaims", configured(parameters(polcy="hard")))
    assert "polcy: unknown field; a VGPUConfig has policy, vcoreLimit and" in why
    others = configured({})
    others["spec"]["devices"]["config"][0]["opaque"]["driver"] = "gpu.example"
    assert admits(create, "resourceclaims", others)


def admits(create, *given, busy=False):
    """Return whether the API server admits it; *busy*: a 500 counts as a refusal."""
    try:
        create(*given)
    except apiserver.ServerError as exc:
        if exc.status not in ((403, 422, 500) if busy else (403, 422)):
            raise
        return False
    return True


def test_namespace_limits_each_claim(space):
    def create(*requests):
        claim = make.claim("c", *requests)
        claim["metadata"] = {"name": "c"}
        space.server.call("POST", space.path("resourceclaims"), webhooks.DRY, claim)

    counted = {"vgpu.deviceclass.resource.k8s.io/devices": "2"}
    space.create("resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": counted}})
    space.until("resourcequotas", "q", lambda current: current["status"].get("used"))
    assert admits(create, make.request(100, "16Gi", count=2))  # counts devices, not amounts
    assert "exceeded quota: q" in webhooks.refused(create, make.request(1, "1Gi", count=3))
    space.server.call("DELETE", space.path("resourcequotas", "q"))

    one, whole = make.request(60, "4Gi"), make.request(None, None)
    two = {**one, "name": "other"}
    assert admits(create, one, two)
    claimants.annotate(space, {"pyvgpu.io/claim-vcore": "100", "pyvgpu.io/claim-vmemory": "8Gi"})
    waiting.wait_until(lambda: not admits(create, one, two))
    assert admits(create, one)
    assert admits(create, make.request(50, "4Gi", count=2))
    assert admits(create, make.request(None, None, adminAccess=False, deviceClassName="nic"))
    either = [{"name": f"a{at}", **request["exactly"]} for at, request in enumerate((one, one))]
    assert admits(create, {"name": "either", "firstAvailable": either})
    for refused, why in (
        ([one, two], "requests 120 vcore in all"),
        ([make.request(60, "4Gi", count=2)], "requests 120 vcore in all"),
        ([make.request(10, "9Gi")], "requests 9663676416 bytes of vmemory in all"),
        ([make.request(10, "3Gi", count=3)], "requests 9663676416 bytes of vmemory in all"),
        ([whole], "requests all the memory of a device"),
        ([make.request(10, "1Gi", deviceClassName="vgpu-h100", count=11)], "110 vcore in all"),
        ([make.request("500m", "1Gi")], "must be whole numbers"),
        ([{"name": "r", "exactly": every()}], "allocationMode All: in namespace"),
        ([make.request(1, "1Gi", deviceClassName="vgpu-mig")], "a MIG partition has at least"),
    ):
        assert why in webhooks.refused(create, *refused)
    # The limit applies to the webhook's own claim templates, too, and to dry runs.
    pod = claimants.pod("p", container("main", 50, 64))
    for make_ in (webhooks.dry_run, lambda space, pod: space.create("pods", pod)):
        assert "may have at most 8Gi" in webhooks.refused(make_, space, pod)


def every():
    asked = {**make.request(10, "1Gi")["exactly"], "allocationMode": "All"}
    del asked["count"]
    return asked


def test_namespace_limits_its_claims_together(space):
    api = space.server
    body = {
        "metadata": {
            "labels": {"pyvgpu.io/totals": "kept"},
            "annotations": {"pyvgpu.io/total-vcore": "100", "pyvgpu.io/total-vmemory": "8Gi"},
        }
    }
    api.call("PATCH", f"/api/v1/namespaces/{space.name}", body=body, kind=apiserver.MERGE_PATCH)

    def create(number, request, query=None):
        made = {"metadata": {"name": f"c{number}"}, "spec": make.claim("", request)["spec"]}
        api.call("POST", space.path("resourceclaims"), query, made)

    whole = make.request(100, None)
    waiting.wait_until(lambda: not admits(create, "dry", whole, webhooks.DRY))
    assert "must be set, such as 8Gi" in webhooks.refused(create, "dry", whole, webhooks.DRY)
    third = make.request(30, "1Gi")
    with concurrent.futures.ThreadPoolExecutor(12) as pool:  # all at once
        made = list(pool.map(lambda index: admits(create, index, third, busy=True), range(12)))
    claims = api.items(space.path("resourceclaims"), {})[0]
    assert len(claims) == sum(made) <= 3
    while admits(create, f"late{len(claims)}", third):  # requests refused because of concurrency
        claims = api.items(space.path("resourceclaims"), {})[0]
    claims = api.items(space.path("resourceclaims"), {})[0]
    assert len(claims) == 3
    # A pod's claim is created when there is room again; until then an event says why not.
    space.create("pods", claimants.pod("p", container("main", 30, 4)))
    space.until_event("p", claim_explanation.NOT_MADE, "the total may be at most 100")
    assert "other claims of this namespace 90: the total may be" in explain(space, "p")
    api.call("DELETE", space.path("resourceclaims", claims[0]["metadata"]["name"]))
    assert has(space, "p", "vgpu-main")


def test_only_the_webhook_may_create_its_claim_templates(space):
    spec = make.claim("x", make.request(50, "1Gi"))["spec"]

    def create(name):
        body = {"metadata": {"name": name}, "spec": {"spec": spec}}
        space.server.call("POST", space.path(KIND), webhooks.DRY, body)

    waiting.wait_until(lambda: not admits(create, "pyvgpu-share-1"))
    assert "only the webhook of pyvgpu" in webhooks.refused(create, "pyvgpu-whole-1")
    create("pyvgpu-mine")
