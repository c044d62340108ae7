"""`pyvgpu manifests`: pre-rendered manifests of the Helm chart, for use without helm."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors

if TYPE_CHECKING:
    import argparse

RELEASE, NAMESPACE = "pyvgpu", "pyvgpu"
KUBERNETES = "1.36.0"  # `helm template` asks no cluster, and some builds of helm assume an old one
# Sets of manifests by name, each with helm's --set values and its purpose.
SETS = {
    "default": ((), "agents and webhook"),
    "simulate": (("simulate=h100:2",), "the same, with two simulated GPUs on each node"),
    "gaia": (("profile=gaia",), "the same, for pods that use gpu-manager's resources"),
    "sidecars": (("sidecar.enabled=true",), "with the parts that end sidecars of Jobs"),
    "dra": (("dra.enabled=true",), "devices through claims (DRA), with classes and policies"),
    "second": (
        ("scheduler.mode=second", "kubeScheduler.image=localhost/kube-scheduler:1"),
        "with the scheduler extender, and a second kube-scheduler that uses it",
    ),
}
_DESCRIPTION = """\
Print the Kubernetes manifests of one set, for `kubectl apply -f -`: the namespace, and the output
of `helm template` with the set's values. Any other values need helm itself, with the same chart:
`--helm` prints the command.
"""
_EXAMPLES = """\
examples:
  pyvgpu manifests | kubectl apply -f -
  pyvgpu manifests simulate | kubectl apply -f -      (no GPU needed)
  pyvgpu manifests second --helm
  helm install pyvgpu "$(pyvgpu manifests --chart)" --namespace pyvgpu --create-namespace \\
      --set agent.audit=false

sets:
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu manifests`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES + "".join(f"  {name:10}{said}\n" for name, (_, said) in SETS.items())
    add = parser.add_argument
    add("name", metavar="SET", nargs="?", default="default", help=f"one of {', '.join(SETS)}")
    add("--helm", action="store_true", help="print the helm command that renders the same")
    add("--chart", action="store_true", help="print the folder of the chart")
    add(
        *("-f", "--values", "--namespace", "--set-string", "--set"),
        dest="others",
        metavar="VALUE",
        action="append",
        default=[],
        help="options of helm: rejected, with the helm command that accepts them",
    )


def run(options: argparse.Namespace) -> int:
    """Print the set, or the helm command that renders it."""
    name, helm = options.name, _command(options.name)
    if name not in SETS:
        raise errors.UsageError(
            f"SET {name!r}: must be one of {', '.join(SETS)}; for any other values: {helm}"
        )
    if options.others:
        raise errors.UsageError(
            f"{shlex.join(options.others)}: values are for helm, such as: {helm} "
            "--set agent.audit=false"
        )
    if options.helm or options.chart:
        print(helm if options.helm else chart())
    else:
        print(_folder("plain").joinpath(f"{name}.yaml").read_text(), end="")
    return 0


def chart() -> Path:
    """Return the folder of the chart."""
    return _folder("chart/pyvgpu")


def _command(name: str) -> str:
    """Return the helm command that renders a set, the default one if *name* is unknown."""
    settings, _ = SETS.get(name, SETS["default"])
    sets = [word for setting in settings for word in ("--set", setting)]
    where = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES)
    return shlex.join(["helm", "template", RELEASE, str(chart()), *where, *sets])


def _folder(name: str) -> Path:
    """Return a folder of deploy/: inside an installed package, beside it in the sources."""
    package = Path(__file__).resolve().parents[1]
    for above in (package, package.parent):
        if (found := above / "deploy" / name).is_dir():
            return found
    raise errors.UnavailableError(f"{package}/deploy/{name}: is missing; install pyvgpu again")
