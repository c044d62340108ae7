"""The chart, and what becomes of it with given values: objects for `kubectl apply -f -`."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.manifests import functions, schema, template, values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RELEASE = "pyvgpu"
_NOTES = "NOTES.txt"
_SUFFIXES = (".yaml", ".tpl", ".txt", ".json")
# helm's order; what is not in it comes last.
_ORDER = (
    *("Namespace", "NetworkPolicy", "PodDisruptionBudget", "ServiceAccount", "Secret"),
    *("ConfigMap", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Service"),
    *("DaemonSet", "Deployment", "MutatingWebhookConfiguration"),
    "ValidatingWebhookConfiguration",
)
_KIND = re.compile(r"^kind: (\w+)$", re.MULTILINE)
_SEPARATOR = re.compile(r"^---\s*$", re.MULTILINE)
_NAMESPACE = """\
# Of the programs that are asked by the API server and by kube-scheduler, or follow the cluster.
# What ends sidecars has folders of nodes: therefore the label.
apiVersion: v1
kind: Namespace
metadata:
  name: {}
  labels: {{pod-security.kubernetes.io/enforce: privileged}}
"""


def folder() -> Path:
    """Return where the chart is: beside this file, or in the sources."""
    here = Path(__file__).resolve()
    for found in (here.parent / "pyvgpu", here.parents[2] / "deploy/chart/pyvgpu"):
        if (found / "Chart.yaml").is_file():
            return found
    raise errors.UnavailableError(f"{here.parent}/pyvgpu: is missing; install pyvgpu again")


@dataclasses.dataclass(frozen=True, slots=True)
class Chart:
    """A chart as it was read."""

    about: dict[str, Any]
    values: dict[str, Any]
    schema: dict[str, Any]
    templates: dict[str, str]  # texts by their names
    files: dict[str, str]  # that templates show as they are, likewise

    @classmethod
    def read(cls, where: Path) -> Chart:
        """Return the chart in a folder."""
        return cls(
            values.read(where / "Chart.yaml"),
            values.read(where / "values.yaml"),
            json.loads((where / "values.schema.json").read_text()),
            _texts(where / "templates", where / "templates"),
            _texts(where / "monitoring", where),
        )

    def documents(self, given: dict[str, Any], namespace: str) -> list[str]:
        """Return what is to be applied, in its order; DataError if the values make no sense."""
        rendered = self._rendered(given, namespace)
        texts = (text for name, text in rendered.items() if name.endswith(".yaml"))
        return sorted(_documents(texts), key=_place)

    def notes(self, given: dict[str, Any], namespace: str) -> str:
        """Return what is said to whoever has installed it; DataError likewise."""
        return self._rendered(given, namespace)[_NOTES].strip() + "\n"

    def _file(self, name: str) -> str:
        """Return a file of the chart, where helm would return nothing if there is none."""
        if name not in self.files:
            raise template.TemplateError(f"{name}: there is no such file in the chart")
        return self.files[name]

    def _rendered(self, given: dict[str, Any], namespace: str) -> dict[str, str]:
        """Return what becomes of each template, by its name."""
        merged = values.merge(self.values, given)
        schema.check(merged, self.schema)
        data = {
            "Values": merged,
            "Chart": {"Name": self.about["name"], "AppVersion": str(self.about["appVersion"])},
            "Release": {"Name": RELEASE, "Namespace": namespace},
            "Files": {"Get": self._file},
        }
        engine = template.Engine(functions.FUNCTIONS)
        blocks = {name: engine.add(text, name) for name, text in self.templates.items()}
        return {
            name: engine.render(block, data)
            for name, block in blocks.items()
            if not name.endswith(".tpl")
        }


def _texts(folder: Path, above: Path) -> dict[str, str]:
    """Return what is in the files of a folder, by their names from the one above on."""
    files = sorted(it for it in folder.rglob("*") if it.suffix in _SUFFIXES)
    return {it.relative_to(above).as_posix(): it.read_text() for it in files}


def _documents(rendered: Iterable[str]) -> Iterator[str]:
    for text in rendered:
        yield from (it.strip("\n") + "\n" for it in _SEPARATOR.split(text) if _KIND.search(it))


def _place(document: str) -> int:
    kind = _KIND.findall(document)[0]
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)


def namespace(name: str) -> str:
    """Return the namespace that helm makes with --create-namespace, and its label."""
    return _NAMESPACE.format(name)
