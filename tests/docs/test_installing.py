"""Installation pages import every image and wait for every workload that they create."""

import fnmatch
import re
from pathlib import Path

import charted
import documented
import pytest
import rig
import yaml
from images import IMAGES

PAGE = "start-cluster.md"
ARCHIVES = {f"dist/{image}.tar" for image in IMAGES}  # written by `make images`
# The agent's pod requests a device of control-nodes, so it starts only after that.
IMPLIED = {"pyvgpu-agent daemonset/control-nodes"}


def imported(text):
    """Return the archives that the commands of a page import into containerd."""
    names = set()
    for line in text.splitlines():
        loop = re.search(r"for (\w+) in ([^;]+);", line)
        for name in re.findall(r"images import \"?([^\s\";]+)", line):
            is_loop = loop and name == f"${loop[1]}"
            names |= set(loop[2].split() if is_loop else [name])
    return {
        archive for archive in ARCHIVES if any(fnmatch.fnmatch(archive, name) for name in names)
    }


def text_of(step):
    """Return the manifests that a step prints."""
    (name,) = re.findall(r"pyvgpu manifests *(\w*) *\|", step)
    return (rig.DEPLOY / f"plain/{name or 'default'}.yaml").read_text()


def applying():
    """Return the steps of the page that install pyvgpu."""
    found = [step for step in documented.steps(PAGE) if re.search(r"manifests.*apply", step)]
    assert len(found) == 2
    return found


def named(step):
    """Return the archives of all images that the manifests of a step name."""
    return {
        f"dist/{image_name}.tar"
        for image_name in re.findall(r"localhost/([\w-]+):", text_of(step))
    }


@pytest.mark.parametrize("page", [PAGE, "sidecar.md"])
def test_page_imports_every_image_of_the_manifests(page):
    text = "".join(block for _, _, block in documented.blocks(documented.ROOT / "docs" / page))
    wanted = set().union(*map(named, applying()))
    assert len(wanted) > 1
    assert wanted <= ARCHIVES
    assert imported(text) >= wanted


@pytest.mark.parametrize("step", applying(), ids=["devices", "simulated"])
def test_page_waits_for_every_workload_it_starts(step):
    things = filter(None, yaml.safe_load_all(text_of(step)))
    made = {
        f"{thing['metadata']['namespace']} {thing['kind'].lower()}/{thing['metadata']['name']}"
        for thing in things
        if thing["kind"] in ("DaemonSet", "Deployment", "StatefulSet")
    }
    waited = {
        f"{namespace} {name}"
        for namespace, name in re.findall(r"-n (\S+) rollout status (\S+) --timeout", step)
    }
    assert waited == made - IMPLIED


# Of NVIDIA's software and of the container runtime.
SHARED_FOLDERS = {"/run/nvidia", "/var/run/cdi"}


def test_page_removes_each_folder_that_the_manifests_create_on_nodes():
    made = {
        path
        for manifest in (rig.DEPLOY / "plain").glob("*.yaml")
        for path in re.findall(r"path: (\S+), type: DirectoryOrCreate", manifest.read_text())
    }
    assert made > SHARED_FOLDERS
    text = (documented.ROOT / "docs" / "install.md").read_text()
    (removed,) = re.findall(r"^rm -rf (.*)$", text, re.M)
    kept = {
        path
        for path in made - SHARED_FOLDERS
        if not any(Path(path).is_relative_to(folder) for folder in removed.split())
    }
    assert kept == set()


def test_images_pushed_to_a_registry_are_those_of_the_helm_command():
    (step,) = [
        text
        for _, _, text in documented.blocks(documented.ROOT / "docs" / PAGE)
        if "helm install" in text
    ]
    copied = dict(re.findall(r"oci-archive:(\S+) docker://(\S+)", step))
    settings = re.findall(r"--set (\S+)", step)
    assert copied.keys() == ARCHIVES
    assert len(settings) == 2
    rendered = set(re.findall(r"registry\.example/[\w./:-]+", charted.text(*settings)))
    assert rendered == set(copied.values())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ctr --namespace k8s.io images import dist/pyvgpu.tar  # one", {"dist/pyvgpu.tar"}),
        ('for archive in dist/*.tar; do ctr images import "$archive"; done', ARCHIVES),
        ("make images  # dist/pyvgpu.tar, dist/pyvgpu-fast-exit.tar", set()),
    ],
)
def test_imports_are_found(text, expected):
    assert imported(text) == expected
