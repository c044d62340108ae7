"""The chart's agent objects: valid versions, options and paths, and no privileges."""

import argparse
import importlib

import charted
import pytest
import release

from pyvgpu.cli.main import COMMANDS

THINGS = charted.part(["agent/"])
PARTS = [
    pytest.param(it["spec"]["template"]["spec"], id=it["metadata"]["name"])
    for it in THINGS
    if it["kind"] == "DaemonSet"
]
MODULES = {name: module for name, module, _ in COMMANDS}


@pytest.mark.parametrize("spec", PARTS)
def test_image_and_options_match_this_version(spec):
    (container,) = spec["containers"]
    assert container["image"] == f"localhost/pyvgpu:{release.version()}"
    command, *options = container["args"]
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    importlib.import_module(MODULES[command]).prepare_parser(parser)
    parsed = parser.parse_args(options)
    for port in container.get("ports", ()):
        assert parsed.listen == f"0.0.0.0:{port['containerPort']}"


@pytest.mark.parametrize("spec", PARTS)
def test_host_paths_are_mounted_at_the_same_path(spec):
    (container,) = spec["containers"]
    outside = {it["name"]: it["hostPath"]["path"] for it in spec["volumes"]}
    inside = {it["name"]: it["mountPath"] for it in container["volumeMounts"]}
    assert inside.keys() == outside.keys()
    for name, path in inside.items():
        assert path in (outside[name], f"/driver{outside[name]}")
    for it in container["volumeMounts"]:
        assert it.get("readOnly", False) == (
            it["mountPath"].startswith("/driver") or it["name"] == "pod-resources"
        )


@pytest.mark.parametrize("spec", PARTS)
def test_no_component_has_any_privilege(spec):
    assert not spec.keys() & {"hostNetwork", "hostIPC"}
    (container,) = spec["containers"]
    assert spec.get("hostPID", False) == (container["name"] == "agent")  # for the audit
    assert container["securityContext"] == {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_network_policies_admit_only_metrics_clients():
    policies = {
        it["metadata"]["name"]: it["spec"] for it in THINGS if it["kind"] == "NetworkPolicy"
    }
    assert policies.keys() == {it.id for it in PARTS}
    for part in PARTS:
        policy, (spec,) = policies[part.id], part.values
        (container,) = spec["containers"]
        ports = [it["name"] for it in container.get("ports", ())]
        rules = policy.get("ingress", [])
        assert policy["podSelector"] == {"matchLabels": {"app": part.id}}
        assert "Ingress" in policy["policyTypes"]
        assert [it["port"] for rule in rules for it in rule["ports"]] == ports
        assert all(rule["from"] for rule in rules)
    assert "Egress" in policies["control-nodes"]["policyTypes"]
    assert "egress" not in policies["control-nodes"]
