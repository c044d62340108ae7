"""Content of support bundles: useful facts, and none of the planted secrets."""

import json
import os
import stat
import tarfile
import uuid

import pytest
import scheduling_api as make
import small_api

from pyvgpu import cli, device, names, region, share
from pyvgpu.allocator import annotations, datatypes
from pyvgpu.bundle import allow_lists, cluster_diagnostics, machine_diagnostics
from pyvgpu.bundle.allow_lists import KEEP
from pyvgpu.doctor import node_checks

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJwbGFudGVkIjoxfQ.c2lnbmVk"
SECRET = "planted-secret-"
AGENTS = "/api/v1/namespaces/pyvgpu-agent/pods"


def planted(number):
    return f"{SECRET}{number}"


@pytest.mark.parametrize(
    ("thing", "shape", "kept"),
    [
        pytest.param({"a": 1, "b": 2}, {"a": KEEP}, {"a": 1}, id="named"),
        pytest.param({"a": {"b": 1}}, {"a": KEEP}, {}, id="more than was meant"),
        pytest.param({"a": [1, {"b": 2}]}, {"a": KEEP}, {}, id="more in a list"),
        pytest.param({"a": ["x", 2]}, {"a": KEEP}, {"a": ["x", 2]}, id="words"),
        pytest.param({"a": "text"}, {"a": {"b": KEEP}}, {}, id="less than was meant"),
        pytest.param({"a": "text"}, {"a": [KEEP]}, {}, id="no list"),
        pytest.param({"x/a": 1, "y/a": 2}, {"x/*": KEEP}, {"x/a": 1}, id="a beginning"),
        pytest.param([{"a": 1, "b": 2}, 7], [{"a": KEEP}], [{"a": 1}], id="a list"),
        pytest.param({"a": f"x {JWT}"}, {"a": KEEP}, {"a": "x [left out]"}, id="a token"),
    ],
)
def test_only_fields_named_by_a_shape_are_kept(thing, shape, kept):
    assert allow_lists.kept(thing, shape) == kept


@pytest.mark.parametrize(
    ("said", "left"),
    [
        (f"asked with {JWT}.", "asked with [left out]."),
        ("Authorization: Bearer abcdef012345, then", "Authorization: [left out], then"),
        ("--token=abc --verbose", "--[left out] --verbose"),
        ("password: x y", "[left out] y"),
        ('{"api_key": "abc"}', '{"[left out]}'),
        ('password = "with a space", user=a', "[left out], user=a"),
        ("export AWS_SECRET_ACCESS_KEY=abc/def+1 && run", "export AWS_[left out] && run"),
        ("client-key-data: LS0tLS1CRUdJTg==", "client-[left out]"),
        ("X-Api-Key: abc", "X-[left out]"),
        ("run --hub-token abc --epochs 3", "run [left out] --epochs 3"),
        ("by https://me:abc@proxy.example:3128/x", "by https://[left out]proxy.example:3128/x"),
        ("cloned with ghp_0123456789abcdefABCD.", "cloned with [left out]."),
        ("hf_0123456789abcdefABCD", "[left out]"),
        ("AKIA0123456789ABCDEF", "[left out]"),
        ("the token has expired", "the token has expired"),
        (
            "asked https://10.0.0.1:6443/api by user@host",
            "asked https://10.0.0.1:6443/api by user@host",
        ),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\n", "[left out]\n"),
        ("-----BEGIN PRIVATE KEY-----\ncut off", "[left out]"),
        ("granted pyvgpu.io/vcore to n/pod", "granted pyvgpu.io/vcore to n/pod"),
    ],
)
def test_free_text_has_no_tokens(said, left):
    assert allow_lists.text(said) == left


def secretive_pod(name, **more):
    """Return a pod with a secret wherever a user can put one."""
    thing = make.pod(name, 30, 8, nodeName="node-1", **more)
    share = datatypes.NodeShare("GPU-1", 30, 2 << 30)
    choice = annotations.DeviceChoice(thing["metadata"]["uid"], "node-1", {"main": (share,)})
    thing["metadata"]["annotations"] = {
        names.DEVICES_ANNOTATION: annotations.seal(choice, make.KEY),
        f"{names.START_COMMAND_ANNOTATION}.main.0": planted("command"),
        names.SWAP_ANNOTATION: planted("swap"),
        "example.com/key": planted("annotation"),
    }
    thing["metadata"]["labels"] = {"example.com/label": planted("label")}
    thing["metadata"]["managedFields"] = [{"fieldsV1": {"f": planted("fields")}}]
    (container,) = thing["spec"]["containers"]
    container |= {
        "image": f"registry/{planted('image')}",
        "command": ["sh", "-c", planted("shell")],
        "args": [f"--token={planted('args')}"],
        "env": [{"name": planted("name"), "value": planted("value")}],
        "volumeMounts": [{"name": planted("mount"), "mountPath": "/x"}],
        "livenessProbe": {"exec": {"command": [planted("probe")]}},
    }
    thing["spec"]["volumes"] = [{"name": "v", "secret": {"secretName": planted("volume")}}]
    thing["spec"]["imagePullSecrets"] = [{"name": planted("pull")}]
    return thing


def own_pod():
    """Return a pod of pyvgpu with a secret in a variable."""
    container = {
        "name": "agent",
        "image": "localhost/pyvgpu:0.1.0",
        "args": ["device-plugin", "--run=/run/pyvgpu-agent"],
        "env": [{"name": "NODE_NAME", "value": planted("own variable")}],
    }
    meta = {"namespace": "pyvgpu-agent", "name": "agent-1"}
    return {"metadata": meta, "spec": {"nodeName": "node-1", "containers": [container]}}


@pytest.fixture
def bundle(tmp_path, monkeypatch, capsys):
    """Pack a bundle in an environment full of secrets; return its files and the output."""
    monkeypatch.setenv("TOKEN", planted("variable"))
    monkeypatch.setenv("PYVGPU_LOG", f"info {JWT}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log = tmp_path / "agent.log"
    log.write_text(f"granted pyvgpu.io/vcore\nasked with Bearer {planted('log')}\n")
    with small_api.running() as (api, connection):
        api.put(make.path("train"), secretive_pod("train"))
        api.put(make.path("other"), make.pod("other", 0, 0))
        api.put(f"{AGENTS}/agent-1", own_pod())
        secret = {"metadata": {"name": "key"}, "data": {"key": planted("data")}}
        api.put("/api/v1/namespaces/pyvgpu/secrets/key", secret)
        taken = {"metadata": {"name": "node-1", "annotations": {"x": planted("node")}}}
        api.put("/api/v1/nodes/node-1", {**taken, "status": {"images": [planted("images")]}})
        api.texts[f"{AGENTS}/agent-1/log"] = f"registered\ntoken: {planted('pod log')}\n"
        kubeconfig = tmp_path / "kubeconfig"
        small_api.write_kubeconfig(kubeconfig, connection)
        config = json.loads(kubeconfig.read_text())
        config["users"][0]["user"]["token"] = planted("kubeconfig")
        kubeconfig.write_text(json.dumps(config))
        output = tmp_path / "help.tar.gz"
        where = ("--state", tmp_path / "state", "--run", tmp_path / "run", "--agent", "9")
        words = ("--output", output, "--log", log, "--kubeconfig", kubeconfig, *where)
        code = cli.main(["support-bundle", *map(str, words)])
        asked = list(api.asked)
    said, stderr = capsys.readouterr()
    assert (code, stderr) == (0, "")
    with tarfile.open(output) as archive:
        files = {
            getmember.name: archive.extractfile(getmember).read().decode()
            for getmember in archive.getmembers()
        }
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    return {name.removeprefix("help/"): text for name, text in files.items()}, said, asked


@pytest.mark.slow
def test_no_planted_secret_is_packed(bundle):
    files, said, asked = bundle
    seal = json.loads(secretive_pod("train")["metadata"]["annotations"][names.DEVICES_ANNOTATION])
    for name, text in {**files, "what was said": said}.items():
        for secret in (SECRET, JWT, seal["sig"]):
            assert secret not in text, f"{secret} in {name}"
    assert not [path for _, path in asked if "secrets" in path or "configmaps" in path]


@pytest.mark.slow
def test_useful_facts_are_packed(bundle):
    files, said, _ = bundle
    assert json.loads(files["about.json"])["versions"][0].startswith("pyvgpu ")
    assert {load["check"] for load in json.loads(files["doctor/machine.json"])} >= {
        "shim",
        "driver",
    }
    (pod,) = json.loads(files["cluster/pods.json"])
    assert pod["metadata"]["name"] == "train"
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {
        "pyvgpu.io/vcore": "30",
        "pyvgpu.io/vmemory": "8",
    }
    chosen = json.loads(json.dumps(pod["metadata"]["annotations"]))[names.DEVICES_ANNOTATION]
    assert chosen["containers"] == {"main": [{"uuid": "GPU-1", "vcore": 30, "bytes": 2 << 30}]}
    (own,) = json.loads(files["cluster/pyvgpu-agent/pods.json"])
    assert own["spec"]["containers"][0]["args"] == ["device-plugin", "--run=/run/pyvgpu-agent"]
    assert own["spec"]["containers"][0]["env"] == [{"name": "NODE_NAME"}]
    assert files["cluster/pyvgpu-agent/logs/agent-1.agent.txt"].startswith("registered\n")
    assert files["logs/agent.log"].startswith("granted pyvgpu.io/vcore\n")
    assert "PYVGPU_LOG" in json.loads(files["environment.json"])


@pytest.mark.slow
def test_content_is_listed_and_the_path_printed(bundle):
    files, said, _ = bundle
    *listed, path = said.splitlines()
    assert {line.split(maxsplit=1)[1] for line in listed} == set(files)
    assert path.endswith("/help.tar.gz")


def of_grants(tmp_path):
    """Return the quotas and ledgers of grants in a bundle, by folder."""
    found = dict(
        machine_diagnostics.documents(node_checks.NodePaths(tmp_path, agent="9"), tmp_path, {})
    )
    return {grant["folder"]: grant for grant in found["grants/regions.json"]}


def granted(tmp_path, grant_id):
    """Create the folder of a grant like an agent's, with both files of its region."""
    made = tmp_path / "grants" / grant_id
    made.mkdir(parents=True)
    one = device.Device(f"GPU-{uuid.UUID(int=1)}", 0, "T4", 16 << 30, 1 << 30)
    folder = os.open(made, os.O_RDONLY)
    os.close(region.create(folder, "999.1", [share.Share(one, 30, 4 << 30)]))
    os.close(folder)
    return made


def test_quotas_and_ledgers_are_packed_from_the_agents_folder(tmp_path):
    granted(tmp_path, "00000000000000aa")
    granted(tmp_path, ".draft")
    (found,) = of_grants(tmp_path).values()
    assert found["folder"] == "00000000000000aa"
    assert [limit["vcore"] for limit in found["limits"]["devices"]] == [30]
    assert (found["processes"], found["charged"]) == ([], (0,))


def test_a_ledger_replaced_by_a_pipe_does_not_block(tmp_path):
    made = granted(tmp_path, "00000000000000aa")
    (made / "usage").unlink()
    os.mkfifo(made / "usage")
    (found,) = of_grants(tmp_path).values()
    assert found["error"] == f"{made}/usage: must be a plain file"
    assert found["limits"]["devices"]


WITHOUT = ("--no-cluster", "--agent", "9")


def test_print_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["support-bundle", "--print", *WITHOUT]) == 0
    assert "about.json" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_no_file_is_overwritten(tmp_path, capsys):
    there = tmp_path / "there"
    there.write_text("mine")
    assert cli.main(["support-bundle", "--output", str(there), *WITHOUT]) == 64
    assert "already exists; must be a new file in a folder that" in capsys.readouterr().err
    assert there.read_text() == "mine"


@pytest.mark.parametrize(
    ("option", "rule"),
    [
        ("--output", "must be a new file in a folder that exists, such as /tmp/help.tar.gz"),
        ("--log", "must be a file, such as /var/log/syslog"),
    ],
)
def test_wrong_path_is_answered_with_the_rule_and_an_example(option, rule, tmp_path, capsys):
    wrong = tmp_path / "missing" / "file"
    assert cli.main(["support-bundle", option, str(wrong), *WITHOUT]) == 69
    assert capsys.readouterr().err.endswith(f"{wrong}: {REASONS[option]}; {rule}\n")


REASONS = {
    "--output": "cannot be created: No such file or directory",
    "--log": "cannot be read: No such file or directory",
}


def test_a_cluster_that_forbids_everything_is_reported_and_packed(tmp_path):
    with small_api.running() as (api, connection):
        api.forbidden = ("/",)
        found = dict(cluster_diagnostics.documents(connection, ["pyvgpu"]))
    assert set(found) >= {"cluster/pods.json", "cluster/pyvgpu/daemonsets.json"}
    assert all("403" in answer["error"] for answer in found.values())


def test_every_pyvgpu_annotation_is_covered():
    ours = {value for name, value in vars(names).items() if name.endswith("_ANNOTATION")}
    left_out = {
        names.SWAP_ANNOTATION,  # a user's images
        names.SWAPPED_ANNOTATION,
        names.START_COMMAND_ANNOTATION,  # a user's commands
        names.CLAIM_TEMPLATE_USED_ANNOTATION,  # of templates, which are not packed
    }
    assert ours - left_out == {names.DEVICES_ANNOTATION, *allow_lists._NOTES}
