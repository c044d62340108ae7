"""`pyvgpu device-plugin`: the node agent, which gives containers their parts of the devices."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
from typing import TYPE_CHECKING, Any

from pyvgpu import ending, errors, log, simulator
from pyvgpu.allocator import facts
from pyvgpu.cli import gpu_manager, places, table
from pyvgpu.cli.agent import STATE
from pyvgpu.cli.table import Group, Option
from pyvgpu.deviceplugin import audit, gaia, health
from pyvgpu.deviceplugin.dra import doors
from pyvgpu.deviceplugin.settings import DEFAULT_LISTEN, Placement, Profile, Settings

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
  pyvgpu device-plugin --simulate h100:2                            (no GPU needed)
  pyvgpu device-plugin --placement extender --placement-key /etc/pyvgpu/placement
  pyvgpu device-plugin --profile gaia --volume-config /etc/gpu-manager/volume.conf
"""


def _machine(text: str, flag: str) -> str:
    try:
        simulator.parse_machine(text)
    except errors.UsageError as exc:
        raise errors.UsageError(f"{flag} {text!r}: {exc}") from exc
    return text


PLACES = Group(
    "where things are",
    (
        Option(
            "--node",
            "NAME",
            "node",
            "the node that this is ($NODE_NAME, else the host's name)",
            table.word,
        ),
        Option(
            "--state",
            "DIR",
            "state",
            "where grants are remembered, and the mirror of the driver is",
            table.path,
            STATE,
        ),
        Option(
            "--run",
            "DIR",
            "run",
            "where the files of running containers are, best in memory",
            table.path,
            "/run/pyvgpu-agent",
        ),
        *places.OPTIONS,
        Option(
            "--simulate",
            "MACHINE",
            "simulate",
            "simulated devices in the place of the node's, such as h100 or t4:2 (none)",
            _machine,
        ),
        Option(
            "--plugins-registry",
            "DIR",
            "registry",
            "where kubelet looks for DRA drivers",
            table.path,
            "/var/lib/kubelet/plugins_registry",
        ),
        Option(
            "--plugins",
            "DIR",
            "drivers",
            "where DRA drivers have the sockets on which kubelet asks them",
            table.path,
            "/var/lib/kubelet/plugins",
        ),
        Option(
            "--kubeconfig",
            "FILE",
            "kubeconfig",
            "how to reach the API server, as YAML or JSON (in a pod: as the pod)",
            table.path,
        ),
    ),
)
SHARING = Group(
    "how devices are shared",
    (
        Option(
            "--memory-unit",
            "SIZE",
            "unit",
            "what 1 of pyvgpu.io/vmemory is: a multiple of 1 MiB",
            table.mebibytes,
            "256Mi",
        ),
        Option(
            "--packing",
            "binpack|spread",
            "packing",
            "fill devices one after the other, or all evenly",
            table.one_of(facts.Packing),
            "binpack",
        ),
        Option(
            "--placement",
            "agent|extender",
            "placement",
            "which component chooses devices: this agent, or the scheduler extender alone",
            table.one_of(Placement),
            "agent",
        ),
        Option(
            "--placement-key",
            "FILE",
            "placement_key",
            "the key, of 32 bytes or more, by which the extender seals what it chooses; or a "
            "folder of keys, any of which will do",
            table.path,
        ),
        Option(
            "--compute-class",
            "PART=NAME",
            "classes",
            "call devices with PART in their model's name NAME; may be given several times, the "
            "first that fits counts",
            table.pair("H100=fast"),
            many=True,
        ),
        Option(
            "--door",
            "[UUID=]plugin|dra",
            "doors",
            "through which door devices, or that one, are given out: kubelet's counters, or "
            "claims; may be given several times",
            many=True,
        ),
        Option(
            "--door-seconds",
            "SECONDS",
            "door_seconds",
            "how long a device is closed, at least, before it changes its door: from 1 to 86400",
            table.seconds(1, 86_400, 30),
            "30",
        ),
        Option(
            "--beside-nvidia",
            "",
            "beside_nvidia",
            "offer devices although NVIDIA's device plugin, or another with its resources, gives "
            "out GPUs of this node: then each GPU may be given out twice",
        ),
        Option(
            "--bind-deadline",
            "SECONDS",
            "bind_seconds",
            "how long it may be unknown whose a grant is, before the pod is given up: from 1 to "
            "86400",
            table.seconds(1, 86_400, 60),
            "60",
        ),
    ),
)
CONTAINERS = Group(
    "what containers get",
    (
        Option(
            "--profile",
            "pyvgpu|gaia",
            "profile",
            "whose names pods use for what they ask and get: ours, or gpu-manager's",
            table.one_of(Profile),
            "pyvgpu",
        ),
        Option(
            "--volume-config",
            "FILE",
            "volumes",
            "gpu-manager's volume.conf: which of the driver's files they get (all)",
            gaia.read_volumes,
        ),
        Option(
            "--extra-config",
            "FILE",
            "nodes",
            "gpu-manager's extra-config.json: more nodes in /dev that they get (none)",
            gaia.read_nodes,
        ),
        Option(
            "--no-require-cdi",
            "",
            "require_cdi",
            "do without CDI: quotas hold, but containers see the nodes of all devices",
            given=False,
        ),
        Option(
            "--no-driver-limits",
            "",
            "driver_limits",
            "leave containers to the shim alone, where the driver could hold them to their memory "
            "itself, too",
            given=False,
        ),
        Option(
            "--node-dev",
            "DIR",
            "node_dev",
            "without CDI: where the node itself has the nodes of devices, if this agent has them "
            "elsewhere (/dev of --driver-root)",
            table.path,
        ),
    ),
)
HEALTH = Group(
    "when a device is sick",
    (
        Option(
            "--ignore-xids",
            "NUMBERS",
            "ignored_xids",
            "Xids that say nothing of a device, with commas between them; '' for none",
            table.numbers(1, 9999, "13,31,43"),
            ",".join(map(str, sorted(health.APPLICATION_XIDS))),
        ),
        Option(
            "--recover-seconds",
            "SECONDS",
            "recover_seconds",
            "after how long without trouble it is well again: from 1 to 86400",
            table.seconds(1, 86_400, 60),
            "60",
        ),
    ),
)
WATCHING = Group(
    "what is seen, and what is done about it",
    (
        Option(
            "--listen",
            "[ADDRESS:]PORT|none",
            "listen",
            f"where figures, health and usage are answered; none: nowhere ({DEFAULT_LISTEN})",
            table.listening,
        ),
        Option(
            "--display",
            "SOCKET",
            "display",
            "where gpu-manager's gRPC service is answered, such as /var/run/gpu-manager.sock "
            "(nowhere)",
            table.path,
        ),
        Option(
            "--audit-action",
            "report|kill",
            "audit_action",
            "what becomes of a process that goes past its quota: it is told, or ended",
            table.one_of(audit.Action),
            "report",
        ),
    ),
)
SAYING = Group(
    "what is said",
    (
        Option("--verbose", "", "verbose", "say more"),
        Option(
            "--log-format",
            "text|json",
            "form",
            "lines for people, or an object of JSON in each",
            table.one_of(log.Format),
            "text",
        ),
    ),
)
GROUPS = (PLACES, SHARING, CONTAINERS, HEALTH, WATCHING, SAYING)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu device-plugin`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    for group in GROUPS:
        group.add(parser)
    gpu_manager.add_options(parser)


def settings_of(
    options: argparse.Namespace, door: doors.Door = doors.Door.PLUGIN
) -> tuple[Settings, dict[str, Any]]:
    """Return what *options* mean for the agent, and for what it says; UsageError if nothing.

    *door* is that of devices of which nothing else is said.
    """
    theirs = gpu_manager.read(options)
    found = {**PLACES.read(options), **SHARING.read(options), **CONTAINERS.read(options)}
    found |= WATCHING.read(options)
    found = {**theirs, **found}  # ours count
    found.setdefault("node", os.environ.get("NODE_NAME") or socket.gethostname())
    said = {"verbose": found.pop("verbose", False), **SAYING.read(options)}
    rules = dataclasses.replace(health.Rules(), **HEALTH.read(options))
    found["doors"] = doors.parse(found.get("doors", ()), door)
    made = Settings(**found, health=rules)
    if (made.placement is Placement.EXTENDER) != (made.placement_key is not None):
        raise errors.UsageError(
            "--placement extender and --placement-key FILE go together, such as --placement "
            "extender --placement-key /etc/pyvgpu/placement"
        )
    return made, said


def run(options: argparse.Namespace) -> int:
    """Serve kubelet until told to end."""
    return serve(options, doors.Door.PLUGIN)


def serve(options: argparse.Namespace, door: doors.Door) -> int:
    """Be the agent, whose devices are given out through *door* where nothing else is said."""
    settings, said = settings_of(options, door)
    with errors.needing("grpcio", "node"):
        from pyvgpu.deviceplugin import agent, frugal, simulated
    log.begin(**said)
    for line in gpu_manager.warnings(options):
        logging.getLogger(__name__).warning("%s", line)
    frugal.begin()
    one = agent.Agent(simulated.settle(settings))
    ending.on_signals(one.stop)
    one.run()
    return 0
