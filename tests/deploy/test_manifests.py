"""The manifests name what there is: versions, options, paths; what they make runs in a cluster."""

import argparse
import importlib
from pathlib import Path

import pytest
import yaml

import pyvgpu
from pyvgpu.cli import webhook
from pyvgpu.cli.main import COMMANDS
from pyvgpu.controller.webhook import identity

FOLDER = Path(__file__).parents[2] / "deploy/sidecar"
FILES = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
THINGS = [
    thing for file in FILES for thing in yaml.safe_load_all((FOLDER / file).read_text()) if thing
]
MODULES = {name: module for name, module, _ in COMMANDS}


def find(kind, name):
    (found,) = (it for it in THINGS if (it["kind"], it["metadata"]["name"]) == (kind, name))
    return found


def containers():
    for thing in THINGS:
        spec = thing.get("spec", {}).get("template", {}).get("spec", {})
        for part in ("containers", "initContainers"):
            for it in spec.get(part, ()):
                yield pytest.param(it, spec, id=f"{thing['metadata']['name']}-{it['name']}")


def test_every_file_is_applied():
    assert {it.name for it in FOLDER.glob("*.yaml")} == {*FILES, "kustomization.yaml"}


@pytest.mark.parametrize(("container", "spec"), list(containers()))
def test_images_are_of_this_version_and_never_strangers(container, spec):
    name, _, version = container["image"].rpartition(":")
    assert name in ("localhost/pyvgpu", "localhost/pyvgpu-fast-exit")
    assert version == pyvgpu.__version__
    assert container["imagePullPolicy"] == "IfNotPresent"


@pytest.mark.parametrize(("container", "spec"), list(containers()))
def test_arguments_are_options_of_the_command(container, spec):
    if not container.get("args"):
        return
    command, *options = container["args"]
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    importlib.import_module(MODULES[command]).prepare_parser(parser)
    parsed = parser.parse_args(options)
    assert parsed.fast_exit_image == f"localhost/pyvgpu-fast-exit:{pyvgpu.__version__}"
    (port,) = (it["containerPort"] for it in container["ports"] if it["name"] == "metrics")
    assert parsed.listen == f"0.0.0.0:{port}"


@pytest.mark.parametrize(("container", "spec"), list(containers()))
def test_nothing_has_more_rights_on_its_machine_than_it_needs(container, spec):
    context = {**spec.get("securityContext", {}), **container["securityContext"]}
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context.get("runAsNonRoot") or container["name"] == "node"
    assert container["resources"]["limits"]["memory"]


def test_the_webhook_is_found_by_the_names_that_it_has():
    place = identity.Place("pyvgpu", webhook.NAME)
    (hook,) = find("MutatingWebhookConfiguration", place.name)["webhooks"]
    service = find("Service", place.name)
    asked = hook["clientConfig"]["service"]
    assert (asked["name"], asked["namespace"]) == (place.name, place.namespace)
    assert asked["path"] == webhook.PATH
    assert asked["port"] == service["spec"]["ports"][0]["port"]
    assert "data" not in find("Secret", place.name)  # what it wrote stays when this is applied


def test_the_webhook_is_never_in_the_way():
    (hook,) = find("MutatingWebhookConfiguration", webhook.NAME)["webhooks"]
    assert hook["failurePolicy"] == "Ignore"
    assert hook["sideEffects"] == "None"
    (left_out,) = hook["namespaceSelector"]["matchExpressions"]
    assert left_out["operator"] == "NotIn"
    assert {"kube-system", "pyvgpu"} <= set(left_out["values"])
    (rule,) = hook["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])
