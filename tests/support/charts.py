"""Installs the chart with helm in the cluster of ``make e2e``."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import charted
import render
import rig
from charted import AGENTS, NAMESPACE, RELEASE, VERSION

from pyvgpu.cli import manifests

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

KUBE_SCHEDULER = "localhost/kube-scheduler:1"
LABEL = f"app.kubernetes.io/instance={RELEASE}"
CHART = manifests.chart()

CLUSTER = Path(__file__).parents[1] / "e2e/cluster/cluster"
_OURS = "localhost/pyvgpu:"  # without the tag
_SECONDS = "150s"


def run(*command: object, text: str | None = None) -> str:
    """Run a program that must succeed; return its output."""
    done = subprocess.run(list(map(str, command)), input=text, capture_output=True, text=True)
    if done.returncode and command[:2] in (("kubectl", "wait"), ("kubectl", "rollout")):
        said = " ".join(done.stderr.split())
        raise rig.NotSeenError(
            f"{' '.join(map(str, command))}: {said}; {rig.warnings(rig.as_admin().server)}"
        )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def helm(*arguments: object) -> str:
    """Run helm in the namespace of the release."""
    return run(render.HELM, *arguments, "--namespace", NAMESPACE)


def values(**changes: Any) -> dict[str, Any]:
    """Return the values of an installation with the host paths of the e2e rig."""
    place = Path(os.environ["CLUSTER_RUN"])
    return {
        "simulate": "h100:2",
        "statusPage": {"enabled": True},
        "agent": {
            "state": str(place / "pyvgpu/state"),
            "run": str(place / "pyvgpu/run"),
            "kubelet": os.environ.get("CLUSTER_KUBELET", str(place / "kubelet")),
        },
        "sidecar": {
            "enabled": True,
            "runtime": os.environ["CONTAINERD_ADDRESS"],
            "begun": str(place / "pyvgpu/begun"),
        },
        **changes,
    }


def write(path: Path, what: Mapping[str, Any]) -> Path:
    """Write a values file."""
    path.write_text(json.dumps(what))
    return path


def install(file: Path, verb: str = "install") -> None:
    """Install or upgrade the release, and wait until it runs."""
    more = ["--create-namespace"] if verb == "install" else []
    helm(
        *(verb, RELEASE, CHART, "--values", file),
        *("--wait", "--timeout", _SECONDS, *more),
    )


def clear() -> None:
    """Delete leftovers of other tests with names of ours, such as RBAC rules."""
    things = [*charted.namespaces(), *charted.documents(*charted.EVERYTHING)]
    text = charted.listed(things)
    run("kubectl", "delete", "--ignore-not-found", "--filename", "-", text=text)


@contextlib.contextmanager
def installed(file: Path) -> Iterator[None]:
    """Keep the release installed while the block runs; print what its pods did if that fails."""
    clear()
    try:
        install(file)
        yield
    except BaseException:
        print(story())
        raise
    finally:
        uninstall()


@contextlib.contextmanager
def monitored() -> Iterator[None]:
    """Install the Prometheus operator's CRDs while the block runs."""
    (kinds,) = Path(os.environ["CLUSTER_RUN"]).parent.glob("monitoring-*")
    run("kubectl", "apply", "--server-side", "--filename", kinds)
    try:
        established = ("--for=condition=Established", f"--timeout={_SECONDS}")
        run("kubectl", "wait", *established, "--filename", kinds)
        yield
    finally:
        run("kubectl", "delete", "--ignore-not-found", "--filename", kinds)


def tag_images(tag: str) -> dict[str, str]:
    """Add another tag to our images in the cluster; return it as the chart's image value."""
    for image in ("pyvgpu", "pyvgpu-fast-exit"):
        name = f"localhost/{image}"
        run("ctr", "images", "tag", "--force", f"{name}:{VERSION}", f"{name}:{tag}")
    return {"tag": tag}


def images() -> set[str]:
    """Return the tags of the pyvgpu images in the release's workloads."""
    kinds = "deployments,daemonsets"
    found = run("kubectl", "get", kinds, "--all-namespaces", "--selector", LABEL, "--output=json")
    texts = [
        container["image"]
        for workload in json.loads(found)["items"]
        for container in workload["spec"]["template"]["spec"]["containers"]
    ]
    return {text.rpartition(":")[2] for text in texts if text.startswith(_OURS)}


def set_tag(namespace: str, workload: str, tag: str) -> None:
    """Change the tag of our image in a workload, such as deployment/webhook; await the rollout."""
    where = ("--namespace", namespace)
    found = json.loads(run("kubectl", "get", workload, *where, "--output=json"))
    changed = [
        f"{container['name']}={_OURS}{tag}"
        for container in found["spec"]["template"]["spec"]["containers"]
        if container["image"].startswith(_OURS)
    ]
    run("kubectl", "set", "image", workload, *changed, *where)
    run("kubectl", "rollout", "status", workload, f"--timeout={_SECONDS}", *where)


def things(kinds: str) -> set[str]:
    """Return the objects of these kinds in the namespace of the release."""
    return set(run("kubectl", "get", kinds, *_in_ours(), "--output=name").split())


def notes(file: Path) -> str:
    """Return helm's NOTES for a dry-run upgrade to other values."""
    asked = ("upgrade", RELEASE, CHART, "--values", file, "--dry-run=server")
    return helm(*asked).partition("NOTES:\n")[2]


def uninstall() -> None:
    """Remove the release, and wait until its pods are gone."""
    helm("uninstall", RELEASE, "--ignore-not-found", "--wait", "--timeout", _SECONDS)
    pods_are_gone()


def pods_are_gone() -> None:
    """Wait until our pods and the agents' namespace are gone."""
    run("kubectl", "wait", "pods", "--all", "--for=delete", f"--timeout={_SECONDS}", *_in_ours())
    run("kubectl", "wait", f"namespace/{AGENTS}", "--for=delete", f"--timeout={_SECONDS}")


def roll_out() -> None:
    """Wait for the rollout of every workload in both namespaces."""
    for name in (NAMESPACE, AGENTS):
        kinds = "deployments,daemonsets"
        found = run("kubectl", "get", kinds, "--namespace", name, "--output", "name").split()
        for workload in found:
            waits = ("rollout", "status", workload, f"--timeout={_SECONDS}")
            run("kubectl", *waits, "--namespace", name)


def left() -> list[str]:
    """Return every object with the release's label, of any kind in any namespace."""
    kinds = run("kubectl", "api-resources", "--verbs=list", "--output=name").split()
    everywhere = ("--all-namespaces", "--selector", LABEL, "--output=name")
    return run("kubectl", "get", ",".join(kinds), *everywhere).split()


def story() -> str:
    """Return the description and logs of all pods, for messages of failed tests."""
    said = []
    for name in (NAMESPACE, AGENTS):
        for command in (["describe", "pods"], ["logs", "--all-containers", "--prefix"]):
            pods = ["--selector", "app"] if command[0] == "logs" else []
            done = subprocess.run(
                ["kubectl", "--namespace", name, *command, *pods], capture_output=True, text=True
            )
            said.append(done.stdout + done.stderr)
    return "".join(said)


@functools.cache
def make_scheduler_image(folder: Path) -> str:
    """Build an image of the cluster's kube-scheduler and load it; return its name."""
    program = Path(run("which", "kube-scheduler").strip()).resolve()
    found = run("ldd", program)
    libraries = [word for line in found.splitlines() for word in line.split() if word[:1] == "/"]
    archive = folder / "kube-scheduler.tar"
    run(
        *(sys.executable, rig.DEPLOY / "image.py", archive, KUBE_SCHEDULER, "--level", "1"),
        *(f"--file={library}={library}" for library in libraries),
        *(f"--file={program}=/kube", "--link=/usr/bin/kube-scheduler=/kube"),
    )
    run(CLUSTER, "image", archive)
    archive.unlink()
    return KUBE_SCHEDULER


def _in_ours() -> tuple[str, str]:
    return "--namespace", NAMESPACE
