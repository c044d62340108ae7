"""`pyvgpu device-plugin`: the node agent, which gives containers their parts of the devices."""

from __future__ import annotations

import logging
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, quantity
from pyvgpu.allocator import facts

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Offer the devices of this node to kubelet as pyvgpu.io/vcore (100 of a device) and
pyvgpu.io/vmemory (units of its memory), and hold each container to what it asked for. Containers
get it by CDI, which containerd and CRI-O have on.
"""
_EXAMPLES = """\
examples:
  pyvgpu device-plugin --node "$NODE_NAME"
  pyvgpu device-plugin --driver-root /run/nvidia/driver --packing spread
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu device-plugin`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add("--node", metavar="NAME", help="the node that this is ($NODE_NAME, else the host's name)")
    add(
        "--state",
        metavar="DIR",
        default="/var/lib/pyvgpu",
        help="where grants are remembered, and the mirror of the driver is (%(default)s)",
    )
    add(
        "--run",
        metavar="DIR",
        default="/run/pyvgpu-agent",
        help="where the files of running containers are, best in memory (%(default)s)",
    )
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
        help="where the root of the system that has the driver is mounted (%(default)s)",
    )
    add(
        "--memory-unit",
        metavar="SIZE",
        default="256Mi",
        help="what 1 of pyvgpu.io/vmemory is (%(default)s)",
    )
    add(
        "--packing",
        metavar="binpack|spread",
        choices=[it.value for it in facts.Packing],
        default=facts.Packing.BINPACK.value,
        help="fill devices one after the other, or all evenly (%(default)s)",
    )
    add(
        "--bind-deadline",
        metavar="SECONDS",
        default="60",
        help="how long whose a grant is may be unknown (%(default)s)",
    )
    add(
        "--kubeconfig",
        metavar="FILE",
        help="how to reach the API server, as JSON (in a pod: as the pod)",
    )
    add(
        "--no-require-cdi",
        action="store_true",
        help="do without CDI: quotas hold, but containers see the nodes of all devices",
    )
    add("--verbose", action="store_true", help="say more")


def run(options: argparse.Namespace) -> int:
    """Serve kubelet until told to end."""
    try:
        from pyvgpu.deviceplugin import agent, settings
    except ImportError as exc:
        raise errors.UnavailableError(
            "grpcio is not installed: pip install 'pyvgpu[node]'"
        ) from exc
    chosen = settings.Settings(
        node=options.node or os.environ.get("NODE_NAME") or socket.gethostname(),
        state=_path(options.state, "--state"),
        run=_path(options.run, "--run"),
        plugins=_path(options.device_plugin_path, "--device-plugin-path"),
        pod_resources=_path(options.pod_resources, "--pod-resources"),
        specifications=_path(options.cdi, "--cdi"),
        driver_root=_path(options.driver_root, "--driver-root"),
        unit=_unit(options.memory_unit),
        packing=facts.Packing(options.packing),
        bind_seconds=_seconds(options.bind_deadline),
        kubeconfig=_path(options.kubeconfig, "--kubeconfig") if options.kubeconfig else None,
        require_cdi=not options.no_require_cdi,
    )
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    one = agent.Agent(chosen)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: one.stop())
    one.run()
    return 0


def _path(text: str, option: str) -> Path:
    if not text:
        raise errors.UsageError(f"{option} '': must name a path, such as /var/lib/pyvgpu")
    return Path(text).absolute()


def _unit(text: str) -> int:
    unit = quantity.parse_size(text, "--memory-unit")
    if unit % (1 << 20):
        raise errors.UsageError(
            f"--memory-unit {text!r}: must be a multiple of 1 MiB, such as 256Mi"
        )
    return unit


def _seconds(text: str) -> float:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 86_400):
        raise errors.UsageError(
            f"--bind-deadline {text!r}: must be a whole number of seconds from 1 to 86400, "
            "such as 60"
        )
    return float(text)
