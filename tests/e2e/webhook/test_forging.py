"""A namespace admin cannot forge pyvgpu's annotations, nor bypass a pod's restrictions."""

import base64
import copy
import json

import pytest
import rig
import webhooks
from webhooks import DRY, dry_run, plain, refused, sharing

from pyvgpu.kube import apiserver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NODE = "node-1"
FORGED = {
    "pyvgpu.io/devices": "{}",
    "pyvgpu.io/sidecar-stop": "{}",
    "pyvgpu.io/swapped": "{}",
    "tencent.com/gpu-assigned": "true",
    "tencent.com/predicate-node": NODE,
    "tencent.com/predicate-gpu-idx-0": "1",
}


@pytest.mark.parametrize("make", [sharing, plain])
def test_forged_annotations_are_removed_from_new_pods(tenant, make):
    pod = make()
    pod["metadata"]["annotations"] = {**FORGED, "mine": "x"}
    assert dry_run(tenant, pod)["metadata"]["annotations"] == {"mine": "x"}


def test_forged_annotations_are_removed_from_the_pods_of_a_job(tenant):
    pod = sharing()
    pod["metadata"]["annotations"] = dict(FORGED)
    tenant.create("jobs", rig.job("j", pod))
    made = tenant.until_any("pods", "batch.kubernetes.io/job-name=j", lambda _: True)
    assert not FORGED.keys() & (made["metadata"].get("annotations") or {}).keys()


@pytest.fixture
def waiting_pod(tenant):
    """Create a pod that fits on no node; return its API path."""
    tenant.create("pods", sharing())
    return tenant.path("pods", "p")


@pytest.mark.parametrize("part", ["", "/status"])
@pytest.mark.parametrize("key", list(FORGED))
def test_annotations_cannot_be_added_later(tenant, waiting_pod, key, part):
    body = {"metadata": {"annotations": {key: FORGED[key]}}}
    why = refused(
        tenant.server.call, "PATCH", waiting_pod + part, DRY, body, apiserver.MERGE_PATCH
    )
    assert f"annotation {key}: only the components that ValidatingAdmissionPolicy" in why
    assert "403" in why


def test_annotations_cannot_be_added_by_update_binding_or_apply(tenant, waiting_pod):
    why = "only the components that ValidatingAdmissionPolicy pyvgpu-state lists"
    read = tenant.read("pods", "p")
    forged = copy.deepcopy(read)
    forged["metadata"].setdefault("annotations", {}).update(FORGED)
    del forged["metadata"]["resourceVersion"]
    assert why in refused(tenant.server.call, "PUT", waiting_pod, DRY, forged)
    binding = {
        "metadata": {"name": "p", "annotations": {"pyvgpu.io/devices": "{}"}},
        "target": {"kind": "Node", "name": NODE},
    }
    assert why in refused(tenant.server.call, "POST", f"{waiting_pod}/binding", None, binding)
    assert why in refused(tenant.server.call, "POST", tenant.path("bindings"), None, binding)
    applied = {"apiVersion": "v1", "kind": "Pod", "metadata": forged["metadata"]}
    for field in ("managedFields", "uid", "creationTimestamp"):
        applied["metadata"].pop(field, None)
    done = webhooks.as_user(
        f"system:serviceaccount:{tenant.name}:default",
        *("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-"),
        thing=applied,
    )
    assert done.returncode
    assert why in done.stderr
    assert (
        not FORGED.keys() & (tenant.read("pods", "p")["metadata"].get("annotations") or {}).keys()
    )


def test_only_a_component_may_write_change_or_remove_the_annotation(space, tenant, waiting_pod):
    user = "system:serviceaccount:pyvgpu:scheduler"
    with webhooks.rights("test-component", "get,patch", "pods", user):
        done = webhooks.as_user(
            user, "annotate", "--namespace", space.name, "pod/p", "pyvgpu.io/devices=sealed"
        )
        assert done.returncode == 0, done.stderr
    for value in ("other", None):
        body = {"metadata": {"annotations": {"pyvgpu.io/devices": value}}}
        for space_ in (tenant, space):  # a cluster admin is no component either
            why = refused(
                space_.server.call, "PATCH", waiting_pod, DRY, body, apiserver.MERGE_PATCH
            )
            assert "annotation pyvgpu.io/devices: only the components" in why
    body = {"metadata": {"annotations": {"mine": "x"}}}
    tenant.server.call("PATCH", waiting_pod, DRY, body, apiserver.MERGE_PATCH)


def test_only_kubelet_may_write_the_phase_of_a_pod_with_devices(tenant, waiting_pod):
    def say(path, **status):
        body = {"status": status}
        return tenant.server.call("PATCH", f"{path}/status", DRY, body, apiserver.MERGE_PATCH)

    for status in ({"phase": "Succeeded"}, {"nominatedNodeName": NODE}):
        assert "only its node, kube-scheduler" in refused(say, waiting_pod, **status)
    condition = {"type": "example.com/mine", "status": "True"}
    assert say(waiting_pod, conditions=[condition])
    tenant.create("pods", plain("other", schedulerName="absent"))
    assert say(tenant.path("pods", "other"), phase="Succeeded")


def test_kubelet_can_end_a_pod_with_devices(space, webhook):
    ended = sharing(activeDeadlineSeconds=1)  # the deadline makes kubelet set the phase
    space.create("pods", ended)
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": NODE}}
    space.server.call("POST", space.path("pods", "p") + "/binding", body=binding)
    pod = space.until("pods", "p", rig.has_ended)
    assert rig.phase(pod) == "Failed"


HOST = {"volumes": [{"name": "v", "hostPath": {"path": "/run"}}]}


def test_pod_with_devices_may_name_neither_its_node_nor_another_scheduler(tenant):
    assert "spec.nodeName node-1: " in refused(dry_run, tenant, sharing(nodeName=NODE))
    assert "spec.schedulerName mine: " in refused(dry_run, tenant, sharing(schedulerName="mine"))
    tenant.create("pods", sharing())
    operation = {"op": "add", "path": "/spec/nodeName", "value": NODE}
    assert "422" in refused(tenant.patch, "p", operation)


def test_pod_with_devices_may_have_no_privileges_on_its_node(tenant):
    pod = sharing()
    pod["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert "container a: securityContext.privileged true" in refused(dry_run, tenant, pod)
    pod["spec"]["containers"][0]["securityContext"] = {"capabilities": {"add": ["SYS_ADMIN"]}}
    assert "capabilities.add SYS_ADMIN: in a pod that" in refused(dry_run, tenant, pod)
    assert "spec.hostPID true: " in refused(dry_run, tenant, sharing(hostPID=True))
    assert "volume v: hostPath /run: " in refused(dry_run, tenant, sharing(**HOST))
    allowed = {"volumes": [{"name": "v", "hostPath": {"path": "/data/x"}}]}
    assert dry_run(tenant, sharing(**allowed))


def test_pod_without_devices_is_unrestricted(tenant):
    pod = plain(nodeName=NODE, schedulerName="mine", hostPID=True, **HOST)
    pod["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert dry_run(tenant, pod)


def test_ephemeral_containers_of_a_pod_with_devices_may_not_be_privileged(tenant, waiting_pod):
    def debug(**more):
        container = {"name": "e", "image": rig.BUSYBOX, **more}
        body = {"spec": {"ephemeralContainers": [container]}}
        kind = "application/strategic-merge-patch+json"
        return tenant.server.call("PATCH", f"{waiting_pod}/ephemeralcontainers", DRY, body, kind)

    why = refused(debug, securityContext={"privileged": True})
    assert "container e: securityContext.privileged true" in why
    assert debug()


def test_variables_may_name_no_devices(tenant):
    def with_variable(pod, value):
        pod["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]
        return pod

    why = refused(dry_run, tenant, with_variable(plain(), "all"))
    assert "NVIDIA_VISIBLE_DEVICES: a container that asks for no device may not name any" in why
    assert dry_run(tenant, with_variable(plain(), "void"))
    # For a pod with devices the agent sets the variable itself.
    assert dry_run(tenant, with_variable(sharing(), "all"))


def test_labels_bypass_no_rule(tenant):
    pod = sharing(nodeName=NODE)
    pod["metadata"]["labels"] = {
        "pyvgpu.io/scheduler": "leader",
        "hami.io/webhook": "ignore",
        "pyvgpu.io/webhook": "ignore",
    }
    assert "spec.nodeName" in refused(dry_run, tenant, pod)


def test_webhook_configurations_trust_the_served_certificate(webhook):
    api = rig.as_admin().server
    secret = api.call("GET", webhooks.PLACE.secret)
    authority = base64.b64decode(secret["data"]["ca.crt"]).decode()
    for path in (webhooks.PLACE.mutating, webhooks.PLACE.validating):
        for hook in api.call("GET", path)["webhooks"]:
            trusted = base64.b64decode(hook["clientConfig"]["caBundle"]).decode()
            assert authority == trusted, json.dumps(hook["name"])
