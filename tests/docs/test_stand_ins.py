"""`sh` blocks that no other test runs, with stand-ins for the programs of a cluster or of a cloud.

They have no mark, or `<!-- not run: WHY -->`. The shell reads them as they stand. `helm` renders
the chart with the page's values instead of installing it, `pyvgpu manifests` is the real one, and
the other stand-ins accept everything; a program without a stand-in does not exist.
"""

import re
import shutil
import sys
from pathlib import Path

import charted
import documented
import pytest
import render

from pyvgpu.cli import manifests

ROOT = documented.ROOT
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ACCEPT = "#!/bin/sh\n[ -t 0 ] || while read -r line; do :; done\n"
HELM = """#!{python}
import subprocess, sys
command, *rest = sys.argv[1:]
if command not in ("install", "upgrade") or not rest[1].endswith(("pyvgpu", ".tgz", "...")):
    sys.exit()
given, rest = [], iter(rest[2:])
for option in rest:
    if option.startswith("--set"):
        given += [option, next(rest)]
    elif option == "--namespace":
        next(rest)
    elif option not in ("--create-namespace", "--reuse-values", "--wait"):
        sys.exit(f"helm {{command}}: {{option}}")
template = ["{helm}", "template", "pyvgpu", "{chart}", "--kube-version", "{kubernetes}"]
sys.exit(subprocess.run([*template, *given], stdout=subprocess.DEVNULL).returncode)
"""
PYVGPU = """#!/bin/sh
[ "$1" != manifests ] || exec {program} "$@"
"""
ACCEPTING = (
    "az",
    "ctr",
    "gcloud",
    "grep",
    "kubectl",
    "make",
    "man",
    "mkdir",
    "openssl",
    "pip",
    "podman",
    "python3",
    "restorecon",
    "rm",
    "semanage",
    "skopeo",
    "ssh",
    "sudo",
    "systemd-tmpfiles",
    "tar",
    "tee",
)


def left():
    """Return the blocks that no other test runs."""
    return [
        pytest.param(text, id=f"{page.stem}-{number}")
        for page in PAGES
        for number, (mark, language, text) in enumerate(documented.blocks(page))
        if language == "sh" and (not mark or mark.startswith("not run: "))
    ]


@pytest.fixture
def environment(tmp_path):
    programs = dict.fromkeys(ACCEPTING, ACCEPT)
    programs["helm"] = HELM.format(
        python=sys.executable,
        helm=shutil.which(render.HELM),
        chart=render.CHART,
        kubernetes=manifests.KUBERNETES,
    )
    programs["pyvgpu"] = PYVGPU.format(program=Path(sys.executable).with_name("pyvgpu"))
    folder = tmp_path / "bin"
    folder.mkdir()
    kit = tmp_path / "pyvgpu-gpu-kit"  # tar unpacks it
    kit.mkdir()
    venv = tmp_path / "pyvgpu/bin"  # python3 -m venv makes it
    venv.mkdir(parents=True)
    runs = {str(place / "run"): ACCEPT for place in (kit, tmp_path)}  # from outside, or there
    programs |= {**runs, str(venv / "pip"): ACCEPT}
    for name, script in programs.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    return {"PATH": str(folder), "HOME": str(tmp_path), "NODE_NAME": "node-1"}


@pytest.mark.slow
@charted.needs_helm
@pytest.mark.parametrize("text", left())
def test_block_runs_with_stand_ins(text, tmp_path, environment):
    assert not re.search(r">\s*[/~]", text), "it would write to this machine: use tee"
    bash = shutil.which("bash")
    documented.output_of((bash, "-euc", text), tmp_path, environment)


@pytest.mark.slow
@charted.needs_helm
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("helm install pyvgpu deploy/chart/pyvgpu --set agent.nodeSelektor.a=b", "nodeSelektor"),
        ("helm upgrade pyvgpu deploy/chart/pyvgpu --reuse-valuse", "--reuse-valuse"),
        ("kubctl get nodes", "kubctl"),
        ("kubectl get nodes -o jsonpath='{.status}", "unexpected EOF"),
    ],
)
def test_mistake_is_found(text, problem, tmp_path, environment):
    with pytest.raises(AssertionError, match=problem):
        documented.output_of((shutil.which("bash"), "-euc", text), tmp_path, environment)


def test_keys_of_labels_and_annotations_are_documented():
    known = (ROOT / "docs/reference/names.md").read_text()
    keys = {
        key.rstrip("-")
        for page in PAGES
        for _, language, text in documented.blocks(page)
        if language == "sh"
        for line in re.findall(r"kubectl (?:annotate|label) .*", text)
        for key in re.findall(r"\bpyvgpu\.io/[\w.-]+", line)
    }
    assert len(keys) > 5
    assert not {key for key in keys if f"`{key}`" not in known}


def test_files_labelled_for_selinux_are_in_the_folders_of_the_chart():
    agent = charted.VALUES["agent"]
    (text,) = [
        text
        for _, _, text in documented.blocks(ROOT / "docs/agent-install.md")
        if "semanage" in text
    ]
    labelled = re.findall(r"fcontext .* '(\S+?)\(/\.\*\)\?'", text)
    assert labelled == [agent["state"], agent["run"]]
    assert text.splitlines()[-1].endswith(f"restorecon -R {agent['state']} {agent['run']}")
