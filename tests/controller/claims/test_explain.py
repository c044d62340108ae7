"""`pyvgpu explain POD` for pods that wait for their claims."""

import json

import claim_objects as make
import gpu_pods as gpu
import mig_profiles
import pytest
import small_api

from pyvgpu import cli
from pyvgpu.controller.claims import dra_objects
from pyvgpu.deviceplugin.dra import mig_partitions

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


def test_unevaluated_selectors_are_quoted_and_free_capacity_is_reported(small, ask):
    cel = [{"cel": {"expression": 'device.attributes["pyvgpu.io"].numa == 1'}}]
    small[0].put(POD, WAITS)
    asked = make.request(20, "2Gi", selectors=cel)
    small[0].put(f"{CLAIMS}/p-gpu-1", make.claim("p-gpu-1", asked))
    out = ask()[1]
    assert "not evaluated here: request vgpu requires devices that match: device.attr" in out
    assert "there is room: kube-scheduler has not retried since, or something else" in out


def test_for_generated_claims_the_pods_annotations_are_evaluated(small, ask):
    entry = {"name": "vgpu-main", "resourceClaimTemplateName": "pyvgpu-share-1"}
    annotations = {"pyvgpu.io/device-models": "H100"}
    pod = make.pod("p", entry, statuses=(("vgpu-main", "c"),), annotations=annotations)
    small[0].put(POD, pod)
    cel = [{"cel": {"expression": "generated"}}]
    small[0].put(f"{CLAIMS}/c", make.claim("c", make.request(20, "2Gi", selectors=cel)))
    out = ask()[1]
    assert "is a Tesla T4, not H100" in out
    assert "not evaluated" not in out


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


CUT = mig_profiles.gpu()
PROFILE = 'device.attributes["pyvgpu.io"].migProfile == "3g.40gb"'
MIG = {"deviceClassName": "vgpu-mig", "selectors": [{"cel": {"expression": PROFILE}}]}


@pytest.fixture
def divided(small):
    """A GPU with MIG partitions, of which a claim has 3g.40gb@4; and a pod that waits."""
    api, _ = small
    made = make.device_class("vgpu-mig", dra_objects.OF_THE_DRIVER, dra_objects.ANY_PARTITION)
    api.put(f"{make.GROUP}/deviceclasses/vgpu-mig", made)
    for one in mig_profiles.slices("m", CUT):
        api.put(f"{make.GROUP}/resourceslices/{one['metadata']['name']}", one)
    held(api, "a", "3g.40gb", 4)
    api.put(POD, WAITS)
    return api


def held(api, name, profile, start):
    """Put a claim of a pod that has a partition."""
    has = make.got(make.claim(name), name, ("m/mig", 0, None, None))
    (result,) = has["status"]["allocation"]["devices"]["results"]
    result["device"] = mig_partitions.name_of(CUT.uuid, profile, start)
    api.put(f"{CLAIMS}/{name}", has)


def test_a_pod_that_waits_for_a_mig_partition_gets_the_reason(divided, ask):
    held(divided, "b", "1g.10gb", 1)
    divided.put(f"{CLAIMS}/p-gpu-1", make.claim("p-gpu-1", make.request(None, None, **MIG)))
    why = (
        "has no place for 3g.40gb beside 1g.10gb@1, 3g.40gb@4: it takes 4 memory slices from 0 or "
        "4, free are 0 2-3; it has a place for 2g.20gb, 1g.20gb, 1g.10gb, 1g.10gb+me "
        "(team/a 3g.40gb@4, team/b 1g.10gb@1)"
    )
    out = ask()[1].splitlines()
    assert out[:6] == [
        "team/p asks for a MIG instance 3g.40gb",
        "  no device for a MIG instance 3g.40gb: 1 node: no place for the MIG instances; "
        "1 node: no healthy device that this pod may use",
        f"  nearest: m gpu0 {why}; it would fit if team/a ended, or if it asked for 2g.20gb, "
        "which has 24 vcore and 20096MiB",
        "  GPUs for MIG instances: m gpu0",
        "  claim gpu: p-gpu-1 waits for devices",
        "NODE  DEVICE  CONTAINER  WHY NOT",
    ]
    assert f"m     gpu0    gpu        {why}" in out


def test_a_place_for_a_mig_partition_is_reported(divided, ask):
    asked = make.request(40, "8Gi", deviceClassName="vgpu-mig")
    divided.put(f"{CLAIMS}/p-gpu-1", make.claim("p-gpu-1", asked))
    out = ask()[1]
    assert "asks for a MIG instance of any profile with 40 vcore and 8GiB\n  1 node would" in out
    assert "there is room: kube-scheduler has not retried since" in out


def test_partitions_beside_shares_are_not_evaluated(divided, ask):
    both = {**make.request(None, None, **MIG), "name": "mig"}
    claim = make.claim("p-gpu-1", make.request(50, "2Gi"), both)
    divided.put(f"{CLAIMS}/p-gpu-1", claim)
    out = ask()[1]
    assert out.startswith("team/p asks for 50 vcore and 2GiB")
    assert (
        "not evaluated here: MIG partitions (profile: 3g.40gb), beside its other requests" in out
    )


def test_one_of_several_profiles_is_evaluated(divided, ask):
    two = make.request(None, None, deviceClassName="vgpu-mig")
    claim = make.claim("p-gpu-1", make.request(None, None, **MIG), {**two, "name": "any"})
    divided.put(f"{CLAIMS}/p-gpu-1", claim)
    out = ask()[1]
    assert out.startswith("team/p asks for a MIG instance of any profile\n")
    assert "not evaluated here: MIG partitions (profile: 3g.40gb)" in out


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
