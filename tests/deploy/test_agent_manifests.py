"""The chart's agent objects: valid versions, options and paths, and no privileges."""

import argparse
import importlib

import charted
import pytest
import release

from pyvgpu.cli.main import COMMANDS

THINGS = charted.part(["agent/"])
PARTS = [
    pytest.param(thing["spec"]["template"]["spec"], id=thing["metadata"]["name"])
    for thing in THINGS
    if thing["kind"] == "DaemonSet"
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
        assert parsed.listen == f"[::]:{port['containerPort']}"


@pytest.mark.parametrize("spec", PARTS)
def test_host_paths_are_mounted_at_the_same_path(spec):
    (container,) = spec["containers"]
    outside = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    inside = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert inside.keys() == outside.keys()
    for name, path in inside.items():
        assert path in (outside[name], f"/driver{outside[name]}")
    for mount in container["volumeMounts"]:
        assert mount.get("readOnly", False) == (
            mount["mountPath"].startswith("/driver") or mount["name"] == "pod-resources"
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
        thing["metadata"]["name"]: thing["spec"]
        for thing in THINGS
        if thing["kind"] == "NetworkPolicy"
    }
    assert policies.keys() == {param.id for param in PARTS}
    for part in PARTS:
        policy, (spec,) = policies[part.id], part.values
        (container,) = spec["containers"]
        ports = [port["name"] for port in container.get("ports", ())]
        rules = policy.get("ingress", [])
        assert policy["podSelector"]["matchLabels"]["app"] == part.id
        assert "Ingress" in policy["policyTypes"]
        assert [port["port"] for rule in rules for port in rule["ports"]] == ports
        assert all(rule["from"] for rule in rules)
    assert "Egress" in policies["control-nodes"]["policyTypes"]
    assert "egress" not in policies["control-nodes"]
