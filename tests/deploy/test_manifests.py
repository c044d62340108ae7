"""The chart's sidecar, webhook and DRA objects agree with the programs and with each other."""

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
from pyvgpu.allocator import elastic
from pyvgpu.cli import webhook
from pyvgpu.cli.main import COMMANDS
from pyvgpu.controller.certs import serving_certificate
from pyvgpu.controller.claims import claim_templates, dra_objects
from pyvgpu.controller.scheduler import pod_request
from pyvgpu.controller.sidecar import mark_names
from pyvgpu.controller.webhook import conversions, devices, imagenames

DRA = "dra.enabled=true"
THINGS = charted.part(["sidecar/", "webhook/"], charted.SIDECARS) + charted.part(
    ["dra/", "webhook/claims-"], DRA
)
CONVERSIONS = (
    "webhook.convert={hami}",
    "webhook.convert={gpu-manager}",
    "webhook.imageRules[0].prefix=docker.io/,webhook.imageRules[0].to=mirror.example/",
    DRA,
)
PLACES = (webhook.DEVICES, webhook.IMAGES, webhook.CLAIMS)  # paths that these settings add
MODULES = {name: module for name, module, _ in COMMANDS}


def find(kind, name):
    (found,) = (
        thing for thing in THINGS if (thing["kind"], thing["metadata"]["name"]) == (kind, name)
    )
    return found


def containers():
    for thing in THINGS:
        spec = thing.get("spec", {}).get("template", {}).get("spec", {})
        for part in ("containers", "initContainers"):
            for container in spec.get(part, ()):
                yield pytest.param(
                    container, spec, id=f"{thing['metadata']['name']}-{container['name']}"
                )


def parse(arguments):
    command, *options = arguments
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    importlib.import_module(MODULES[command]).prepare_parser(parser)
    return parser.parse_args(options)


@pytest.mark.parametrize(("container", "spec"), list(containers()))
def test_images_are_ours_with_this_version(container, spec):
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
    (port,) = (
        exposed["containerPort"] for exposed in container["ports"] if exposed["name"] == "metrics"
    )
    assert parsed.listen == f"[::]:{port}"


@pytest.mark.parametrize(("container", "spec"), list(containers()))
def test_containers_have_restricted_security_contexts(container, spec):
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
    (VALIDATING, "devices.pyvgpu.io"): webhook.VALIDATE,
    (VALIDATING, "ephemeral.pyvgpu.io"): webhook.EPHEMERAL,
}


def hooks(kind):
    return {hook["name"]: hook for hook in find(kind, webhook.NAME)["webhooks"]}


def added(setting):
    """Return the webhook's arguments with a setting, and the entries it adds, by name."""
    things = {
        (thing["kind"], thing["metadata"]["name"]): thing
        for thing in charted.part(["webhook/"], setting)
    }
    entries = {
        hook["name"]: hook
        for kind in (MUTATING, VALIDATING)
        for hook in things[kind, webhook.NAME]["webhooks"]
        if hook["name"] not in hooks(kind)
    }
    return charted.arguments(things, "Deployment", "webhook"), entries


def test_webhook_configurations_point_to_its_service():
    place = serving_certificate.ServerObjects("pyvgpu", webhook.NAME)
    service = find("Service", place.name)
    for kind in (MUTATING, VALIDATING):
        for name, hook in hooks(kind).items():
            asked = hook["clientConfig"]["service"]
            assert (asked["name"], asked["namespace"]) == (place.name, place.namespace)
            assert asked["path"] == PATHS[kind, name]
            assert asked["port"] == service["spec"]["ports"][0]["port"]
            assert hook["sideEffects"] == "None"
    assert "data" not in find("Secret", place.name)  # applying this keeps what the webhook wrote


def test_each_webhook_entry_has_match_conditions():
    for kind in (MUTATING, VALIDATING):
        for name, hook in hooks(kind).items():
            assert hook["matchConditions"]
            assert (hook["failurePolicy"] == "Ignore") is (name == "sidecars.pyvgpu.io")


def test_sidecar_condition_has_all_marks():
    (condition,) = hooks(MUTATING)["sidecars.pyvgpu.io"]["matchConditions"]
    marks = [name for name, _ in mark_names.MARKS]
    assert re.findall(r'"([A-Z_]+)"', condition["expression"]) == marks


def test_sidecar_webhook_fails_open_and_skips_system_namespaces():
    hook = hooks(MUTATING)["sidecars.pyvgpu.io"]
    assert hook["failurePolicy"] == "Ignore"
    (left_out,) = hook["namespaceSelector"]["matchExpressions"]
    assert left_out["operator"] == "NotIn"
    assert {"kube-system", "pyvgpu"} <= set(left_out["values"])
    (rule,) = hook["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])


def test_device_webhooks_skip_no_namespace():
    for kind in (MUTATING, VALIDATING):
        for name, hook in hooks(kind).items():
            assert "namespaceSelector" not in hook or name == "sidecars.pyvgpu.io"


def test_state_policy_and_webhook_have_the_same_annotations():
    policy = find("ValidatingAdmissionPolicy", "pyvgpu-state")["spec"]
    (changed,) = (
        variable["expression"] for variable in policy["variables"] if variable["name"] == "changed"
    )
    (condition,) = hooks(MUTATING)["devices.pyvgpu.io"]["matchConditions"]
    noted = condition["expression"].partition("annotations")[2]
    for text in (changed, noted):
        found = re.findall(r'"([^"]+/[^"]+)"', text)
        assert set(found) == {*devices.STATE_ANNOTATIONS, devices.STATE_PREFIX}


def test_device_conditions_are_the_same_everywhere():
    conditions = [
        condition
        for thing in THINGS
        for hook in (*thing.get("webhooks", ()), thing.get("spec", {}))
        for condition in hook.get("matchConditions", ())
        if condition["name"].startswith("asks-for-devices")
    ]
    found = {
        frozenset(re.findall(r'"([^"]+)" in r', condition["expression"]))
        for condition in conditions
    }
    assert len(conditions) == 4
    assert found == {pod_request.ASKED_FOR}


@pytest.mark.parametrize("setting", CONVERSIONS)
def test_added_options_and_paths_exist(setting):
    base = find("Deployment", "webhook")["spec"]["template"]["spec"]["containers"][0]["args"]
    arguments, entries = added(setting)
    assert set(arguments) > set(base)
    parse(arguments)
    for hook in entries.values():
        assert hook["clientConfig"]["service"]["path"] in PLACES


def test_claim_templates_have_the_same_names_everywhere():
    (policy,) = find("ValidatingAdmissionPolicy", "pyvgpu-claim-templates")["spec"][
        "matchConditions"
    ]
    asked = [hook["matchConditions"][0] for hook in hooks(VALIDATING).values()]
    for condition in (policy, *asked):
        (listed,) = re.findall(r'\[("pyvgpu-[^]]+)\]', condition["expression"])
        assert json.loads(f"[{listed}]") == [claim_templates.SHARE, claim_templates.WHOLE]


def test_device_class_of_pod_claims_is_in_the_chart():
    assert find("DeviceClass", claim_templates.CLASS)
    whole = find("DeviceClass", "vgpu-whole")["spec"]
    assert whole["extendedResourceName"] == names.DEVICE_RESOURCE
    for name in (claim_templates.CLASS, "vgpu-whole", "vgpu-h100"):
        selectors = find("DeviceClass", name)["spec"]["selectors"]
        driver, no_partition = (selector["cel"]["expression"] for selector in selectors)
        assert dra_objects.OF_THE_DRIVER in driver
        assert no_partition == dra_objects.NO_PARTITION
    selectors = find("DeviceClass", claim_templates.MIG_CLASS)["spec"]["selectors"]
    assert [selector["cel"]["expression"] for selector in selectors] == [
        dra_objects.OF_THE_DRIVER,
        dra_objects.NO_PARTITION.replace("==", "!="),
    ]


def test_claim_configuration_policy_matches_the_driver():
    spec = find("ValidatingAdmissionPolicy", "pyvgpu-claim-configuration")["spec"]
    said = " ".join(
        variable["expression"] for variable in (*spec["variables"], *spec["validations"])
    )
    assert f'"{names.DRA_DRIVER}"' in said
    assert f'"apiVersion", "kind", "{elastic.POLICY}", "{elastic.LIMIT}"' in said
    assert f'"{elastic.API_VERSION}"' in said
    assert f'"{elastic.KIND}"' in said
    assert elastic.EXAMPLE in said


def test_claim_quota_webhook_fails_closed_in_labelled_namespaces():
    (hook,) = added(DRA)[1].values()
    assert hook["failurePolicy"] == "Fail"
    assert hook["sideEffects"] == "NoneOnDryRun"
    assert hook["namespaceSelector"] == {"matchLabels": {"pyvgpu.io/totals": "kept"}}
    (rule,) = hook["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["resourceclaims"])


def test_webhooks_that_create_claim_templates_have_no_side_effects_on_dry_run():
    settings = (DRA, charted.SIDECARS, "webhook.convert={hami}")
    (configuration,) = charted.part(["webhook/mutating.yaml"], *settings)
    effects = {hook["name"]: hook["sideEffects"] for hook in configuration["webhooks"]}
    creating = dict.fromkeys(("devices.pyvgpu.io", "hami.pyvgpu.io"), "NoneOnDryRun")
    assert effects == {**creating, "sidecars.pyvgpu.io": "None"}


def test_hami_entry_matches_hami_resources_only():
    (hook,) = added("webhook.convert={hami}")[1].values()
    (condition,) = hook["matchConditions"]
    found = re.findall(r'"([^"]+)" in r', condition["expression"])
    assert tuple(found) == conversions.HAMI_ALONE
    assert hook["failurePolicy"] == "Fail"


def test_documented_image_rules_are_valid(tmp_path):
    blocks = documented.blocks(documented.ROOT / "docs/webhook.md")
    (example,) = (text for _, language, text in blocks if language == "yaml" and "to: " in text)
    file = tmp_path / "rules.yaml"
    file.write_text(example)
    rules = imagenames.load(file)
    assert imagenames.rename("nginx", "any", rules) == "mirror.example/docker.io/library/nginx"
    assert imagenames.rename("quay.io/a/b:1", "team-a", rules) == "mirror.example/quay/a/b:1"
    given = {"webhook": {"imageRules": yaml.safe_load(example)}}
    assert charted.part(["webhook/imagerules.yaml"], values=given)
