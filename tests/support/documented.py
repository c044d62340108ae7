"""Reads the fenced commands of documentation pages, with the marks that name their runner."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import render
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

ROOT = Path(__file__).parents[2]
CLUSTER = "cluster"  # mark of the commands that the e2e install suite runs
ONE_MACHINE = "one machine"  # mark of those that tests/docs/test_one_machine.py runs
SIMULATOR = "simulator"  # mark of examples that it runs with files and runs of the reader's
DOCKER = "docker"  # mark of the command that tests/docker runs
WHEELS = "wheels"  # mark of those that tests/wheels/test_documented.py runs
_FENCED = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the mark, the language and the text of each fenced block of a page."""
    for found in _FENCED.finditer(page.read_text()):
        yield found["mark"] or "", found["language"], textwrap.dedent(found["text"])


def steps(page: str) -> list[str]:
    """Return the blocks marked for a cluster on a page, a path from docs/, in order."""
    found = [text for mark, _, text in blocks(ROOT / "docs" / page) if mark == CLUSTER]
    assert found, f"docs/{page} has no step for a cluster"
    return found


def objects(page: str) -> list[Any]:
    """Return the complete Kubernetes objects on a page of docs/."""
    found = [
        yaml.safe_load(text)
        for _, language, text in blocks(ROOT / "docs" / page)
        if language == "yaml"
    ]
    return [thing for thing in found if "apiVersion" in thing]


def follow(step: str, folder: Path, values: Path, **variables: str) -> str:
    """Run a step in *folder*, with extra chart *values*; return its output.

    `make images` has been done by `make e2e`, whose archives are in the checkout's dist.
    """
    program = Path(sys.executable).with_name("pyvgpu")
    extra = shlex.quote(str(values))
    programs = {
        "sudo": 'exec "$@"',
        "make": '[ "$*" = images ]',
        "helm": f'[ "$1" != install ] || set -- "$@" --values {extra}\nexec {render.HELM} "$@"',
        # `pyvgpu manifests` renders the same set as usual, with these values over its own.
        "pyvgpu": f"""[ "$1" = manifests ] || exec {program} "$@"
{program} "$@" | sed '/^---$/,$d'
eval "$({program} "$@" --helm) --values {extra}"
""",
    }
    own = folder / "bin"
    own.mkdir(exist_ok=True)
    for name, script in programs.items():
        (own / name).write_text(f"#!/bin/sh\n{script}\n")
        (own / name).chmod(0o755)
    if not (folder / "dist").exists():
        (folder / "dist").symlink_to(ROOT / "dist")
    path = f"{own}:{program.parent}:{os.environ['PATH']}"
    bash = ("bash", "-euxo", "pipefail", "-c", step)
    return output_of(bash, folder, {**os.environ, **variables, "PATH": path})


def output_of(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Run a command in *folder*, which must succeed; return its output."""
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout
