"""`pyvgpu explain POD` for pods that wait for their claims."""

import json

import claim_objects as make
import gpu_pods as gpu
import pytest
import small_api

from pyvgpu import cli

POD = "/api/v1/namespaces/team/pods/p"
CLAIMS = f"{make.GROUP}/namespaces/team/resourceclaims"
TEMPLATES = f"{make.GROUP}/namespaces/team/resourceclaimtemplates"


@pytest.fixture
def ask(small, tmp_path, capsys):
    """Return a function that explains pod p; two devices have 40 and 30 vcore left."""
    api, connection = small
    api.put(f"{make.GROUP}/deviceclasses/vgpu", make.device_class("vgpu"))
    listed = make.slice_of("n", make.device(0), make.device(1))
    api.put(f"{make.GROUP}/resourceslices/n", listed)
    for number, vcore in enumerate(("60", "70")):
        name = f"c{number}"
        has = make.got(make.claim(name), f"q{number}", ("n", number, vcore, "2Gi"))
        api.put(f"{CLAIMS}/{name}", has)
    written = tmp_path / "kubeconfig"
    small_api.write_kubeconfig(written, connection)

    def run(*options):
        code = cli.main(["explain", "p", *options, "--kubeconfig", str(written)])
        return code, *capsys.readouterr()

    return run


ENTRY = {"name": "gpu", "resourceClaimTemplateName": "t"}
WAITS = make.pod("p", ENTRY, statuses=(("gpu", "p-gpu-1"),))


def test_a_pending_pod_gets_the_reason_for_each_device(small, ask):
    small[0].put(POD, WAITS)
    small[0].put(f"{CLAIMS}/p-gpu-1", make.claim("p-gpu-1", make.request(50, "2Gi")))
    code, out, _ = ask()
    assert code == 0
    assert out.splitlines() == [
        "team/p asks for 50 vcore and 2GiB",
        "  no device for 50 vcore and 2GiB: 1 node: not enough left on each device",
        "  nearest: n gpu0 needs 50 vcore, has 40 free (team/q0 60 vcore 2GiB); it would fit if "
        "team/q0 ended, or if it asked for 40 vcore and 2GiB",
        "  claim gpu: p-gpu-1 waits for devices",
        "NODE  DEVICE  CONTAINER  WHY NOT",
        "n     gpu0    gpu        needs 50 vcore, has 40 free (team/q0 60 vcore 2GiB)",
        "n     gpu1    gpu        needs 50 vcore, has 30 free (team/q1 70 vcore 2GiB)",
    ]
    found = json.loads(ask("--json")[1])
    assert found["nodes"][0]["devices"][0]["uuid"] == "GPU-0"
    assert found["claims"] == ["claim gpu: p-gpu-1 waits for devices"]


def test_unjudged_selectors_are_quoted_and_free_capacity_is_reported(small, ask):
    cel = [{"cel": {"expression": 'device.attributes["pyvgpu.io"].numa == 1'}}]
    small[0].put(POD, WAITS)
    asked = make.request(20, "2Gi", selectors=cel)
    small[0].put(f"{CLAIMS}/p-gpu-1", make.claim("p-gpu-1", asked))
    out = ask()[1]
    assert "not judged here: request vgpu requires devices that match: device.attr" in out
    assert "there is room: kube-scheduler has not retried since, or something else" in out


def test_for_generated_claims_the_pods_annotations_are_judged(small, ask):
    entry = {"name": "vgpu-main", "resourceClaimTemplateName": "pyvgpu-share-1"}
    wishes = {"pyvgpu.io/device-models": "H100"}
    pod = make.pod("p", entry, statuses=(("vgpu-main", "c"),), annotations=wishes)
    small[0].put(POD, pod)
    cel = [{"cel": {"expression": "generated"}}]
    small[0].put(f"{CLAIMS}/c", make.claim("c", make.request(20, "2Gi", selectors=cel)))
    out = ask()[1]
    assert "is a Tesla T4, not H100" in out
    assert "not judged" not in out


def test_a_claim_that_was_not_created_has_a_reason(small, ask):
    small[0].put(POD, make.pod("p", ENTRY))
    assert "claim gpu: its template t is not there" in ask()[1]
    spec = {"spec": make.claim("x", make.request(50, "2Gi"))["spec"]}
    small[0].put(f"{TEMPLATES}/t", {"metadata": {"name": "t"}, "spec": spec})
    assert "claim gpu: is not made yet from template t\n" in ask()[1]
    text = "failed to create ResourceClaim: exceeded quota: q"
    event = {"metadata": {"name": "e"}, "message": text, "lastTimestamp": "2026-01-01T00:00:00Z"}
    small[0].put("/api/v1/namespaces/team/events/e", event)
    out = ask()[1]
    assert f"from template t: {text} (a ResourceQuota counts devices of a class, not" in out


def test_a_missing_device_class_is_named(small, ask):
    asked = make.request(50, "2Gi", deviceClassName="vgqu")
    small[0].put(POD, WAITS)
    small[0].put(f"{CLAIMS}/p-gpu-1", make.claim("p-gpu-1", asked))
    assert ask()[1].startswith(
        "team/p: claim gpu: request vgpu: deviceClassName vgqu: there is no such DeviceClass"
    )


def test_a_pod_with_allocated_claims_waits_for_none_of_them(small, ask):
    small[0].put(POD, WAITS)
    has = make.claim("p-gpu-1", make.request(20, "2Gi"))
    small[0].put(f"{CLAIMS}/p-gpu-1", make.got(has, "p", ("n", 0, "20", "2Gi")))
    assert ask()[1].splitlines() == [
        "team/p waits for none of its claims",
        "  claim gpu: p-gpu-1 has n/gpu-0",
    ]


def test_mig_partitions_that_a_pod_waits_for_are_named_but_not_judged(small, ask):
    only = 'device.attributes["pyvgpu.io"].?migProfile.orValue("") != ""'
    made = make.device_class("vgpu-mig", only)
    small[0].put(f"{make.GROUP}/deviceclasses/vgpu-mig", made)
    asked = make.request(None, None, deviceClassName="vgpu-mig")
    small[0].put(POD, WAITS)
    small[0].put(f"{CLAIMS}/p-gpu-1", make.claim("p-gpu-1", asked))
    assert ask()[1].splitlines() == [
        "team/p waits for MIG partitions",
        "  claim gpu: p-gpu-1 waits for devices",
        "  claim gpu: not judged here: request vgpu is for MIG partitions",
    ]


def test_whole_devices_requested_by_a_limit_are_explained(small, ask):
    pod = make.pod("p")
    pod["spec"]["containers"] = [gpu.asking("main", {"pyvgpu.io/device": "1"})]
    small[0].put(POD, pod)
    out = ask()[1]
    why = "is requested as a whole, but is shared: team/q0 60 vcore 2GiB"
    assert f"n     gpu0    whole      {why}" in out


def test_a_missing_permission_is_named(small, ask):
    small[0].put(POD, WAITS)
    small[0].put(f"{CLAIMS}/p-gpu-1", make.claim("p-gpu-1", make.request(50, "2Gi")))
    small[0].forbidden = (f"{make.GROUP}/resourceslices",)
    code, _, said = ask()
    assert code == 69
    assert "you may not list resourceslices: this permission is needed to tell" in said


def test_claims_of_other_drivers_are_not_explained(small, ask):
    theirs = make.device_class("nic", 'device.driver == "nic.example"')
    small[0].put(f"{make.GROUP}/deviceclasses/nic", theirs)
    asked = make.request(None, None, deviceClassName="nic")
    small[0].put(POD, WAITS)
    small[0].put(f"{CLAIMS}/p-gpu-1", make.claim("p-gpu-1", asked))
    assert ask()[1].startswith("pod team/p: Pending")
