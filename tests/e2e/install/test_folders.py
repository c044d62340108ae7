"""The folders of deploy/ that kustomize takes are what the chart makes, part by part."""

import copy

import charts
import pytest
import rig
import yaml

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

RULES = rig.DEPLOY / "webhook-images/rules.yaml"
# What the folders leave to the cluster's own defaults.
PLAIN = {
    "webhook": {"priorityClassName": ""},
    "sidecar": {"priorityClassName": ""},
    "sidecarNode": {"priorityClassName": ""},
    "claimController": {"priorityClassName": ""},
}
FOLDERS = {
    "agent": {},
    "agent-audit": {"agent": {"audit": True}},
    "agent-dra": {"dra": {"enabled": True}},
    "agent-gaia": {"profile": "gaia"},
    "agent-privileged": {"agent": {"privileged": True}},
    "agent-scheduled": {"scheduler": {"mode": "patch"}},
    "dra": {"dra": {"enabled": True}},
    "scheduler": {"scheduler": {"mode": "patch"}},
    "sidecar": {},
    "status-page": {"statusPage": {"enabled": True}},
    "webhook": {},
    "webhook-dra": {"dra": {"enabled": True}},
    "webhook-environment": {"webhook": {"environmentPolicy": True}},
    "webhook-gpu-manager": {"webhook": {"convert": ["gpu-manager"]}},
    "webhook-hami": {"webhook": {"convert": ["hami"]}},
    "webhook-images": {"webhook": {"imageRules": yaml.safe_load(RULES.read_text())}},
}


def plain(thing):
    """Return a value without what only looks different: blanks in texts, the chart.s labels."""
    if isinstance(thing, dict):
        return {
            key: plain(it)
            for key, it in thing.items()
            if not key.startswith("app.kubernetes.io/") and key != "pyvgpu.io/image-rules"
        }
    if isinstance(thing, list):
        return [plain(it) for it in thing]
    return "".join(thing.split()) if isinstance(thing, str) else thing


def by_name(objects):
    """Return objects as they are compared; the name of generated ones without its digest."""
    found = {}
    for (kind, namespace, name), thing in copy.deepcopy(objects).items():
        if kind == "ConfigMap":
            thing = {"rules": yaml.safe_load(thing["data"]["rules.yaml"])}
            name = "pyvgpu-image-rules"
        meta = thing.get("metadata", {})
        if not plain(meta.get("labels", {"none": ""})):
            del meta["labels"]
        for annotated in (thing, thing.get("spec", {}).get("template", {})):
            annotations = annotated.get("metadata", {}).get("annotations", {"none": ""})
            if not plain(annotations):
                del annotated["metadata"]["annotations"]
        for it in thing.get("spec", {}).get("template", {}).get("spec", {}).get("volumes", ()):
            if it["name"] == "rules":
                it["configMap"]["name"] = "pyvgpu-image-rules"
        # A folder's rules are its user's file, so the API server asks about every pod there.
        for it in thing.get("webhooks", ()):
            if it["name"] == "images.pyvgpu.io":
                it.pop("matchConditions", None)
        found[kind, namespace, name] = plain(thing)
    return found


def test_every_folder_is_compared():
    assert set(FOLDERS) == {it.parent.name for it in rig.DEPLOY.glob("*/kustomization.yaml")}


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_what_the_chart_makes(folder):
    given = copy.deepcopy(PLAIN)
    for part, more in FOLDERS[folder].items():
        given[part] = {**given.get(part, {}), **more} if isinstance(more, dict) else more
    theirs = by_name(charts.objects(charts.run("kubectl", "kustomize", rig.DEPLOY / folder)))
    ours = by_name(charts.objects(*charts.CHART.documents(given, charts.NAMESPACE)))
    assert theirs == {key: ours.get(key) for key in theirs}
