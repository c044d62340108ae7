"""The manifests name what there is: versions, options, paths; what they make runs in a cluster."""

import argparse
import importlib
import json
import re

import charted
import documented
import pytest
import release
import yaml

from pyvgpu import names
from pyvgpu.allocator import spare
from pyvgpu.cli import webhook
from pyvgpu.cli.main import COMMANDS
from pyvgpu.controller import identity
from pyvgpu.controller.claims import shapes
from pyvgpu.controller.scheduler import asks
from pyvgpu.controller.sidecar import marking
from pyvgpu.controller.webhook import conversions, imagenames, state

DRA = "dra.enabled=true"
THINGS = charted.part(["sidecar/", "webhook/"]) + charted.part(["dra/", "webhook/claims-"], DRA)
CONVERSIONS = (
    "webhook.convert={hami}",
    "webhook.convert={gpu-manager}",
    "webhook.imageRules[0].prefix=docker.io/,webhook.imageRules[0].to=mirror.example/",
    DRA,
)
PLACES = (webhook.DEVICES, webhook.IMAGES, webhook.CLAIMS)  # of what these add
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


def parse(arguments):
    command, *options = arguments
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    importlib.import_module(MODULES[command]).prepare_parser(parser)
    return parser.parse_args(options)


@pytest.mark.parametrize(("container", "spec"), list(containers()))
def test_images_are_of_this_version_and_never_strangers(container, spec):
    name, _, version = container["image"].rpartition(":")
    assert name in ("localhost/pyvgpu", "localhost/pyvgpu-fast-exit")
    assert version == release.version()
    assert container["imagePullPolicy"] == "IfNotPresent"


@pytest.mark.parametrize(("container", "spec"), list(containers()))
def test_arguments_are_options_of_the_command(container, spec):
    if not container.get("args"):
        return
    parsed = parse(container["args"])
    own = f"localhost/pyvgpu-fast-exit:{release.version()}"
    assert getattr(parsed, "fast_exit_image", own) == own
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


MUTATING, VALIDATING = "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"
PATHS = {
    (MUTATING, "devices.pyvgpu.io"): webhook.DEVICES,
    (MUTATING, "sidecars.pyvgpu.io"): webhook.SIDECARS,
    (VALIDATING, "devices.pyvgpu.io"): webhook.JUDGE,
    (VALIDATING, "ephemeral.pyvgpu.io"): webhook.EPHEMERAL,
}


def hooks(kind):
    return {it["name"]: it for it in find(kind, webhook.NAME)["webhooks"]}


def added(setting):
    """Return the webhook's arguments with a setting, and the entries that it adds by name."""
    things = {
        (it["kind"], it["metadata"]["name"]): it for it in charted.part(["webhook/"], setting)
    }
    entries = {
        it["name"]: it
        for kind in (MUTATING, VALIDATING)
        for it in things[kind, webhook.NAME]["webhooks"]
        if it["name"] not in hooks(kind)
    }
    return charted.arguments(things, "Deployment", "webhook"), entries


def test_the_webhook_is_found_by_the_names_that_it_has():
    place = identity.Place("pyvgpu", webhook.NAME)
    service = find("Service", place.name)
    for kind in (MUTATING, VALIDATING):
        for name, hook in hooks(kind).items():
            asked = hook["clientConfig"]["service"]
            assert (asked["name"], asked["namespace"]) == (place.name, place.namespace)
            assert asked["path"] == PATHS[kind, name]
            assert asked["port"] == service["spec"]["ports"][0]["port"]
            assert hook["sideEffects"] == "None"
    assert "data" not in find("Secret", place.name)  # what it wrote stays when this is applied


def test_each_entry_says_by_conditions_which_objects_it_is_about():
    for kind in (MUTATING, VALIDATING):
        for name, hook in hooks(kind).items():
            assert hook["matchConditions"]
            assert (hook["failurePolicy"] == "Ignore") is (name == "sidecars.pyvgpu.io")


def test_the_condition_about_sidecars_has_all_marks():
    (condition,) = hooks(MUTATING)["sidecars.pyvgpu.io"]["matchConditions"]
    marks = [name for name, _ in marking.MARKS]
    assert re.findall(r'"([A-Z_]+)"', condition["expression"]) == marks


def test_the_sidecars_part_is_never_in_the_way():
    hook = hooks(MUTATING)["sidecars.pyvgpu.io"]
    assert hook["failurePolicy"] == "Ignore"
    (left_out,) = hook["namespaceSelector"]["matchExpressions"]
    assert left_out["operator"] == "NotIn"
    assert {"kube-system", "pyvgpu"} <= set(left_out["values"])
    (rule,) = hook["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])


def test_no_part_for_devices_leaves_a_namespace_out():
    for kind in (MUTATING, VALIDATING):
        for name, hook in hooks(kind).items():
            assert "namespaceSelector" not in hook or name == "sidecars.pyvgpu.io"


def test_the_policy_and_the_webhook_know_the_same_annotations():
    policy = find("ValidatingAdmissionPolicy", "pyvgpu-state")["spec"]
    (changed,) = (it["expression"] for it in policy["variables"] if it["name"] == "changed")
    (condition,) = hooks(MUTATING)["devices.pyvgpu.io"]["matchConditions"]
    noted = condition["expression"].partition("annotations")[2]
    for text in (changed, noted):
        found = re.findall(r'"([^"]+/[^"]+)"', text)
        assert set(found) == {*state.KEYS, state.PREFIX}


def test_everybody_means_the_same_pods_by_those_that_ask():
    conditions = [
        it
        for thing in THINGS
        for hook in (*thing.get("webhooks", ()), thing.get("spec", {}))
        for it in hook.get("matchConditions", ())
        if it["name"].startswith("asks-for-devices")
    ]
    found = {tuple(re.findall(r'"([^"]+)" in r', it["expression"])) for it in conditions}
    assert len(conditions) == 4
    assert found == {tuple(name for pair in asks.RESOURCES for name in pair)}


@pytest.mark.parametrize("setting", CONVERSIONS)
def test_what_a_setting_adds_there_is(setting):
    base = find("Deployment", "webhook")["spec"]["template"]["spec"]["containers"][0]["args"]
    arguments, entries = added(setting)
    assert set(arguments) > set(base)
    parse(arguments)
    for hook in entries.values():
        assert hook["clientConfig"]["service"]["path"] in PLACES


def test_templates_of_pods_are_called_alike_everywhere():
    (policy,) = find("ValidatingAdmissionPolicy", "pyvgpu-claim-templates")["spec"][
        "matchConditions"
    ]
    asked = [it["matchConditions"][0] for it in hooks(VALIDATING).values()]
    for condition in (policy, *asked):
        (listed,) = re.findall(r'\[("pyvgpu-[^]]+)\]', condition["expression"])
        assert json.loads(f"[{listed}]") == [shapes.SHARE, shapes.WHOLE]


def test_the_class_that_claims_of_pods_name_is_shipped():
    assert find("DeviceClass", shapes.CLASS)
    whole = find("DeviceClass", "vgpu-whole")["spec"]
    assert whole["extendedResourceName"] == names.DEVICE_RESOURCE
    for name in (shapes.CLASS, "vgpu-whole", "vgpu-h100"):
        (selector,) = find("DeviceClass", name)["spec"]["selectors"]
        assert f'device.driver == "{names.DRA_DRIVER}"' in selector["cel"]["expression"]


def test_the_policy_of_configurations_knows_what_the_driver_does():
    spec = find("ValidatingAdmissionPolicy", "pyvgpu-claim-configuration")["spec"]
    said = " ".join(it["expression"] for it in (*spec["variables"], *spec["validations"]))
    assert f'"{names.DRA_DRIVER}"' in said
    assert f'"apiVersion", "kind", "{spare.POLICY}", "{spare.LIMIT}"' in said
    assert f'"{spare.API_VERSION}"' in said
    assert f'"{spare.KIND}"' in said
    assert spare.EXAMPLE in said


def test_claims_are_counted_where_the_namespace_says_so_and_never_past_us():
    (hook,) = added(DRA)[1].values()
    assert hook["failurePolicy"] == "Fail"
    assert hook["sideEffects"] == "NoneOnDryRun"
    assert hook["namespaceSelector"] == {"matchLabels": {"pyvgpu.io/totals": "kept"}}
    (rule,) = hook["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["resourceclaims"])


def test_a_template_is_made_for_a_pod_and_none_for_a_dry_run():
    (configuration,) = charted.part(["webhook/mutating.yaml"], DRA)
    effects = {it["name"]: it["sideEffects"] for it in configuration["webhooks"]}
    assert effects == {"devices.pyvgpu.io": "NoneOnDryRun", "sidecars.pyvgpu.io": "None"}


def test_the_entry_for_hami_asks_about_what_is_hamis_alone():
    (hook,) = added("webhook.convert={hami}")[1].values()
    (condition,) = hook["matchConditions"]
    found = re.findall(r'"([^"]+)" in r', condition["expression"])
    assert tuple(found) == conversions.HAMI_ALONE
    assert hook["failurePolicy"] == "Fail"


def test_the_example_of_image_rules_is_valid(tmp_path):
    blocks = documented.blocks(documented.ROOT / "docs/webhook.md")
    (example,) = (text for _, language, text in blocks if language == "yaml" and "to: " in text)
    file = tmp_path / "rules.yaml"
    file.write_text(example)
    rules = imagenames.load(file)
    assert imagenames.rename("nginx", "any", rules) == "mirror.example/docker.io/library/nginx"
    assert imagenames.rename("quay.io/a/b:1", "team-a", rules) == "mirror.example/quay/a/b:1"
    given = {"webhook": {"imageRules": yaml.safe_load(example)}}
    assert charted.part(["webhook/imagerules.yaml"], values=given)
