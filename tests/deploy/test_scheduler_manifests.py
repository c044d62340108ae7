"""The scheduler's manifests agree with the program's names and options, and with the agent's."""

import argparse
import importlib

import charted
import pytest
import release

from pyvgpu.cli import scheduler as command
from pyvgpu.cli.main import COMMANDS
from pyvgpu.controller.certs import serving_certificate
from pyvgpu.controller.scheduler.shell import leader_label, session

THINGS, (AGENT,) = (
    charted.part([prefix], "scheduler.mode=patch") for prefix in ("scheduler/", "agent/agent.yaml")
)
PLACE = serving_certificate.ServerObjects("pyvgpu", command.NAME)
KEY = serving_certificate.ServerObjects(*command.KEY.split("/"))
MODULES = {name: module for name, module, _ in COMMANDS}


def find(kind, name, namespace="pyvgpu"):
    (found,) = (
        thing
        for thing in THINGS
        if (
            thing["kind"],
            thing["metadata"]["name"],
            thing["metadata"].get("namespace", namespace),
        )
        == (kind, name, namespace)
    )
    return found


def parse(arguments):
    name, *options = arguments
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    importlib.import_module(MODULES[name]).prepare_parser(parser)
    return parser.parse_args(options)


@pytest.fixture
def template():
    return find("Deployment", "scheduler")["spec"]["template"]


def test_image_options_and_ports_match_this_version(template):
    (container,) = template["spec"]["containers"]
    assert container["image"] == f"localhost/pyvgpu:{release.version()}"
    parsed = parse(container["args"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert parsed.serve == f"[::]:{ports['https']}"
    assert parsed.listen == f"[::]:{ports['metrics']}"
    assert (parsed.name, parsed.key) == (command.NAME, command.KEY)
    (variable,) = container["env"]
    assert variable["name"] == "POD_NAME"  # it labels its own pod


def test_security_context_is_restricted(template):
    (container,) = template["spec"]["containers"]
    context = {**template["spec"]["securityContext"], **container["securityContext"]}
    assert context == {
        "runAsNonRoot": True,
        "runAsUser": 65534,
        "seccompProfile": {"type": "RuntimeDefault"},
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_service_selects_the_leader(template):
    service = find("Service", PLACE.name)["spec"]
    labels = template["metadata"]["labels"]
    assert service["selector"] == {**labels, leader_label.LABEL: leader_label.LEADS}
    assert leader_label.LABEL not in labels


def test_applying_the_secrets_keeps_their_data():
    for place in (PLACE, KEY):
        assert "data" not in find("Secret", place.name, place.namespace)


def test_rbac_rules_are_limited_to_its_object_names():
    for place, kind in ((PLACE, "secrets"), (KEY, "secrets"), (PLACE, "leases")):
        rules = find("Role", "scheduler", place.namespace)["rules"]
        of_kind = [
            rule for rule in rules if rule["resources"] == [kind] and rule["verbs"] != ["create"]
        ]
        assert [rule["resourceNames"] for rule in of_kind] == [[place.name]]


def test_policy_allows_the_schedulers_label_and_annotation():
    policy = find("ValidatingAdmissionPolicy", "pyvgpu-scheduler")["spec"]
    (rule,) = policy["validations"]
    assert f'"{leader_label.LABEL}"' in rule["expression"]
    assert f'"{session.WOKEN_ANNOTATION}"' in rule["expression"]


def test_agents_mount_the_schedulers_key_secret():
    spec = AGENT["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    parsed = parse(container["args"])
    (volume,) = (candidate for candidate in spec["volumes"] if "secret" in candidate)
    (mount,) = (
        candidate for candidate in container["volumeMounts"] if candidate["name"] == volume["name"]
    )
    assert parsed.placement == "extender"
    assert str(parsed.placement_key) == mount["mountPath"]
    assert mount["readOnly"]
    assert AGENT["metadata"]["namespace"] == KEY.namespace
    assert volume["secret"]["secretName"] == KEY.name
