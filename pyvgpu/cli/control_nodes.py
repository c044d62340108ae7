"""`pyvgpu control-nodes`: gives the node agent, and nobody else, the nodes of all devices."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, log

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Give the node agent the nodes of this node's devices, so that its container needs no privilege to
open them: as pyvgpu.io/control, which one pod can have, of the agent's namespace alone. Needs CDI.
"""
_EXAMPLES = """\
examples:
  pyvgpu control-nodes --namespace pyvgpu-agent
  pyvgpu control-nodes --driver-root /run/nvidia/driver
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu control-nodes`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add("--namespace", metavar="NAME", help="the namespace of the agent ($POD_NAMESPACE)")
    add(
        "--device-plugin-path",
        metavar="DIR",
        default="/var/lib/kubelet/device-plugins",
        help="where kubelet meets device plugins (%(default)s)",
    )
    add(
        "--pod-resources",
        metavar="SOCKET",
        default="/var/lib/kubelet/pod-resources/kubelet.sock",
        help="where kubelet says who has what (%(default)s)",
    )
    add(
        "--cdi",
        metavar="DIR",
        default="/var/run/cdi",
        help="where the container runtime looks for CDI specifications (%(default)s)",
    )
    add(
        "--driver-root",
        metavar="DIR",
        default="/",
        help="where the root of the system that has the nodes is mounted (%(default)s)",
    )
    add("--verbose", action="store_true", help="say more")


def run(options: argparse.Namespace) -> int:
    """Serve kubelet until told to end."""
    namespace = options.namespace or os.environ.get("POD_NAMESPACE")
    if not namespace:
        raise errors.UsageError("--namespace '': must name the agent's, such as pyvgpu-agent")
    with errors.needing("grpcio", "node"):
        from pyvgpu.deviceplugin import control
    log.begin(options.verbose)
    one = control.Control(
        control.Settings(
            namespace,
            plugins=Path(options.device_plugin_path).absolute(),
            pod_resources=Path(options.pod_resources).absolute(),
            specifications=Path(options.cdi).absolute(),
            driver_root=Path(options.driver_root).absolute(),
        )
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: one.stop())
    one.run()
    return 0
