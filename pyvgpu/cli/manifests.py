"""`pyvgpu manifests`: what `helm install` would make, without helm."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.manifests import rendering, values

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Say what installs pyvgpu in a cluster, as `kubectl apply -f -` takes it: the same as helm makes of
the chart (deploy/chart/pyvgpu), and before it the namespace. What may be set, and to what, is in
the chart's values.yaml: `pyvgpu manifests --values-file` says where that is.
"""
_EXAMPLES = """\
examples:
  pyvgpu manifests | kubectl apply -f -
  pyvgpu manifests --set simulate=h100:2 | kubectl apply -f -      (no GPU needed)
  pyvgpu manifests --set profile=gaia --set agent.options='{--packing=spread}'
  pyvgpu manifests --set scheduler.mode=patch --notes
  pyvgpu manifests -f mine.yaml --namespace vgpu | kubectl diff -f -
"""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu manifests`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add(
        "--set",
        metavar="NAME=VALUE",
        dest="settings",
        action="append",
        default=[],
        help="a value, such as scheduler.mode=patch; may be given again",
    )
    add(
        "--set-string",
        metavar="NAME=VALUE",
        dest="strings",
        action="append",
        default=[],
        help="one that is a string, such as agent.nodeSelector.gpu=true; may be given again",
    )
    add(
        *("-f", "--values"),
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="values in YAML; may be given again, the last counts, and --set over all",
    )
    add(
        "--namespace",
        metavar="NAME",
        default="pyvgpu",
        help="where all but the agents lives (%(default)s)",
    )
    add(
        "--notes",
        action="store_true",
        help="say what is to be done besides, such as how kube-scheduler is told of us",
    )
    add("--values-file", action="store_true", help="say where the values are, with their defaults")


def run(options: argparse.Namespace) -> int:
    """Write the objects."""
    if options.values_file:
        print(rendering.folder() / "values.yaml")
        return 0
    if not _NAME.fullmatch(options.namespace):
        raise errors.UsageError(
            f"--namespace {options.namespace!r}: must be small letters, digits and dashes, such "
            "as pyvgpu"
        )
    given: dict[str, Any] = {}
    for path in options.values:
        given = values.over(given, values.read(path))
    for setting in options.settings:
        given = values.apply(given, setting)
    for setting in options.strings:
        given = values.apply(given, setting, strings=True)
    chart = rendering.Chart.read(rendering.folder())
    if options.notes:
        print(chart.notes(given, options.namespace), end="")
        return 0
    made = chart.documents(given, options.namespace)
    print("---\n".join([rendering.namespace(options.namespace), *made]), end="")
    return 0
