"""`pyvgpu doctor` in a pod, and the content of a support bundle, on a full installation."""

import base64
import json
import os
import tarfile

import agents
import charted
import charts
import pytest
import rig
import runner

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

IMAGE = f"{charted.VALUES['image']['name']}:{charts.VERSION}"
DOCTOR = ("/usr/local/bin/pyvgpu", "doctor")
PUBLIC = (".crt",)  # suffixes of Secret keys that a bundle may contain
SHORT = 12  # bytes; a value this short may be in a bundle by chance


def ask_doctor(space, name, vcore, units, *options):
    """Run `pyvgpu doctor` in a pod with this share; return its exit code and output."""
    asking = agents.container("main", vcore, units)
    asking |= {"image": IMAGE, "command": [*DOCTOR, *options]}
    space.create("pods", rig.pod(name, asking))
    ended = space.until("pods", name, rig.has_ended)
    return rig.exit_code(ended, "main"), agents.logs(space, name, "main")


def test_doctor_proves_a_pods_limits(release, space):
    code, said = ask_doctor(space, "asks", 30, 16, "--json")
    checks = {check["check"]: check for check in json.loads(said)["checks"]}
    assert code == 0, checks
    assert checks["memory is held"]["state"] == "ok"
    assert checks["time is held"]["state"] in ("ok", "limited")  # limited: by other load
    assert "missing" not in {check["state"] for check in checks.values()}


def test_doctor_tells_a_pod_without_devices_which_limits_to_set(release, space):
    _, said = ask_doctor(space, "free", 0, 0)
    words = " ".join(said.split())
    assert "memory is held" not in words
    assert "its limits must request one, such as pyvgpu.io/vcore: 30" in words


def secret_values():
    """Yield the confidential values of the cluster's Secrets, plain and base64-encoded."""
    found = json.loads(charts.run("kubectl", "get", "secrets", "-A", "-o", "json"))["items"]
    for secret in found:
        for key, value in secret.get("data", {}).items():
            plain = base64.b64decode(value)
            if not key.endswith(PUBLIC) and len(plain) > SHORT:
                yield plain, value.encode()


def test_support_bundle_has_the_cluster_and_no_secret(release, space, tmp_path):
    word = b"correct-horse-battery-staple"
    space.create(
        "secrets",
        {"metadata": {"name": "word"}, "data": {"word": base64.b64encode(word).decode()}},
    )
    spoken = agents.container("a", 10, 4, "sleep 1000")
    spoken["env"] = [{"name": "WORD", "value": word.decode()}]
    space.create("pods", rig.pod("holds", spoken, restartPolicy="Always"))
    space.until("pods", "holds", lambda pod: rig.runs(pod, "a"))
    packed = tmp_path / "help.tar.gz"
    state = json.loads(release.read_text())["agent"]["state"]
    kubeconfig = ("--kubeconfig", os.environ["KUBECONFIG"])
    charts.run(runner.PYVGPU, "support-bundle", "--output", packed, "--state", state, *kubeconfig)
    with tarfile.open(packed) as archive:
        files = {
            member.name: archive.extractfile(member).read()
            for member in archive
            if member.isfile()
        }
    content = b"\n".join(files.values())
    (pods,) = [files[file] for file in files if file.endswith("cluster/pods.json")]
    assert "holds" in {load["metadata"]["name"] for load in json.loads(pods)}
    assert any("pyvgpu-agent/logs/" in file for file in files)
    secrets = [*secret_values()]
    assert (word, base64.b64encode(word)) in secrets
    assert not [plain[:8] for plain, coded in secrets if plain in content or coded in content]
