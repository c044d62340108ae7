"""Pods that wait for ResourceClaims, on the cluster's status page."""

import claim_objects as make
import gpu_pods as gpu
import pytest
import scheduling_api
import status_cluster
from status_cluster import StatusApi

from pyvgpu.controller.status import claim_pods

CLAIMS = f"{make.GROUP}/namespaces/team/resourceclaims"
TEMPLATES = f"{make.GROUP}/namespaces/team/resourceclaimtemplates"
PODS = "/api/v1/namespaces/team/pods"
ENTRY = {"name": "gpu", "resourceClaimTemplateName": "t"}


@pytest.fixture
def page():
    """A page of two devices, of which 40 and 30 vcore are free, without waiting pods."""
    api = StatusApi()
    api.put(f"{make.GROUP}/deviceclasses/vgpu", make.device_class("vgpu"))
    api.put(f"{make.GROUP}/deviceclasses/nic", make.device_class("nic", 'device.driver == "nic"'))
    listed = make.slice_of("n", make.device(0), make.device(1))
    api.put(f"{make.GROUP}/resourceslices/n", listed)
    for number, vcore in enumerate(("60", "70")):
        name = f"c{number}"
        has = make.got(make.claim(name), f"q{number}", ("n", number, vcore, "2Gi"))
        api.put(f"{CLAIMS}/{name}", has)
    with status_cluster.running(api, settled=False, claims=True) as shown:
        yield api, shown


def pod(name="p", entry=ENTRY, at=10, **spec):
    made = make.pod(
        name,
        entry,
        statuses=((entry["name"], f"{name}-1"),),
        creationTimestamp=f"2026-11-22T10:{at}:00Z",
    )
    return {**made, "spec": {**made["spec"], **spec}}


def put_waiting(api, name, vcore):
    """Create a pod with a claim for *vcore* and 2 GiB."""
    api.put(f"{CLAIMS}/{name}-1", make.claim(f"{name}-1", make.request(vcore, "2Gi")))
    api.put(f"{PODS}/{name}", pod(name))


def rows(document):
    return {row["pod"]: row for row in document["waiting"]["rows"]}


def explained(shown, *keys):
    """Wait until exactly these pods are shown, each with a reason; return their rows."""

    def is_complete(document):
        found = rows(document)
        return set(found) == set(keys) and all(row["why"] for row in found.values())

    return rows(status_cluster.until(shown, is_complete))


def test_pod_that_waits_for_a_claim_has_its_request_and_the_nearest_device(page):
    api, shown = page
    put_waiting(api, "p", 50)
    row = explained(shown, "team/p")["team/p"]
    assert row["asks"] == "50 vcore and 2GiB"
    assert row["since"] == "2026-11-22T10:10:00Z"
    assert row["why"] == (
        "claim gpu: p-1 waits for devices; no device for 50 vcore and 2GiB: 1 node: not enough "
        "left on each device; nearest: n gpu0 needs 50 vcore, has 40 free (team/q0 60 vcore "
        "2GiB); it would fit if team/q0 ended, or if it asked for 40 vcore and 2GiB"
    )


def test_pod_that_fits_says_so(page):
    api, shown = page
    put_waiting(api, "p", 20)
    assert explained(shown, "team/p")["team/p"]["why"] == (
        "claim gpu: p-1 waits for devices; 1 node would fit, such as n; there is room: "
        "kube-scheduler has not retried since, or something else rules that node out"
    )


def test_pod_disappears_once_its_claim_has_devices_or_it_has_a_node(page):
    api, shown = page
    for name in ("p", "q"):
        put_waiting(api, name, 20)
    explained(shown, "team/p", "team/q")
    has = make.claim("p-1", make.request(20, "2Gi"))
    api.put(f"{CLAIMS}/p-1", make.got(has, "p", ("n", 0, "20", "2Gi")))
    explained(shown, "team/q")
    api.put(f"{PODS}/q", pod("q", nodeName="n"))
    explained(shown)


def test_reason_follows_the_claim(page):
    api, shown = page
    api.put(f"{PODS}/p", pod())
    assert explained(shown, "team/p")["team/p"]["why"] == "claim gpu: p-1 is not there"
    api.put(f"{CLAIMS}/p-1", make.claim("p-1", make.request(20, "2Gi")))
    status_cluster.until(
        shown, lambda document: "1 node would fit" in rows(document)["team/p"]["why"]
    )


def test_claims_of_other_drivers_are_not_shown(page):
    api, shown = page
    asked = make.request(None, None, deviceClassName="nic")
    api.put(f"{CLAIMS}/other-1", make.claim("other-1", asked))
    api.put(f"{PODS}/other", pod("other"))
    put_waiting(api, "p", 20)
    explained(shown, "team/p")


def test_claim_that_cannot_be_created_has_the_clusters_reason(page):
    api, shown = page
    text = "failed to create ResourceClaim: exceeded quota: q"
    event = {"metadata": {"name": "e"}, "message": text, "lastTimestamp": "2026-01-01T00:00:00Z"}
    api.put("/api/v1/namespaces/team/events/e", event)
    spec = {"spec": make.claim("x", make.request(50, "2Gi"))["spec"]}
    template = {"metadata": {"namespace": "team", "name": "t"}, "spec": spec}
    api.put(f"{TEMPLATES}/t", template)
    waits = pod()
    waits["status"]["resourceClaimStatuses"] = []
    api.put(f"{PODS}/p", waits)
    why = explained(shown, "team/p")["team/p"]["why"]
    assert why.startswith(f"claim gpu: is not made yet from template t: {text} (a ResourceQuota")
    assert "nearest: n gpu0 needs 50 vcore, has 40 free" in why


def test_class_that_does_not_exist_is_named(page):
    api, shown = page
    asked = make.request(50, "2Gi", deviceClassName="vgqu")
    api.put(f"{CLAIMS}/p-1", make.claim("p-1", asked))
    api.put(f"{PODS}/p", pod())
    assert (
        "deviceClassName vgqu: there is no such DeviceClass"
        in (explained(shown, "team/p")["team/p"]["why"])
    )


def test_pod_that_requests_whole_devices_without_a_claim_is_shown(page):
    api, shown = page
    made = make.pod("p", creationTimestamp="2026-11-22T10:10:00Z")
    made["spec"]["containers"] = [gpu.asking("main", {"pyvgpu.io/device": "1"})]
    api.put(f"{PODS}/p", made)
    row = explained(shown, "team/p")["team/p"]
    assert row["asks"] == "100 vcore"
    assert row["why"].startswith("no device for 100 vcore: 1 node")


def test_pods_of_both_kinds_are_sorted_and_counted_together(page):
    api, shown = page
    limits = scheduling_api.pod("old", 130, 4)
    limits["metadata"] |= {"namespace": "team", "creationTimestamp": "2026-11-22T10:05:00Z"}
    api.put(f"{PODS}/old", limits)
    put_waiting(api, "p", 50)
    gated = pod("q", schedulingGates=[{"name": "team/quota"}], priority=5)
    api.put(f"{PODS}/q", gated)
    found = explained(shown, "team/old", "team/p", "team/q")
    assert list(found) == ["team/q", "team/old", "team/p"]
    assert found["team/q"]["why"] == "queued by its schedulingGates: team/quota"
    shown.poll()
    document = shown.document({})
    assert document["waiting"]["count"] == document["lines"]["waiting"][-1] == 3


def test_record_of_a_claim_has_what_an_explanation_needs_and_shares_equal_specs():
    has = make.got(make.claim("a", make.request(50, "2Gi")), "p", ("n", 0, "50", "2Gi"))
    has["status"]["allocation"]["devices"]["results"].append({"driver": "nic", "device": "d"})
    kept = claim_pods.read_claim({**has, "metadata": {**has["metadata"], "managedFields": []}})
    (result,) = kept["status"]["allocation"]["devices"]["results"]
    assert (result["pool"], result["consumedCapacity"]["vcore"]) == ("n", "50")
    assert kept["metadata"] == {"namespace": "team", "name": "a", "uid": "uid-a"}
    other = claim_pods.read_claim(make.claim("b", make.request(50, "2Gi")))
    assert other["spec"] is kept["spec"]


def test_numbers_of_devices_that_cannot_be_read_do_not_end_the_watch():
    made = make.pod("p")
    made["spec"]["containers"] = [gpu.asking("main", {"pyvgpu.io/device": "1" + "0" * 30})]
    assert claim_pods.read_pod(made) is None
