"""Values for managed clusters are values of the chart, and arrive in the manifests."""

import re
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


def test_driver_of_gke_is_mounted_where_the_agent_looks():
    from pyvgpu.volumes import catalogue

    (mount,) = values("GKE")["agent"]["volumeMounts"]
    (volume,) = values("GKE")["agent"]["volumes"]
    path = volume["hostPath"]["path"]
    assert mount["mountPath"] == f"/driver{path}"
    assert mount["name"] == volume["name"]
    assert Path(path, "lib64") in catalogue.MORE_FOLDERS
