"""Renders the chart with helm, whole or in parts; needs no cluster.

Without helm, which `make test` builds, tests that need it are skipped, and so are test files that
render the chart at collection; all other tests still run.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pyvgpu.cli import manifests as command

sys.path.append(str(Path(__file__).parents[2] / "deploy"))  # benchmarks add only tests/support
import render

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

RELEASE, NAMESPACE, AGENTS = command.RELEASE, command.NAMESPACE, "pyvgpu-agent"
ABOUT, VALUES, SCHEMA = (
    yaml.safe_load((render.CHART / name).read_text())
    for name in ("Chart.yaml", "values.yaml", "values.schema.json")
)
VERSION = ABOUT["appVersion"]  # also the tag of the images
MONITORED = "monitoring.podMonitor.enabled=true,monitoring.rules.enabled=true"
SECOND = "scheduler.mode=second,kubeScheduler.image=own/kube-scheduler:1"
SIDECARS = "sidecar.enabled=true"
COMPONENTS = (SIDECARS, SECOND, "dra.enabled=true", "profile=gaia", "statusPage.enabled=true")
EVERYTHING = (
    SIDECARS,
    "monitoring.dashboard.enabled=true",
    "dra.enabled=true,profile=gaia,webhook.environmentPolicy=true,statusPage.enabled=true",
    "scheduler.mode=second,kubeScheduler.image=any/image:1",
    "webhook.imageRules[0].prefix=a,webhook.imageRules[0].to=b/",
)
WITHOUT_HELM = "needs helm: make test builds it"
needs_helm = pytest.mark.skipif(shutil.which(render.HELM) is None, reason=WITHOUT_HELM)
_SOURCE = re.compile(r"^# Source: pyvgpu/templates/(\S+)$", re.MULTILINE)


class RefusedError(Exception):
    """helm refuses to render these values; the message is its reason."""


def text(
    *settings: str, values: Mapping[str, Any] | None = None, namespace: str = NAMESPACE
) -> str:
    """Return helm's output for a values file and --set options; may raise RefusedError."""
    return _text(settings, json.dumps(values or {}), namespace)


@functools.lru_cache(maxsize=200)
def _text(settings: tuple[str, ...], values: str, namespace: str) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(values)
        file.flush()
        options = [word for setting in settings for word in ("--set", setting)]
        try:
            return render.template("--values", file.name, *options, namespace=namespace)
        except FileNotFoundError:
            pytest.skip(WITHOUT_HELM, allow_module_level=True)
        except subprocess.CalledProcessError as exc:
            raise RefusedError(exc.stderr) from exc


def documents(*settings: str, **more: Any) -> list[Any]:
    """Return the rendered objects; arguments as for `text`."""
    return [document for document in yaml.safe_load_all(text(*settings, **more)) if document]


def made(*settings: str, **more: Any) -> dict[tuple[str, str], Any]:
    """Return the rendered objects by kind and name; arguments as for `text`."""
    return {
        (document["kind"], document["metadata"]["name"]): document
        for document in documents(*settings, **more)
    }


def part(templates: Iterable[str], *settings: str, **more: Any) -> list[Any]:
    """Return the objects of templates with these path prefixes, such as `agent/rights.yaml`."""
    begins, found = tuple(templates), []
    for document in text(*settings, **more).split("\n---\n"):
        source = _SOURCE.search(document)
        if source and source[1].startswith(begins):
            found.append(yaml.safe_load(document))
    assert found, f"no template of {begins} makes an object with {settings}"
    return found


def namespaces() -> list[Any]:
    """Return the Namespace objects of the installation."""
    ours = render.render("default").partition("\n---\n")[0]
    return [yaml.safe_load(ours), *part(["agent/namespace.yaml"])]


def objects(*texts: str) -> dict[tuple[str, str, str], Any]:
    """Return objects by kind, namespace and name; assert that no key repeats."""
    found: dict[tuple[str, str, str], Any] = {}
    for thing in (document for text in texts for document in yaml.safe_load_all(text) if document):
        meta = thing["metadata"]
        key = thing["kind"], meta.get("namespace", ""), meta["name"]
        assert key not in found, key
        found[key] = thing
    return found


def arguments(things: Mapping[tuple[str, str], Any], kind: str, name: str) -> list[str]:
    """Return the arguments of a workload's only container."""
    (container,) = things[kind, name]["spec"]["template"]["spec"]["containers"]
    found: list[str] = container["args"]
    return found


def listed(things: Iterable[Any]) -> str:
    """Return objects as a JSON List for kubectl."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(things)})
