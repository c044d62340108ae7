"""The manifests name what there is: versions, options, paths; what they make runs in a cluster."""

import argparse
import importlib
import json
import re
from pathlib import Path

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

DEPLOY = Path(__file__).parents[2] / "deploy"
FOLDER, WEBHOOK = DEPLOY / "sidecar", DEPLOY / "webhook"
OVERLAYS = ("webhook-hami", "webhook-gpu-manager", "webhook-images", "webhook-dra")
PLACES = (webhook.DEVICES, webhook.IMAGES, webhook.CLAIMS)  # of what overlays add
CLAIMS = (DEPLOY / "dra", DEPLOY / "webhook-dra")


def kustomization(folder):
    return yaml.safe_load((folder / "kustomization.yaml").read_text())


def load(folder):
    """Yield what a folder applies, and what those do that it names."""
    for name in kustomization(folder)["resources"]:
        where = (folder / name).resolve()
        if where.is_dir():
            yield from load(where)
        else:
            yield from (it for it in yaml.safe_load_all(where.read_text()) if it)


THINGS = [
    *load(FOLDER),
    *(it for folder in CLAIMS for it in load(folder) if it not in list(load(WEBHOOK))),
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


@pytest.mark.parametrize("folder", [FOLDER, WEBHOOK, DEPLOY / "webhook-environment", *CLAIMS])
def test_every_file_is_applied(folder):
    files = {it for it in kustomization(folder)["resources"] if it.endswith(".yaml")}
    assert {it.name for it in folder.glob("*.yaml")} == {*files, "kustomization.yaml"}


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


def added(overlay):
    """Return what an overlay adds: arguments, and entries by their names."""
    arguments, entries = [], {}
    for patch in kustomization(DEPLOY / overlay)["patches"]:
        for operation in yaml.safe_load(patch["patch"]):
            if operation["path"].endswith("/args/-"):
                arguments.append(operation["value"])
            elif operation["path"] == "/webhooks/-":
                entries[operation["value"]["name"]] = operation["value"]
    return arguments, entries


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


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_an_overlay_adds_there_is(overlay):
    base = find("Deployment", "webhook")["spec"]["template"]["spec"]["containers"][0]["args"]
    arguments, entries = added(overlay)
    parse([*base, *arguments])
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
    (hook,) = added("webhook-dra")[1].values()
    assert hook["failurePolicy"] == "Fail"
    assert hook["sideEffects"] == "NoneOnDryRun"
    assert hook["namespaceSelector"] == {"matchLabels": {"pyvgpu.io/totals": "kept"}}
    (rule,) = hook["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["resourceclaims"])


def test_a_template_is_made_for_a_pod_and_none_for_a_dry_run():
    (patch,) = (
        it["patch"]
        for it in kustomization(DEPLOY / "webhook-dra")["patches"]
        if it["target"]["kind"] == MUTATING
    )
    test, replace = yaml.safe_load(patch)
    (at,) = (
        f"/webhooks/{place}"
        for place, it in enumerate(find(MUTATING, webhook.NAME)["webhooks"])
        if it["name"] == "devices.pyvgpu.io"
    )
    assert (test["op"], test["path"]) == ("test", f"{at}/name")
    assert (replace["path"], replace["value"]) == (f"{at}/sideEffects", "NoneOnDryRun")


def test_the_overlay_for_hami_asks_about_what_is_hamis_alone():
    (hook,) = added("webhook-hami")[1].values()
    (condition,) = hook["matchConditions"]
    found = re.findall(r'"([^"]+)" in r', condition["expression"])
    assert tuple(found) == conversions.HAMI_ALONE
    assert hook["failurePolicy"] == "Fail"


def test_the_example_of_image_rules_is_valid():
    rules = imagenames.load(DEPLOY / "webhook-images/rules.yaml")
    assert imagenames.rename("nginx", "any", rules) == "mirror.example/docker.io/library/nginx"
    assert imagenames.rename("quay.io/a/b:1", "team-a", rules) == "mirror.example/quay/a/b:1"
