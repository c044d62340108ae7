"""Runs pyvgpu with only the dependencies of `pip install pyvgpu`, or of that with an extra.

Modules of the distributions in `[project] dependencies` and the extra can be imported; those of
every other installed distribution cannot. Nothing is installed, and no network is needed.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from packaging import requirements, utils

if TYPE_CHECKING:
    from collections.abc import Mapping

# Each command that needs an extra: its arguments, and the extra.
NEEDS = {
    ("main", "device-plugin"): (("--simulate", "h100"), "node"),
    ("main", "dra-driver"): (("--simulate", "h100"), "node"),
    ("main", "sidecar-controller"): ((), "kubernetes"),
    ("main", "sidecar-node"): (("--node", "node-1"), "kubernetes"),
    ("main", "webhook"): ((), "kubernetes"),
    ("main", "claim-controller"): ((), "kubernetes"),
    ("main", "scheduler"): ((), "kubernetes"),
    ("main", "status-page"): ((), "kubernetes"),
    ("main", "simulate-schedule"): (("pod.yaml",), "kubernetes"),
    ("main", "explain"): (("pod",), "kubernetes"),
    ("main", "demo"): (("--report", "report.html"), "report"),
    ("kubectl_main", "top"): ((), "kubernetes"),
    ("kubectl_main", "ps"): ((), "kubernetes"),
    ("kubectl_main", "explain"): (("pod",), "kubernetes"),
    ("kubectl_main", "audit"): ((), "kubernetes"),
    ("kubectl_main", "suspend"): (("pod", "--keep"), "kubernetes"),
    ("kubectl_main", "resume"): (("pod",), "kubernetes"),
}
POD = "kind: Pod\nmetadata: {name: pod}\nspec: {containers: [{name: main}]}\n"  # pod.yaml

# Hides the modules named in the first argument, then runs the command line in the others.
_PROGRAM = """
import json, sys
blocked = frozenset(json.loads(sys.argv.pop(1)))
class Finder:
    def __init__(self, finder):
        self._finder = finder
    def __getattr__(self, name):
        return getattr(self._finder, name)
    def find_spec(self, name, *arguments):
        hidden = name.partition(".")[0] in blocked
        return None if hidden else self._finder.find_spec(name, *arguments)
for name in [loaded for loaded in sys.modules if loaded.partition(".")[0] in blocked]:
    del sys.modules[name]  # of .pth files
sys.meta_path[:] = map(Finder, sys.meta_path)
from pyvgpu import cli
sys.exit(getattr(cli, sys.argv.pop(1))())
"""


def installed(*extras: str) -> frozenset[str]:
    """Return pyvgpu and every distribution that pip installs with it and these extras."""
    found: set[tuple[str, str]] = set()
    waiting = [("pyvgpu", extra) for extra in ("", *extras)]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        found.add(one)
        for text in importlib.metadata.requires(one[0]) or ():
            needed = requirements.Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": one[1]}):
                named = utils.canonicalize_name(needed.name)
                waiting += [(named, extra) for extra in ("", *needed.extras)]
    return frozenset(name for name, _ in found)


def top_level(distribution: importlib.metadata.Distribution) -> set[Path]:
    """Return the files and folders of a *distribution* directly below site-packages."""
    site = Path(str(distribution.locate_file("")))
    names = {file.parts[0] for file in distribution.files or ()}
    return {site / name for name in names - {"..", "__pycache__"}}


@functools.cache
def blocked(*extras: str) -> tuple[str, ...]:
    """Return the top-level modules that no distribution in :func:`installed` provides."""
    there = installed(*extras)
    return tuple(
        sorted(
            module
            for module, owners in importlib.metadata.packages_distributions().items()
            if not there.intersection(map(utils.canonicalize_name, owners))
        )
    )


def run(
    main: str, *arguments: object, env: Mapping[str, str] | None = None, extra: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the entry point *main* of pyvgpu.cli with *arguments* to completion."""
    hidden = json.dumps(blocked(*filter(None, [extra])))
    command = [sys.executable, "-W", "ignore", "-c", _PROGRAM, hidden, main]
    return subprocess.run(
        [*command, *map(str, arguments)],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
