"""`pyvgpu explain POD` against an API server: the exact output."""

import json

import pod_objects as make
import pytest
import small_api

from pyvgpu import cli
from pyvgpu.kube import objects

PODS = "/api/v1/namespaces/team/pods"
POD = f"{PODS}/train-0"
NODE = "/api/v1/nodes/node-1"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/pyvgpu/leases"
LABEL = {"labels": {"pyvgpu.io/sidecars": "managed"}}


def fresh():
    return {"spec": {"holderIdentity": "a", "renewTime": objects.now()}}


@pytest.fixture
def ask(small, tmp_path, capsys):
    """Run `pyvgpu explain`; return its exit code, standard output and standard error."""
    api, connection = small
    api.put(NODE, {"metadata": {"name": "node-1"}})
    for name in ("pyvgpu-sidecar-controller", "pyvgpu-sidecar-node-1"):
        api.put(f"{LEASES}/{name}", {"metadata": {"name": name}, **fresh()})
    written = tmp_path / "kubeconfig"
    small_api.write_kubeconfig(written, connection)

    def run(*arguments, kubeconfig=written):
        code = cli.main(["explain", *arguments, "--kubeconfig", str(kubeconfig)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def hanging(**more):
    return make.pod(
        make.container("main", make.ended(0)),
        make.sidecar("mesh", command=["/opt/mesh"]),
        metadata=LABEL,
        **more,
    )


LEFT = "to stop it would make finished work fail and run again"


def test_a_pod_that_hangs(small, ask):
    small[0].put(POD, hanging())
    code, out, err = ask("train-0")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "pod team/train-0: Running on node-1",
        "  main container main: ended with 0",
        f"  sidecar mesh: running; when the work is done: leave, because {LEFT}",
        f"waits for: sidecar mesh is left running: {LEFT} (its command was not transformed when "
        "the pod was created; if it ends with code 0, set SIDECAR_TERMINATION_EXITS_ZERO=true)",
    ]


def test_a_running_pod(small, ask):
    clean = {"SIDECAR_TERMINATION_EXITS_ZERO": "true"}
    pod = make.pod(
        make.container("main", make.running()),
        make.sidecar(environment=clean),
        make.sidecar("mesh", make.waiting("ImagePullBackOff")),
        metadata=LABEL,
    )
    small[0].put(POD, pod)
    assert ask("train-0", "-n", "team")[1].splitlines() == [
        "pod team/train-0: Running on node-1",
        "  main container main: running",
        "  sidecar log: running; when the work is done: stop, because that is the shortest way, "
        "and changes nothing in the pod",
        f"  sidecar mesh: ImagePullBackOff; when the work is done: leave, because {LEFT}",
        "waits for: main container main is running",
    ]


def test_json_output(small, ask):
    small[0].put(POD, hanging())
    code, out, _ = ask("train-0", "--json")
    said = json.loads(out)
    assert code == 0
    assert (said["namespace"], said["pod"], said["phase"]) == ("team", "train-0", "Running")
    assert said["containers"][0] == {"name": "main", "role": "main", "state": "ended with 0"}
    assert said["containers"][1]["path"] == "leave"
    assert said["waitsFor"].startswith("sidecar mesh is left running")
    assert (said["hints"], said["notKnown"]) == ([], [])


def test_permission_to_read_the_pod_suffices_and_missing_ones_are_named(small, ask):
    api, _ = small
    api.put(POD, hanging(policy="OnFailure"))
    api.forbidden = ("/api/v1/nodes", "/apis/")
    code, out, err = ask("train-0")
    assert (code, err) == (0, "")
    assert out.splitlines()[3:-1] == [
        "  not known: node node-1: you may not read it",
        "  not known: lease pyvgpu-sidecar-node-1 of our node part: you may not read it",
        "  not known: lease pyvgpu-sidecar-controller of our controller: you may not read it",
    ]


def test_a_missing_controller_is_reported(small, ask):
    api, _ = small
    api.put(POD, hanging())
    api.delete(f"{LEASES}/pyvgpu-sidecar-controller")
    assert (
        "lease pyvgpu-sidecar-controller of our controller: it is not there" in ask("train-0")[1]
    )
    old = {"spec": {"holderIdentity": "a", "renewTime": "2020-01-01T00:00:00.000000Z"}}
    api.put(f"{LEASES}/pyvgpu-sidecar-controller", old)
    assert "none has been since 2020-01-01T00:00:00.000000Z" in ask("train-0")[1]


def test_a_missing_pod(ask):
    assert ask("train-9") == (
        69,
        "",
        "pyvgpu: POD train-9: there is none in namespace team; -n NAME names another namespace, "
        "such as -n default\n",
    )


def test_a_jobs_name_lists_its_pods(small, ask):
    small[0].put(f"{PODS}/train-x1", make.pod(metadata={"name": "train-x1"}))
    assert "it is a Job, whose pods are: train-x1" in ask("train")[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (403, "you may not read pods in namespace team; this needs permission to `get pods`"),
        (401, "the API server does not know you"),
        (500, "500 as the test wants it"),
    ],
)
def test_a_forbidden_pod(small, ask, code, said):
    small[0].refusals["GET"] = (code, "as the test wants it")
    status, _, err = ask("train-0")
    assert status == 69
    assert said in err


def test_a_missing_kubeconfig(ask, tmp_path):
    code, _, err = ask("train-0", kubeconfig=tmp_path / "none")
    assert code == 65
    assert "/none: no such file; --kubeconfig FILE names another" in err


def test_a_pod_may_be_named_as_kubectl_prints_it(small, ask):
    small[0].put(POD, hanging())
    code, out, _ = ask("pod/train-0")
    assert (code, out.split(":")[0]) == (0, "pod team/train-0")
    assert ask("pod/train-9")[2].startswith("pyvgpu: POD train-9: there is none")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deployment/train", "must be a pod, such as train-0; `kubectl get pods` lists them"),
        ("a/b/c", "POD 'a/b/c': must be a pod, such as train-0; `kubectl get pods` lists them"),
        ("/train", "POD '/train': must be a pod, such as train-0; `kubectl get pods` lists them"),
        (
            "team/train-0",
            "POD 'team/train-0': must be a pod, such as train-0; did you mean -n team train-0?",
        ),
        ("Train_0", "POD 'Train_0': must be lower-case letters, digits, hyphens and dots"),
        ("", "POD '': must be lower-case letters"),
    ],
)
def test_what_cannot_be_a_pod_is_refused(ask, name, said):
    code, _, err = ask(name)
    assert code == 64
    assert said in err


def test_an_unreachable_api_server(ask, tmp_path):
    text = (tmp_path / "kubeconfig").read_text()
    config = json.loads(text)
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    code, _, err = ask("train-0")
    assert code == 69
    assert "refused" in err
