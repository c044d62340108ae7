"""Each folder of deploy/ can be applied and deleted by itself, and takes nothing from another."""

from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
FOLDERS = sorted(it.parent for it in DEPLOY.glob("*/kustomization.yaml"))
SHARED = {("sidecar", "webhook")}  # the second is a part of the first, which says so


def kustomization(folder):
    return yaml.safe_load((folder / "kustomization.yaml").read_text())


def own(folder):
    """Return what the files of a folder make, but for what it names of others."""
    files = [folder / it for it in kustomization(folder)["resources"] if it.endswith(".yaml")]
    return [it for file in files for it in yaml.safe_load_all(file.read_text()) if it]


def key(thing):
    meta = thing["metadata"]
    return thing["kind"], meta.get("namespace"), meta["name"]


def namespaces():
    things = yaml.safe_load_all((DEPLOY / "namespaces.yaml").read_text())
    return {it["metadata"]["name"] for it in things if it["kind"] == "Namespace"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda it: it.name)
def test_it_takes_no_namespace_with_it_and_lives_in_those_that_are_there(folder):
    things = own(folder)
    assert "Namespace" not in {it["kind"] for it in things}
    assert {it["metadata"].get("namespace") for it in things} <= {None, *namespaces()}


def test_nothing_is_of_two_folders():
    found = [key(thing) for folder in FOLDERS for thing in own(folder)]
    assert len(found) == len(set(found))


def test_who_is_based_on_another_is_a_way_to_have_that_or_says_so():
    based = {
        (folder.name, Path(it).name)
        for folder in FOLDERS
        for it in kustomization(folder)["resources"]
        if it.startswith("../")
    }
    assert {(it, base) for it, base in based if not it.startswith(f"{base}-")} == SHARED
