"""Names of nodes, namespaces and contexts on the command line, and options without effect."""

import json

import pytest

from pyvgpu import cli

NAMESPACE = "must be the name of a namespace: up to 63 lower-case letters, digits and hyphens "
NAME = "must be a name in Kubernetes: lower-case letters, digits, and hyphens and dots between "
PYVGPU = [
    (("explain", "a", "-n", "a/b"), "-n 'a/b'", NAMESPACE),
    (("explain", "a", "--controller-namespace", "A"), "--controller-namespace 'A'", NAMESPACE),
    (("explain", "a", "--agent-namespace", "a_b"), "--agent-namespace 'a_b'", NAMESPACE),
    (("webhook", "--namespace", "a b"), "--namespace 'a b'", NAMESPACE),
    (("webhook", "--name", "A_B"), "--name 'A_B'", NAME),
    (("scheduler", "--name", ""), "--name ''", NAME),
    (("status-page", "--agent-namespace", "x."), "--agent-namespace 'x.'", NAMESPACE),
    (("sidecar-controller", "--namespace", ""), "--namespace ''", NAMESPACE),
    (("claim-controller", "--namespace", "x" * 64), f"--namespace '{'x' * 64}'", NAMESPACE),
    (
        ("sidecar-controller", "--protected-namespace", "A_B"),
        "--protected-namespace 'A_B'",
        NAMESPACE,
    ),
    (
        ("sidecar-controller", "--fast-exit-image", "a b"),
        "--fast-exit-image 'a b'",
        "must be the name of an image",
    ),
    (
        ("sidecar-node", "--fast-exit-image", "Exit"),
        "--fast-exit-image 'Exit'",
        "must be the name",
    ),
    (("webhook", "--certificate-signer", "x"), "--certificate-signer 'x'", "the name of a signer"),
    (("sidecar-node", "--node", "a b"), "--node 'a b'", NAME),
    (("device-plugin", "--node", "a..b"), "--node 'a..b'", NAME),
    (("dra-driver", "--node", "a/"), "--node 'a/'", NAME),
    (("control-nodes", "--namespace", "a/b"), "--namespace 'a/b'", NAMESPACE),
    (("scheduler", "--key", "A/b"), "--key 'A/b'", "must be a namespace and a name, such as "),
    (("scheduler", "--policy", "x"), "--policy 'x'", "binpack, spread or topology, such as "),
    (("support-bundle", "--own-namespaces", "a,"), "--own-namespaces ''", NAMESPACE),
]
KUBECTL = [
    (("top", "-n", "A"), "-n 'A'", NAMESPACE),
    (("suspend", "a", "-n", "a b"), "-n 'a b'", NAMESPACE),
    (("explain", "a", "-n", "a/b"), "-n 'a/b'", NAMESPACE),
]
ROWS = [("main", *row) for row in PYVGPU] + [("kubectl_main", *row) for row in KUBECTL]


@pytest.mark.parametrize(
    ("program", "words", "given", "rule"), ROWS, ids=[" ".join(row[1])[:50] for row in ROWS]
)
def test_wrong_name_is_answered_with_the_rule_and_an_example(
    program, words, given, rule, tmp_path, monkeypatch, capsys
):
    config = tmp_path / "kubeconfig"
    config.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "current-context": "x",
            }
        )
    )
    monkeypatch.setenv("KUBECONFIG", str(config))
    assert getattr(cli, program)(words) == 64
    said = capsys.readouterr().err
    assert said.startswith(f"pyvgpu: {given}: ")
    assert rule in said
    assert "such as " in said


@pytest.mark.parametrize("name", ["A/B", "a b", "-x"])
def test_wrong_name_of_a_node_in_the_environment_is_refused(name, monkeypatch, capsys):
    monkeypatch.setenv("NODE_NAME", name)
    for command in ("device-plugin", "sidecar-node"):
        assert cli.main([command]) == 64
        assert capsys.readouterr().err.startswith(f"pyvgpu: --node {name!r}: {NAME}")


@pytest.mark.parametrize("flag", ["--state", "--kubelet", "--cdi", "--agent"])
def test_option_of_a_node_is_refused_without_node(flag, capsys):
    assert cli.main(["doctor", flag, "127.0.0.1:5679"]) == 64
    assert "has no effect without --node, such as in `pyvgpu doctor --node" in (
        capsys.readouterr().err
    )
