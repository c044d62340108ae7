"""`pyvgpu device-plugin`: the node agent, which gives containers their shares of devices."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, log, names, oversubscription
from pyvgpu.allocator import datatypes
from pyvgpu.cli import gpu_manager, node_options, places, table, termination
from pyvgpu.cli.agent_options import STATE
from pyvgpu.cli.table import Group, Option
from pyvgpu.deviceplugin import agent_settings, allocation_api
from pyvgpu.deviceplugin.agent_settings import DEFAULT_LISTEN, AgentSettings, Placement, Profile
from pyvgpu.deviceplugin.allocation_api import Api
from pyvgpu.deviceplugin.gpu_manager import profile
from pyvgpu.deviceplugin.kubelet import device_ids
from pyvgpu.kube import process_tuning
from pyvgpu.simulation import simulator

if TYPE_CHECKING:
    import argparse

    from pyvgpu.deviceplugin.cluster import node_config

_DESCRIPTION = """\
Advertise the devices of this node to kubelet as pyvgpu.io/vcore (100 for each device) and
pyvgpu.io/vmemory (units of its memory), and hold each container to its limits. Or offer them whole
and without limits to several containers each (--time-slicing-replicas). Containers get their
devices through CDI, which containerd and CRI-O enable by default.
"""
_EXAMPLES = """\
examples:
  pyvgpu device-plugin --node "$NODE_NAME"
  pyvgpu device-plugin --driver-root /run/nvidia/driver --packing spread
  pyvgpu device-plugin --simulate h100:2                            (no GPU needed)
  pyvgpu device-plugin --placement extender --placement-key /etc/pyvgpu/placement
  pyvgpu device-plugin --time-slicing-replicas 4 --time-slicing-resource nvidia.com/gpu
  pyvgpu device-plugin --profile gaia --volume-config /etc/gpu-manager/volume.conf
"""


_OURS_ALREADY = frozenset(
    {
        *(resource.name for resource in (*device_ids.EITHER, device_ids.CONTROL)),
        names.VMEMORY_MIB_RESOURCE,
        names.DEVICE_RESOURCE,
    }
)
_DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+"
_RESOURCE = re.compile(rf"{_DOMAIN}/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")


def _resource(text: str, flag: str) -> str:
    domain = text.partition("/")[0]
    kubernetes = domain == "kubernetes.io" or domain.endswith(".kubernetes.io")
    if len(text) > 253 or kubernetes or text in _OURS_ALREADY or not _RESOURCE.fullmatch(text):
        raise errors.UsageError(
            f"{flag} {text[:60]!r}: must be the name of an extended resource that is none of our "
            f"others, such as {names.GPU_SHARED_RESOURCE} or nvidia.com/gpu"
        )
    return text


def _machine(text: str, flag: str) -> str:
    try:
        simulator.parse_machine(text)
    except errors.UsageError as exc:
        raise errors.UsageError(f"{flag} {text!r}: {exc}") from exc
    return text


def _ratio(text: str, flag: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = 0.0
    if not 1 < ratio <= oversubscription.MOST_RATIO:
        raise errors.UsageError(
            f"{flag} {text[:40]!r}: must be a ratio above 1 and up to "
            f"{oversubscription.MOST_RATIO}, such as 2"
        )
    return ratio


_RULES = oversubscription.MoveRules()

PLACES = Group(
    "paths and names",
    (
        Option(
            "--node",
            "NAME",
            "node",
            "the name of this node ($NODE_NAME, else the host name)",
            table.object_name("node-1"),
        ),
        Option(
            "--state",
            "DIR",
            "state",
            "folder for the records of grants and for the driver mirror",
            table.path,
            STATE,
        ),
        Option(
            "--run",
            "DIR",
            "run",
            "folder for the files of running containers, preferably on tmpfs",
            table.path,
            "/run/pyvgpu-agent",
        ),
        *places.OPTIONS,
        Option(
            "--simulate",
            "MACHINE",
            "simulate",
            "simulated devices instead of the node's own, such as h100 or t4:2 (none)",
            _machine,
        ),
        Option(
            "--plugins-registry",
            "DIR",
            "registry",
            "kubelet's registration folder for DRA drivers",
            table.path,
            "/var/lib/kubelet/plugins_registry",
        ),
        Option(
            "--plugins",
            "DIR",
            "drivers",
            "folder for the sockets on which DRA drivers serve kubelet",
            table.path,
            "/var/lib/kubelet/plugins",
        ),
        Option(
            "--kubeconfig",
            "FILE",
            "kubeconfig",
            "kubeconfig file, YAML or JSON (in a pod: its service account)",
            table.path,
        ),
        Option(
            "--node-config",
            "DIR",
            "node_config",
            f"folder of options for single nodes; the node's label {names.AGENT_CONFIG_LABEL} "
            "selects one of its files (none)",
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
            "the size of 1 pyvgpu.io/vmemory: a multiple of 1 MiB",
            table.mebibytes,
            "256Mi",
        ),
        Option(
            "--packing",
            "binpack|spread",
            "packing",
            "binpack: fill one device after the other; spread: use all evenly",
            table.one_of(datatypes.Packing),
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
            "the key, of 32 bytes or more, with which the extender seals its choices; or a "
            "folder of keys, any of which is accepted",
            table.path,
        ),
        Option(
            "--compute-class",
            "PART=NAME",
            "classes",
            "assign compute class NAME to devices with PART in their model's name; may be given "
            "several times, the first match counts",
            table.pair("H100=fast"),
            many=True,
        ),
        Option(
            "--allocation-api",
            "[UUID=]plugin|dra|time-slices",
            "apis",
            "the API that offers all devices, or device UUID: kubelet's device plugin API, DRA "
            "claims, or time slices of whole devices; may be given several times",
            many=True,
        ),
        Option(
            "--time-slicing-replicas",
            "N",
            "replicas",
            "offer each device, whole and without limits, to N containers: from 2 to 64; all "
            "devices, unless --allocation-api says otherwise (off)",
            table.whole(2, 64, 4),
        ),
        Option(
            "--time-slicing-resource",
            "NAME",
            "slice_resource",
            "offer them as this resource: pyvgpu.io/gpu-shared, or one that pods ask for already, "
            "such as nvidia.com/gpu or nvidia.com/gpu.shared (pyvgpu.io/gpu-shared)",
            _resource,
        ),
        Option(
            "--time-slicing-same-device",
            "",
            "same_device",
            "a container that requests several slices may get them of fewer devices than that if "
            "no others have any left, as with NVIDIA's plugin (refused)",
        ),
        Option(
            "--allocation-switch-delay",
            "SECONDS",
            "switch_seconds",
            "the minimum time for which a device takes no new containers before it moves to the "
            "other API: from 1 to 86400",
            table.seconds(1, 86_400, 30),
            "30",
        ),
        Option(
            "--beside-nvidia",
            "",
            "beside_nvidia",
            "offer devices although NVIDIA's device plugin, or another with its resources, also "
            "allocates GPUs of this node: a GPU may then be allocated twice",
        ),
        Option(
            "--startup-taint",
            "KEY",
            "startup_taint",
            "remove the taint with this key, such as pyvgpu.io/starting, from the node once pods "
            "with devices can start there (none)",
            table.taint,
        ),
        Option(
            "--bind-deadline",
            "SECONDS",
            "bind_seconds",
            "how long to wait for a grant to be matched to its pod before evicting the pod: from "
            "1 to 86400",
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
            "the names of resources and variables that pods use: ours, or gpu-manager's",
            table.one_of(Profile),
            "pyvgpu",
        ),
        Option(
            "--volume-config",
            "FILE",
            "volumes",
            "gpu-manager's volume.conf: the driver files that they get (all)",
            profile.read_volumes,
        ),
        Option(
            "--extra-config",
            "FILE",
            "nodes",
            "gpu-manager's extra-config.json: additional device nodes that they get (none)",
            profile.read_nodes,
        ),
        Option(
            "--no-require-cdi",
            "",
            "require_cdi",
            "work without CDI: quotas hold, but containers see the nodes of all devices",
            given=False,
        ),
        Option(
            "--dynamic-mig",
            "none|all|UUID,...",
            "dynamic_mig",
            "GPUs in MIG mode on which pods get MIG instances of their own: the agent creates and "
            "destroys these",
            agent_settings.read_dynamic_mig,
            "none",
        ),
        Option(
            "--mps",
            "none|all|UUID,...",
            "mps",
            "devices that MPS divides among pods with the isolation mps, and no others: the agent "
            "runs their daemons",
            agent_settings.read_mps,
            "none",
        ),
        Option(
            "--no-driver-limits",
            "",
            "driver_limits",
            "let the shim alone limit the memory of containers, even where the driver could "
            "enforce it, too",
            given=False,
        ),
        Option(
            "--suspend",
            "",
            "suspend",
            "move the device memory of pods to host memory while their annotation "
            "pyvgpu.io/suspend requests it",
        ),
        Option(
            "--suspend-host-memory",
            "SIZE|PERCENT",
            "suspend_host_memory",
            "the most host memory that suspended pods of the node may take together, such as "
            "64GiB, or part of its memory",
            agent_settings.read_host_memory,
            f"{agent_settings.HostMemory().percent}%",
        ),
        Option(
            "--oversubscribe",
            "RATIO",
            "ratio",
            "let the shares of a device reserve up to RATIO times its memory and time, and "
            "suspend idle pods to make room: above 1 and up to 16; needs --suspend (off)",
            _ratio,
        ),
        Option(
            "--oversubscribe-idle",
            "SECONDS",
            "idle",
            "a pod may be suspended after so long without work on the device: from 1 to 86400",
            table.seconds(1, 86_400, 60),
            f"{_RULES.idle_seconds:g}",
        ),
        Option(
            "--oversubscribe-slice",
            "SECONDS",
            "slice",
            "a pod may be suspended after so long although it works, if a suspended pod wants to "
            "work: from 1 to 86400",
            table.seconds(1, 86_400, 120),
            f"{_RULES.slice_seconds:g}",
        ),
        Option(
            "--oversubscribe-moves",
            "N",
            "moves",
            "the most suspensions and resumptions of a device's pods per minute: from 1 to 1000",
            table.whole(1, 1000, 6),
            f"{_RULES.moves_per_minute}",
        ),
        Option(
            "--oversubscribe-wait",
            "SECONDS",
            "wait",
            "delete a pod that has not started after so long without room, if its owner, such as "
            "a Deployment, creates another: from 1 to 86400 (it waits without end)",
            table.seconds(1, 86_400, 600),
        ),
        Option(
            "--node-dev",
            "DIR",
            "node_dev",
            "without CDI: the folder of the device nodes on the node itself, if this agent has "
            "them elsewhere (/dev of --driver-root)",
            table.path,
        ),
    ),
)
HEALTH = Group(
    "unhealthy devices",
    (
        Option(
            "--ignore-xids",
            "NUMBERS",
            "ignored_xids",
            "Xids that do not make a device unhealthy, separated by commas; '' for none",
            table.numbers(1, 9999, "13,31,43"),
            ",".join(map(str, sorted(agent_settings.APPLICATION_XIDS))),
        ),
        Option(
            "--recover-seconds",
            "SECONDS",
            "recover_seconds",
            "time without errors after which it is healthy again: from 1 to 86400",
            table.seconds(1, 86_400, 60),
            "60",
        ),
    ),
)
WATCHING = Group(
    "monitoring and audit",
    (
        Option(
            "--listen",
            "[ADDRESS:]PORT|none",
            "listen",
            f"serve metrics, health and usage here; none: do not serve ({DEFAULT_LISTEN})",
            table.listening,
        ),
        Option(
            "--display",
            "SOCKET",
            "display",
            "serve gpu-manager's gRPC display service here, such as /var/run/gpu-manager.sock "
            "(not served)",
            table.path,
        ),
        Option(
            "--audit-action",
            "report|kill",
            "audit_action",
            "what happens to a process that exceeds its quota: it is reported, or killed",
            table.one_of(agent_settings.AuditAction),
            "report",
        ),
    ),
)
SAYING = Group(
    "logging",
    (
        Option("--verbose", "", "verbose", "log more"),
        Option(
            "--log-format",
            "text|json",
            "form",
            "plain lines, or one JSON object per line",
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
    options: argparse.Namespace, api: allocation_api.Api = allocation_api.Api.PLUGIN
) -> tuple[AgentSettings, dict[str, Any]]:
    """Return the settings of the agent and of its log; UsageError if *options* are not valid.

    *api* is the allocation API of devices for which the options name none.
    """
    theirs = gpu_manager.read(options)
    found = {**PLACES.read(options), **SHARING.read(options), **CONTAINERS.read(options)}
    found |= WATCHING.read(options)
    found = {**theirs, **found}  # our options take precedence
    if "node" not in found:
        given = os.environ.get("NODE_NAME") or socket.gethostname().lower()  # as kubelet does
        found["node"] = table.object_name("node-1")(given, "--node")
    said = {"verbose": found.pop("verbose", False), **SAYING.read(options)}
    rules = dataclasses.replace(agent_settings.HealthRules(), **HEALTH.read(options))
    slicing = agent_settings.TimeSlicing(
        found.pop("replicas", 0),
        found.pop("slice_resource", names.GPU_SHARED_RESOURCE),
        found.pop("same_device", False),
    )
    found["oversubscription"] = _oversubscription(found)
    found["apis"] = _apis(found.get("apis", ()), slicing, api)
    made = AgentSettings(**found, time_slicing=slicing, health=rules)
    if slicing.replicas and not made.require_cdi:
        raise errors.UsageError(
            f"--time-slicing-replicas {slicing.replicas}: whole devices need CDI; leave out "
            "--no-require-cdi"
        )
    if made.dynamic_mig and not made.require_cdi:
        raise errors.UsageError(
            "--dynamic-mig: MIG instances need CDI; leave out --no-require-cdi"
        )
    if made.mps and not made.require_cdi:
        raise errors.UsageError("--mps: MPS needs CDI; leave out --no-require-cdi")
    both = sorted((made.mps & made.dynamic_mig) - {agent_settings.ALL})
    if both:
        raise errors.UsageError(
            f"--mps and --dynamic-mig: {both[0]} is in both; a GPU has MIG instances for pods or "
            "MPS, not both"
        )
    if (made.placement is Placement.EXTENDER) != (made.placement_key is not None):
        raise errors.UsageError(
            "--placement extender and --placement-key FILE go together, such as --placement "
            "extender --placement-key /etc/pyvgpu/placement"
        )
    return made, said


def _oversubscription(found: dict[str, Any]) -> agent_settings.Oversubscription | None:
    """Remove its options from *found*, and return them; None: it is off."""
    usual = (_RULES.idle_seconds, _RULES.slice_seconds, _RULES.moves_per_minute)
    idle, turn, moves = map(found.pop, ("idle", "slice", "moves"), usual)
    wait = found.pop("wait", 0.0)
    ratio = found.pop("ratio", None)
    if ratio is None:
        return None
    if not found.get("suspend"):
        raise errors.UsageError(f"--oversubscribe {ratio:g}: needs --suspend")
    if found.get("profile", Profile.PYVGPU) is not Profile.PYVGPU:
        raise errors.UsageError(f"--oversubscribe {ratio:g}: not with --profile gaia")
    rules = oversubscription.MoveRules(idle, turn, moves)
    return agent_settings.Oversubscription(ratio, rules, wait)


def _apis(
    words: tuple[str, ...], slicing: agent_settings.TimeSlicing, default: Api
) -> allocation_api.Configured:
    """Return the configured APIs; UsageError unless time slices are configured as a whole."""
    found = allocation_api.parse(words, Api.TIME_SLICES if slicing.replicas else default)
    if slicing.replicas and not found.any_of(Api.TIME_SLICES):
        raise errors.UsageError(
            f"--time-slicing-replicas {slicing.replicas}: no device is left for it; such as with "
            "--allocation-api GPU-8c9f5a3e-...=time-slices"
        )
    if not slicing.replicas and found.any_of(Api.TIME_SLICES):
        raise errors.UsageError(
            "--allocation-api time-slices: needs a number of containers for each device, such as "
            "--time-slicing-replicas 4"
        )
    if not slicing.replicas and slicing.resource != names.GPU_SHARED_RESOURCE:
        raise errors.UsageError(
            f"--time-slicing-resource {slicing.resource}: needs a number of containers for each "
            "device, such as --time-slicing-replicas 4"
        )
    if not slicing.replicas and slicing.same_device:
        raise errors.UsageError(
            "--time-slicing-same-device: needs a number of containers for each device, such as "
            "--time-slicing-replicas 4"
        )
    return found


def run(options: argparse.Namespace) -> int:
    """Serve kubelet until a termination signal arrives."""
    return serve(options, allocation_api.Api.PLUGIN)


def serve(options: argparse.Namespace, api: allocation_api.Api) -> int:
    """Run the agent; *api* is the allocation API of devices for which the options name none."""
    settings, said = settings_of(options, api)
    with errors.needing("grpcio", "node"):
        from pyvgpu.deviceplugin import agent
        from pyvgpu.deviceplugin.devices import simulated_devices
    log.begin(**said)
    for line in gpu_manager.warnings(options):
        logging.getLogger(__name__).warning("%s", line)
    process_tuning.limit_memory()
    process_tuning.settle()
    stopped = threading.Event()
    agents: list[agent.Agent] = []

    def stop() -> None:
        stopped.set()
        for running in agents:
            running.stop()

    termination.on_signals(stop)
    is_current = None
    if settings.node_config is not None:
        chosen = node_options.NodeOptions(settings, lambda config: _for_node(options, config, api))
        settings = _for_node(options, chosen.choose(stopped.wait), api)
        is_current = chosen.is_current
    one = agent.Agent(simulated_devices.settle(settings), is_current)
    agents.append(one)
    if stopped.is_set():
        return 0
    one.run()
    if one.outdated and not stopped.is_set():
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
    return 0


def _for_node(
    options: argparse.Namespace, config: node_config.NodeConfig, api: allocation_api.Api
) -> AgentSettings:
    return settings_of(node_options.merged(options, config, GROUPS), api)[0]
