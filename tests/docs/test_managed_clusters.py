"""Values for managed clusters are values of the chart, and arrive in the manifests."""

import re
import shlex
from pathlib import Path

import charted
import json_schema
import pytest
import yaml

PAGE = (Path(__file__).parents[2] / "docs" / "managed-clusters.md").read_text()
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
SYSTEMS = ("GKE", "EKS", "AKS", "OpenShift")


def values(system):
    (text,) = re.findall(r"```yaml\n# values .*?\n(.*?)```", SECTIONS[system], re.DOTALL)
    return yaml.safe_load(text)


@pytest.mark.parametrize("system", SYSTEMS)
def test_values_obey_the_schema_of_the_chart(system):
    json_schema.check(charted.SCHEMA, values(system), "Draft7")


@pytest.mark.parametrize("system", SYSTEMS)
def test_section_says_what_works(system):
    assert "| works | does not work |" in SECTIONS[system]


def test_agents_and_sidecar_nodes_run_on_the_same_nodes():
    for system in SYSTEMS:
        given = values(system)
        assert given["agent"]["nodeSelector"] == given["sidecarNode"]["nodeSelector"]


def command(system):
    (text,) = re.findall(r"```sh\n(.*?)```", SECTIONS[system], re.DOTALL)
    return shlex.split(text.replace("\\\n", " "))


def test_nodes_that_the_commands_create_are_those_of_the_values():
    gke, aks = command("GKE"), command("AKS")
    accelerator = dict(part.split("=") for part in gke[gke.index("--accelerator") + 1].split(","))
    assert values("GKE")["agent"]["nodeSelector"] == {
        "cloud.google.com/gke-accelerator": accelerator["type"]
    }
    assert values("AKS")["agent"]["nodeSelector"] == dict(
        [aks[aks.index("--labels") + 1].split("=")]
    )


def test_label_that_keeps_googles_plugin_away_is_the_same_on_all_pages():
    gke = command("GKE")
    label = gke[gke.index("--node-labels") + 1]
    assert label in (Path(__file__).parents[2] / "docs/migrate-nvidia.md").read_text()


def test_driver_of_gke_is_mounted_where_the_agent_searches():
    from pyvgpu.volumes import catalogue

    (mount,) = values("GKE")["agent"]["volumeMounts"]
    (volume,) = values("GKE")["agent"]["volumes"]
    path = volume["hostPath"]["path"]
    assert mount["mountPath"] == f"/driver{path}"
    assert mount["name"] == volume["name"]
    assert Path(path, "lib64") in catalogue.MORE_FOLDERS
