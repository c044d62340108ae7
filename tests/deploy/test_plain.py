"""`pyvgpu manifests` prints helm's current output of the chart, and the helm command for more."""

import shlex
import subprocess

import charted
import pytest
import render
import rig
import yaml

from pyvgpu.cli import main, manifests

PLAIN = rig.DEPLOY / "plain"


@charted.needs_helm
@pytest.mark.parametrize("name", manifests.SETS)
def test_manifests_match_helms_output(name, capsys):
    assert main(["manifests", name]) == 0
    assert capsys.readouterr().out == render.render(name), "run `make manifests`"


def test_default_set_needs_no_name(capsys):
    assert main(["manifests"]) == 0
    assert capsys.readouterr().out == (PLAIN / "default.yaml").read_text()


def test_every_rendered_file_belongs_to_a_set():
    assert {path.name for path in PLAIN.iterdir()} == {f"{name}.yaml" for name in manifests.SETS}


@pytest.mark.parametrize("name", manifests.SETS)
def test_namespaces_come_first(name):
    things = yaml.safe_load_all((PLAIN / f"{name}.yaml").read_text())
    first, *others = filter(None, things)
    assert (first["kind"], first["metadata"]["name"]) == ("Namespace", manifests.NAMESPACE)
    assert others[0]["kind"] == "Namespace"
    assert {other["metadata"].get("namespace") for other in others} >= {
        manifests.NAMESPACE,
        charted.AGENTS,
    }


@charted.needs_helm
@pytest.mark.parametrize("name", manifests.SETS)
def test_printed_helm_command_renders_the_same(name, capsys):
    assert main(["manifests", name, "--helm"]) == 0
    program, *arguments = shlex.split(capsys.readouterr().out)
    assert program == "helm"
    command = [render.HELM, *arguments]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert (PLAIN / f"{name}.yaml").read_text().endswith(said)


def test_file_that_needs_helm_is_skipped_without_it(monkeypatch, tmp_path):
    monkeypatch.setattr(render, "HELM", str(tmp_path / "helm"))
    with pytest.raises(pytest.skip.Exception, match=charted.WITHOUT_HELM) as raised:
        charted.text("image.tag=of-this-test")
    assert raised.value.allow_module_level


def test_chart_option_prints_the_charts_path(capsys):
    assert main(["manifests", "--chart"]) == 0
    assert (rig.DEPLOY / "chart/pyvgpu").samefile(capsys.readouterr().out.strip())


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ["everything"],
            "SET 'everything': must be one of default, simulate, gaia, sidecars, dra, second",
        ),
        (["--set", "agent.audit=false"], "agent.audit=false: values are for helm, such as: helm"),
        (["dra", "-f", "mine.yaml"], "mine.yaml: values are for helm, such as: helm"),
    ],
)
def test_values_are_refused_with_the_helm_command(capsys, asked, said):
    assert main(["manifests", *asked]) == 64
    found = capsys.readouterr().err
    assert found.startswith(f"pyvgpu: {said}")
    assert f"helm template pyvgpu {manifests.chart()} --namespace pyvgpu" in found
    assert ("--set dra.enabled=true" in found) is ("dra" in asked)
    assert found.count("\n") == 1
