"""Admission of pods with devices by a real API server, also while the webhook is down."""

import contextlib
import json
import re

import charted
import gpu_pods as gpu
import pytest
import rig
import sidecars
import waiting
import webhooks
from webhooks import DRY, dry_run, plain, refused, sharing

from pyvgpu import names
from pyvgpu.allocator import annotations, datatypes
from pyvgpu.controller.certs import certificates, serving_certificate
from pyvgpu.kube import apiserver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NODE = "/api/v1/nodes/node-1"
GIB = 1 << 30
CONVERTING = {
    "convert": ["hami", "gpu-manager"],
    "imageRules": [{"prefix": "docker.io/", "to": "mirror.example/docker.io/"}],
}


def share_of(vcore, vmemory=None):
    pod = sharing()
    pod["spec"]["containers"][0]["resources"] = gpu.container("a", vcore, vmemory)["resources"]
    return pod


@pytest.fixture
def device(space):
    """Publish a device of 16 GiB on the node."""

    def put(text):
        body = {"metadata": {"annotations": {names.NODE_DEVICES_ANNOTATION: text}}}
        space.server.call("PATCH", NODE, body=body, kind=apiserver.MERGE_PATCH)

    one = datatypes.NodeDevice("GPU-1", 0, 16 * GIB, "Tesla T4")
    put(annotations.publish(annotations.Published(256 << 20, (one,))))
    yield
    put(None)


def test_share_without_memory_gets_a_default_once_a_device_is_known(space, webhook, device):
    def seen():
        with contextlib.suppress(apiserver.ServerError):
            return gpu.asked(dry_run(space, share_of(25)), "a")
        return None

    waiting.wait_until(seen)
    assert seen() == (25, 16)


@pytest.mark.parametrize(
    ("vcore", "vmemory", "why"),
    [
        (150, 1, "vcore 150: above 100 it must be a multiple of 100"),
        (50, 0, "vcore 50 without vmemory: a share of a device needs memory of it too"),
        (None, 4, "vmemory without vcore: a share of a device needs some of its time"),
        (30, "4Gi", "pyvgpu.io/vmemory '4Gi': counts units of 256MiB"),
        (30, 4096, "pyvgpu.io/vmemory '4096': 4096 units of 256MiB are 1TiB"),
        (30, "4G", "pyvgpu.io/vmemory '4000000000': 4000000000 units of 256MiB"),
    ],
)
def test_impossible_request_is_refused_with_the_rule(space, webhook, vcore, vmemory, why):
    said = refused(dry_run, space, share_of(vcore, vmemory))
    assert f"denied the request: container a: {why}" in said


def in_mebibytes(vcore, written, **more):
    pod = sharing()
    asked = {names.VCORE_RESOURCE: str(vcore), names.VMEMORY_MIB_RESOURCE: str(written), **more}
    pod["spec"]["containers"][0]["resources"] = {"limits": asked}
    return pod


def test_memory_in_mebibytes_is_converted(space, webhook):
    made = dry_run(space, in_mebibytes(30, 4000))
    assert gpu.asked(made, "a") == (30, 16)
    limits = made["spec"]["containers"][0]["resources"]["limits"]
    assert names.VMEMORY_MIB_RESOURCE not in limits
    only = in_mebibytes(30, 4000)
    del only["spec"]["containers"][0]["resources"]["limits"][names.VCORE_RESOURCE]
    assert "vmemory without vcore: a share of a device needs some of its time" in refused(
        dry_run, space, only
    )


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (in_mebibytes(30, "4Gi"), "pyvgpu.io/vmemory-mib '4Gi': counts units of 1MiB"),
        (in_mebibytes(30, "1500m"), "must be"),  # the API server's own rule, or ours
        (
            in_mebibytes(30, 4096, **{names.VMEMORY_RESOURCE: "16"}),
            "pyvgpu.io/vmemory and pyvgpu.io/vmemory-mib: must not both be asked for",
        ),
    ],
    ids=["size", "fraction", "both"],
)
def test_impossible_mebibytes_are_refused(space, webhook, pod, why):
    assert why in refused(dry_run, space, pod)


def test_quota_counts_converted_mebibytes(space, webhook):
    hard = {f"requests.{names.VMEMORY_RESOURCE}": "16"}
    space.create("resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    space.until("resourcequotas", "q", lambda quota: "hard" in quota.get("status", {}))
    assert gpu.asked(dry_run(space, in_mebibytes(30, 4096)), "a") == (30, 16)
    assert "exceeded quota: q" in refused(dry_run, space, in_mebibytes(30, 4097))


def test_mebibytes_are_never_admitted_unconverted(space, away):
    assert "failed calling webhook" in refused(dry_run, space, in_mebibytes(30, 4096))


def test_kubectl_shows_refusals_and_warnings(space, webhook, device):
    def kubectl(pod):
        text = json.dumps({"apiVersion": "v1", "kind": "Pod", **pod})
        arguments = ("create", "--namespace", space.name, "--dry-run=server", "-f", "-")
        return webhooks.kubectl(*arguments, text=text)

    waiting.wait_until(lambda: "Warning" in kubectl(share_of(50, 65)).stderr)
    done = kubectl(share_of(50, 65))
    assert done.returncode == 0
    assert "Warning: container a waits for a device with 16.2GiB" in done.stderr
    assert kubectl(share_of(150, 1)).returncode == 1


def test_pod_with_devices_and_sidecars_gets_both_changes(space, webhook):
    pod = sharing(restartPolicy="Never")
    pod["spec"]["containers"].append(sidecars.sidecar(rig.RUNS))
    pod["metadata"]["annotations"] = {"pyvgpu.io/devices": "{}"}
    made = dry_run(space, pod)
    assert made["spec"]["containers"][1]["command"][0] == "$(START_COMMAND_0)"
    assert made["metadata"]["labels"]["pyvgpu.io/sidecars"] == "managed"
    assert "pyvgpu.io/devices" not in made["metadata"]["annotations"]


@pytest.fixture
def away(webhook):
    """Kill the webhook; return a function that restarts it, called at the latest at the end."""
    webhook.kill()
    began = []

    def back():
        if not began:
            began.append(True)
            webhook.start(*webhook.options)

    yield back
    back()


def test_without_the_webhook_only_pods_with_devices_wait(space, away):
    why = refused(dry_run, space, sharing())
    assert "500" in why  # a temporary error
    assert "failed calling webhook" in why
    assert dry_run(space, plain())
    forged = plain()
    forged["metadata"]["annotations"] = {"pyvgpu.io/devices": "{}"}
    assert "failed calling webhook" in refused(dry_run, space, forged)
    space.create("pods", plain("lives"))
    path = space.path("pods", "lives")
    body = {"metadata": {"annotations": {"pyvgpu.io/devices": "{}"}}}
    assert "only the components" in refused(
        space.server.call, "PATCH", path, DRY, body, apiserver.MERGE_PATCH
    )
    body = {"metadata": {"annotations": {"mine": "x"}, "labels": {"a": "b"}}}
    space.server.call("PATCH", path, None, body, apiserver.MERGE_PATCH)
    space.create("jobs", rig.job("j", sharing()))
    space.until_event("j", "FailedCreate", "failed calling webhook")
    assert not space.pods_of("j")
    away()
    space.until_any("pods", "batch.kubernetes.io/job-name=j", lambda _: True)


def test_without_the_webhook_the_api_server_calls_it_only_for_marked_pods(space, away):
    pattern = r"^apiserver_admission_webhook_fail_open_count\{.*sidecars.pyvgpu.io.*\} (\S+)$"

    def unanswered():
        figures = webhooks.kubectl("get", "--raw", "/metrics").stdout
        assert "apiserver_admission_webhook" in figures
        return sum(map(float, re.findall(pattern, figures, re.MULTILINE)))

    before = unanswered()
    for _ in range(5):
        assert dry_run(space, plain())
    assert unanswered() == before
    marked = plain(restartPolicy="Never")
    marked["spec"]["containers"].append(sidecars.sidecar(rig.RUNS))
    assert dry_run(space, marked)  # the control
    assert unanswered() > before


def answers(space):
    """Return whether pods with devices are admitted."""
    try:
        dry_run(space, sharing())
    except apiserver.ServerError:
        return False
    return True


REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
SIGNER = "kubernetes.io/kubelet-serving"  # signed by the cluster's own CA


def empty_secret(space):
    secret = space.server.call("GET", webhooks.PLACE.secret)
    space.server.call("PUT", webhooks.PLACE.secret, body={**secret, "data": None})


def serves(webhook, space):
    waiting.wait_until(lambda: webhook.page("/readyz") == 200, 60, webhook.log.read_text)
    waiting.wait_until(lambda: answers(space))


def test_certificate_can_come_from_a_cluster_signer_or_a_folder(space, webhook, tmp_path):
    made = certificates.make(
        certificates.CertificateSpec((webhooks.PLACE.host,)), serving_certificate.utc()
    )
    for name, text in (
        ("tls.crt", made.certificate),
        ("tls.key", made.key),
        ("ca.crt", made.authorities),
    ):
        (tmp_path / name).write_text(text)
    empty_secret(space)
    with (
        webhooks.rights("test-signing", "create,get", "certificatesigningrequests"),
        webhook.other(
            f"--certificate-signer={SIGNER}", f"--certificate-authority={webhooks.AUTHORITY}"
        ),
    ):
        waiting.wait_until(lambda: space.server.items(REQUESTS, {})[0], 60)
        (request,) = space.server.items(REQUESTS, {})[0]
        name = request["metadata"]["name"]
        done = webhooks.kubectl("certificate", "approve", name)
        assert done.returncode == 0, done.stderr
        serves(webhook, space)
        webhook.kill()
        webhook.launch(*webhook.options, f"--certificate-folder={tmp_path}")
        serves(webhook, space)
        empty_secret(space)
    space.server.call("DELETE", f"{REQUESTS}/{name}")


@pytest.fixture
def converting(space, webhook, tmp_path):
    """Run the webhook with the chart's conversions and image rules."""
    base, wanted = (
        {thing["kind"]: thing for thing in charted.part(["webhook/"], values={"webhook": values})}
        for values in ({}, CONVERTING)
    )
    kind = "MutatingWebhookConfiguration"
    known = {hook["name"] for hook in base[kind]["webhooks"]}
    entries = [hook for hook in wanted[kind]["webhooks"] if hook["name"] not in known]
    rules = tmp_path / "rules.yaml"
    rules.write_text(wanted["ConfigMap"]["data"]["rules.yaml"])
    arguments = webhooks.arguments(base["Deployment"])
    added = (
        argument
        for argument in webhooks.arguments(wanted["Deployment"])
        if argument not in arguments
    )
    more = [argument.replace("/rules/rules.yaml", str(rules)) for argument in added]
    put = [{"op": "add", "path": "/webhooks/-", "value": entry} for entry in entries]
    path = webhooks.PLACE.mutating
    space.server.call("PATCH", path, body=put, kind=apiserver.JSON_PATCH)
    try:
        with webhook.other(*more):
            serves(webhook, space)
            yield
    finally:
        gone = [{"op": "remove", "path": f"/webhooks/{len(known)}"} for _ in entries]
        space.server.call("PATCH", path, body=gone, kind=apiserver.JSON_PATCH)


def test_other_vendors_resources_are_converted_and_images_renamed(space, converting):
    pod = sharing()
    (container,) = pod["spec"]["containers"]
    container |= gpu.asking("a", {"nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "30"})
    container["image"] = "nginx:1"
    made = dry_run(space, pod)
    assert gpu.asked(made, "a") == (30, 16)
    assert made["spec"]["containers"][0]["image"] == "mirror.example/docker.io/library/nginx:1"
    pod["spec"]["containers"][0] = {**container, **gpu.container("a", 200, 1, gpu.GAIA)}
    assert gpu.asked(dry_run(space, pod), "a") == (200, 1)
    pod["spec"]["containers"][0] |= gpu.asking("a", {"nvidia.com/gpu": "1"})
    resources = dry_run(space, pod)["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": "1"}  # for NVIDIA's own plugin
