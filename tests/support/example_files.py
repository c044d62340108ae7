"""Reads the files of examples/, and follows the instructions in their heads.

All of them use one image, which tests replace by an image of their own; nothing else is changed.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parents[2] / "examples"
PROGRAMS = FOLDER / "programs"
MANIFESTS = sorted(path.name for path in FOLDER.glob("*.yaml"))
IMAGE = "python:3.12-slim"  # in all examples
OURS = "localhost/examples:1"  # its replacement in the cluster of `make e2e`

_COMMAND = re.compile(r"^#   (\S.*)$", re.MULTILINE)


def head(name: str) -> str:
    """Return the comment block at the start of a file."""
    return re.split(r"^[^#]", (FOLDER / name).read_text(), maxsplit=1, flags=re.MULTILINE)[0]


def commands(name: str) -> list[str]:
    """Return the commands that the head of a file tells the reader to type."""
    return _COMMAND.findall(head(name))


def objects(name: str) -> list[dict[str, Any]]:
    """Return the objects in a file."""
    return [document for document in yaml.safe_load_all((FOLDER / name).read_text()) if document]


def images(thing: Any) -> Iterator[str]:
    """Yield every image that an object names."""
    yield from (str(table["image"]) for table in _tables(thing) if "image" in table)


def pods(thing: Any) -> Iterator[dict[str, Any]]:
    """Yield the pods that would be created from an object, as a webhook receives them.

    An Argo template with one container is a pod, too.
    """
    for table in _tables(thing):
        if "container" in table:
            yield _pod({}, {"containers": [{"name": "main", **table["container"]}]})
        elif "containers" in table.get("spec", {}):
            yield _pod(table.get("metadata", {}), table["spec"])


def write_image(archive: Path, name: str, *more: str) -> None:
    """Write an image with Python and a shell; run `make images` first."""
    busybox = Path(os.environ["PATH"].partition(":")[0]) / "busybox"
    root = FOLDER.parent
    subprocess.run(
        [
            *(sys.executable, root / "deploy/image.py", archive, name, "--level", "1"),
            f"--on={root / 'dist/pyvgpu.tar'}",
            f"--file={busybox}=/bin/busybox",
            *("--link=/bin/sh=busybox", "--link=/bin/tail=busybox"),
            f"--link=/usr/local/bin/python3=python3.{sys.version_info.minor}",
            *more,
        ],
        check=True,
    )


def make_image(folder: Path) -> None:
    """Build the examples' replacement image and load it into the cluster."""
    archive = folder / "examples.tar"
    write_image(archive, OURS)
    cluster = FOLDER.parent / "tests/e2e/cluster/cluster"
    subprocess.run([cluster, "image", archive], check=True, capture_output=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """A user who follows the examples in a separate namespace."""

    folder: Path
    namespace: str

    def begin(self) -> None:
        """Copy the files, and point kubectl at the namespace."""
        shutil.copytree(FOLDER, self.folder / "examples")
        for file in (self.folder / "examples").glob("*.yaml"):
            file.write_text(file.read_text().replace(f"image: {IMAGE}", f"image: {OURS}"))
        shutil.copy(os.environ["KUBECONFIG"], self.kubeconfig)
        self.do(f"kubectl config set-context --current --namespace={self.namespace}")
        self.do("kubectl create configmap examples --from-file=examples/programs")

    def follow(self, name: str) -> list[str]:
        """Run the commands in the head of a file; return the output of each."""
        steps = [command for command in commands(name) if " create configmap " not in command]
        return [self.do(step) for step in steps]

    def do(self, command: str) -> str:
        """Run a command that must succeed; return its output."""
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"


def _tables(thing: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping in a value, outer ones first."""
    if isinstance(thing, dict):
        yield thing
    for value in thing.values() if isinstance(thing, dict) else thing:
        if isinstance(value, dict | list):
            yield from _tables(value)


def _pod(metadata: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """Return a pod with what the API server adds: requests, and quantities as strings."""
    containers = []
    for container in spec["containers"]:
        given = container.get("resources", {})
        limits = {key: str(value) for key, value in given.get("limits", {}).items()}
        asked = {"limits": limits, "requests": dict(limits)} if limits else {}
        containers.append({**container, "resources": {**given, **asked}})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "p-", "namespace": "team", **metadata},
        "spec": {"schedulerName": "default-scheduler", **spec, "containers": containers},
    }
