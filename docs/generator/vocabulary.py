"""Names reference page: resources, annotations, labels and environment variables.

The names are imported from the code; this file adds their meaning for users. A test looks for
pyvgpu's names in all of the code and in `deploy/`, and fails if one is missing here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from generator.tables import code, table
from pyvgpu import names
from pyvgpu.controller.scheduler.shell import leader_label, session
from pyvgpu.controller.sidecar import exit_reports, mark_names, nodes
from pyvgpu.controller.webhook import argv
from pyvgpu.deviceplugin.gpu_manager import profile
from pyvgpu.deviceplugin.plugin import device_nodes
from pyvgpu.simulation import simulator
from pyvgpu.volumes import cdi

if TYPE_CHECKING:
    from pathlib import Path

Row = tuple[str, ...]

HEAD = """# Names: resources, annotations, labels, variables

Everything that you can write on a pod, a node or a namespace, and everything that pyvgpu writes
there. [An admission policy](../webhook.md#annotations-that-components-alone-write) protects the
annotations that only pyvgpu's components may write.

"""

RESOURCES: tuple[Row, ...] = (
    (names.VCORE_RESOURCE, "percent of one device's time; 100, 200... are whole devices", "50"),
    (names.VMEMORY_RESOURCE, "device memory, in units of 256 MiB (`--memory-unit`)", "16"),
    (
        names.VMEMORY_MIB_RESOURCE,
        "device memory in MiB; the webhook converts it to `pyvgpu.io/vmemory`",
        "4096",
    ),
    (
        names.DEVICE_RESOURCE,
        "whole devices through a device class, for devices offered by DRA",
        "1",
    ),
    (names.GAIA_VCORE_RESOURCE, "gpu-manager's name for vcore: `--profile gaia`", "50"),
    (names.GAIA_VMEMORY_RESOURCE, "gpu-manager's name for vmemory, units of 256 MiB", "16"),
    (
        names.GPU_SHARED_RESOURCE,
        "a whole device without limits, beside other containers: `--time-slicing-replicas`",
        "1",
    ),
    (names.CONTROL_RESOURCE, "the device nodes of all devices; only for the agent's own pod", "1"),
)

WRITTEN_ON_PODS: tuple[Row, ...] = (
    (
        names.SUSPEND_ANNOTATION,
        "`keep`: the pod's device memory moves to host memory, and its reservation is kept; "
        "`release`: others may use its room; `never`: it is not suspended to make room for others",
        "never",
    ),
    (
        names.VCORE_POLICY_ANNOTATION,
        "`hard`: never above its vcore; `elastic`: above it while the device has idle time",
        "elastic",
    ),
    (names.VCORE_LIMIT_ANNOTATION, "maximum of an elastic share, from its vcore to 100", "80"),
    (
        names.PRIORITY_ANNOTATION,
        "`low`: only the time that others leave idle; `high`: first when idle time is lent; "
        "or `normal`",
        "low",
    ),
    (
        names.DEVICE_MODELS_ANNOTATION,
        "only devices with one of these in their model's name",
        "H100,A100",
    ),
    (names.NOT_DEVICE_MODELS_ANNOTATION, "no device with one of these in its model's name", "T4"),
    (names.DEVICE_CLASSES_ANNOTATION, "only devices of these classes (`--compute-class`)", "fast"),
    (
        names.DEVICE_UUIDS_ANNOTATION,
        "only these devices",
        "GPU-8c9f5a3e-1b2d-4c6f-9a7e-0d1c2b3a4f5e",
    ),
    (
        names.NOT_DEVICE_UUIDS_ANNOTATION,
        "none of these devices",
        "GPU-8c9f5a3e-1b2d-4c6f-9a7e-0d1c2b3a4f5e",
    ),
    (names.DEVICE_MEMORY_ANNOTATION, "only devices with at least this much memory in all", "40Gi"),
    (names.DEVICE_NUMA_ANNOTATION, "only devices of this NUMA node", "0"),
    (
        names.DEVICE_COUNT_ANNOTATION,
        "number of devices, with the same share of each, for all containers or for some",
        "main=2,side=1",
    ),
    (names.PACKING_ANNOTATION, "`binpack` or `spread`, among the devices of a node", "spread"),
    (
        names.TOPOLOGY_POLICY_ANNOTATION,
        "for several devices: `preferred`, `nvlink` or `numa`",
        "nvlink",
    ),
    (
        names.MIG_ANNOTATION,
        "a MIG profile: each container gets an instance of it of its own",
        "1g.10gb",
    ),
    (
        names.ISOLATION_ANNOTATION,
        "`quota`; `hardware`: a MIG instance of the smallest profile that suffices; or `mps`: a "
        "share of a device that MPS divides",
        "hardware",
    ),
    (names.PLACEMENT_ANNOTATION, "`binpack`, `spread` or `topology`, among nodes", "topology"),
    (
        names.GANG_ANNOTATION,
        "the gang of this pod: pods of the namespace with this name run all together or not at all",
        "train-7",
    ),
    (names.GANG_SIZE_ANNOTATION, "number of pods in the gang", "4"),
    (names.GANG_TIMEOUT_ANNOTATION, "seconds within which all of them must be bound", "60"),
    (
        names.SWAP_ANNOTATION,
        "other images for marked containers, while the pod runs",
        '{"log": {"image": "shipper:3"}}',
    ),
    (names.GAIA_LIMIT_ANNOTATION, "gpu-manager's: makes the share elastic, up to this", "80"),
)

WRITTEN_ON_OTHERS: tuple[Row, ...] = (
    (
        names.CORDONED_ANNOTATION,
        "annotation of a node",
        "these devices get no new containers",
        "GPU-8c9f...",
    ),
    (
        names.AGENT_CONFIG_LABEL,
        "label of a node",
        "options of the node's agent, one of those in `agent.nodeConfigs`",
        "a100",
    ),
    (
        names.GPU_NODE_LABEL,
        "label of a node",
        "the node gets an agent, also with `agent.gpuNodesOnly`",
        "true",
    ),
    (
        f"{names.DOMAIN}/claim-vcore",
        "annotation of a namespace",
        "the most vcore that one claim may request in total",
        "200",
    ),
    (f"{names.DOMAIN}/claim-vmemory", "annotation of a namespace", "the same for memory", "64Gi"),
    (
        f"{names.DOMAIN}/totals",
        "label of a namespace",
        "`kept`: all its claims together have a limit, given by the next two",
        "kept",
    ),
    (
        names.TOTAL_VCORE,
        "annotation of a namespace",
        "the most vcore that all its claims together may request",
        "400",
    ),
    (names.TOTAL_VMEMORY, "annotation of a namespace", "the same for memory", "128Gi"),
    (
        f"{names.DOMAIN}/metrics",
        "label of a namespace",
        "`allowed`: its pods may read the agents' metrics",
        "allowed",
    ),
)

KEPT: tuple[Row, ...] = (
    (names.NODE_DEVICES_ANNOTATION, "node", "the agent: the node's devices and their health"),
    (
        names.DEVICE_ISOLATION_ANNOTATION,
        "node",
        "the agent: what holds the containers of each device to their shares, such as "
        "`gpu0=quota,gpu1=hardware`; for display",
    ),
    (names.DEVICES_ANNOTATION, "pod", "the scheduler: the devices that the pod gets; signed"),
    (
        names.SUSPENSION_ANNOTATION,
        "pod",
        "the agent: whether the pod is suspended, and why not; JSON, for display",
    ),
    (names.GRANT_KIND, "container", "kubelet: the container's grant; also a CDI kind"),
    (
        session.WOKEN_ANNOTATION,
        "the scheduler's pod",
        "the scheduler: when it last made kube-scheduler retry waiting pods",
    ),
    (
        f"{names.DOMAIN}/image-rules",
        "the webhook's pods",
        "the chart: a digest of the webhook's image rules, so that it restarts when they change",
    ),
    (
        f"{names.DOMAIN}/sidecar-settings",
        "the pods of the webhook and of the sidecar controller's parts",
        "the chart: a digest of the sidecar settings, so that the pods restart when they change",
    ),
    (
        f"{names.DOMAIN}/configuration",
        "the second kube-scheduler's pods",
        "the chart: a digest of its configuration, so that the pods restart when it changes",
    ),
    (
        f"{names.DOMAIN}/starting",
        "node",
        "the node group: an example of the taint that the agent removes when it is ready; "
        "`agent.startupTaint` names it",
    ),
    (
        leader_label.LABEL,
        "the scheduler's pod",
        "the scheduler: `leads` on the replica that answers",
    ),
    (
        names.SIDECAR_LABEL,
        "pod",
        "the webhook, the controller: `managed` if the pod's sidecars are to be ended; pods with "
        "any other value are left alone",
    ),
    (
        names.STOP_ANNOTATION,
        "pod",
        "the controller: which sidecars are being ended, how, and since when",
    ),
    (names.SWAPPED_ANNOTATION, "pod", "the controller: which image to restore"),
    (
        f"{names.START_COMMAND_ANNOTATION}.",
        "pod",
        "the webhook: the command of a marked container; its name and a number follow",
    ),
    (
        exit_reports.ANNOTATION,
        "lease of a node part",
        "the node part: the pods whose main containers are done",
    ),
    (
        nodes.FAST_EXIT_ANNOTATION,
        "lease of a node part",
        "the node part: the fast-exit image that is present on the node",
    ),
    (
        nodes.IMAGES_ANNOTATION,
        "lease of a node part",
        "the node part: which images for swaps are present on the node",
    ),
    (
        names.CLAIM_TEMPLATE_LABEL,
        "ResourceClaimTemplate",
        "the webhook: it created this template",
    ),
    (
        names.CLAIM_TEMPLATE_USED_ANNOTATION,
        "ResourceClaimTemplate",
        "the webhook: when it was last needed",
    ),
    (
        names.GAIA_ASSIGNED_ANNOTATION,
        "pod",
        "agent and scheduler, for gpu-manager: whether the pod has its devices",
    ),
    (f"{names.GAIA_PREDICATE}time", "pod", "the same: when the devices were chosen"),
    (f"{names.GAIA_PREDICATE}node", "pod", "the same: on which node"),
    (
        f"{names.GAIA_PREDICATE}gpu-idx-",
        "pod",
        "the same: the devices' indices; the container's number follows",
    ),
    (profile.MODEL_LABEL, "node", "the agent, with `--profile gaia`: the GPU model's name"),
)

DRA: tuple[Row, ...] = (
    (names.DRA_DRIVER, "driver", "the name of the driver, in claims and classes"),
    (names.DRA_VCORE, "capacity", "percent of the device's time"),
    (names.DRA_VMEMORY, "capacity", "bytes of its memory"),
    (names.DRA_UUID, "attribute", "its UUID"),
    (names.DRA_MODEL, "attribute", "its model's name"),
    (names.DRA_COMPUTE_CLASS, "attribute", "its class (`--compute-class`)"),
    (names.DRA_COMPUTE_CAPABILITY, "attribute", "its compute capability, as a version"),
    (names.DRA_DRIVER_RELEASE, "attribute", "the driver's release, as a version"),
    (names.DRA_DRIVER_RELEASE_TEXT, "attribute", "the same as text, as the driver reports it"),
    (names.DRA_CUDA_VERSION, "attribute", "the driver's CUDA version"),
    (names.DRA_CUDA_VERSION_TEXT, "attribute", "the same as text, as the driver reports it"),
    (
        names.DRA_NVLINK_GROUP,
        "attribute",
        "equal for devices that are all linked with each other by NVLink",
    ),
    (names.DRA_NUMA, "attribute", "its NUMA node"),
    (names.DRA_PCIE_ROOT, "attribute", "its PCIe root, under the name common to all drivers"),
    (names.DRA_MIG_PROFILE, "attribute", "the MIG profile of a partition, such as 1g.10gb"),
    (names.DRA_MIG_START, "attribute", "the first memory slice of a partition"),
    (names.DRA_UNHEALTHY_TAINT, "taint", "the device is unhealthy and gets no new claims"),
    (names.DRA_CORDONED_TAINT, "taint", "an administrator cordoned it: it gets no new claims"),
    (names.DRA_OCCUPIED_TAINT, "taint", "another MIG instance is at the place of the partition"),
    (f"{names.DOMAIN}/v1alpha1", "apiVersion", "of a `VGPUConfig`, the parameters of a claim"),
)

CDI: tuple[Row, ...] = (
    (
        f"{names.GRANT_KIND}=ID",
        "one container's grant; the agent writes it when it binds the grant",
    ),
    (f"{names.RUN_KIND}=NAME", "the quota of `pyvgpu cdi --name NAME`"),
    (f"{names.MACHINE_KIND}=INDEX", "a whole device of the machine, or UUID or `all`"),
    (f"{cdi.KIND}=shared", "the driver with the shim"),
    (f"{cdi.KIND}=exclusive", "the driver without the shim"),
    (f"{cdi.KIND}=nvidia0", "the device node of one device"),
    (f"{cdi.KIND}=library-path", "`LD_LIBRARY_PATH` set to the driver's folder"),
    (
        f"{names.TIME_SLICE_KIND}=ID",
        "the whole devices of containers with time slices; the agent writes it before each start",
    ),
    (f"{names.ADMIN_KIND}=ID", "devices for monitoring only, of a claim with `adminAccess`"),
    (f"{names.CONTROL_RESOURCE}=ID", "the device nodes of all devices, for the agent"),
)

VARIABLES: tuple[Row, ...] = (
    (
        "PYVGPU_LOG",
        "any program with the shim",
        "`info`: the shim logs refusals to standard error; otherwise only errors",
    ),
    (
        "CUDA_VISIBLE_DEVICES",
        "any program with the shim",
        "as without pyvgpu; indices count the quota's devices",
    ),
    (
        simulator.BASE_VARIABLE,
        "`pyvgpu` with `--simulate`",
        "the folder of simulated machines; default `/dev/shm/pyvgpu-simulator-<uid>`, or in `/tmp`",
    ),
    (
        simulator.MACHINE_VARIABLE,
        "the simulated driver; agents of a cluster without GPUs",
        "the folder of one simulated machine",
    ),
    ("XDG_CACHE_HOME", "`pyvgpu run`", "the driver mirror is in its folder `pyvgpu`"),
    ("NODE_NAME", "agents, node parts", "the name of the node, if no option gives it"),
    ("POD_NAME", "`pyvgpu scheduler`", "the name of its own pod"),
    ("POD_NAMESPACE", "`pyvgpu control-nodes`", "the agent's namespace"),
    (
        device_nodes.VARIABLE,
        "the agent's container",
        "set by `pyvgpu control-nodes`: the device nodes that it allocated to the agent",
    ),
    (
        "NVIDIA_VISIBLE_DEVICES",
        "containers with a share of a device",
        "set by the agent: `void`, so that NVIDIA's own runtime adds nothing",
    ),
    (
        f"{argv.PREFIXES[0]}, {argv.PREFIXES[1]}",
        "marked containers",
        "set by the webhook: their command, from the pod's annotations",
    ),
    (
        mark_names.VARIABLES[0],
        "a container",
        "`true` marks it as a sidecar that ends with the main containers; `false` exempts it from "
        "policies",
    ),
    (mark_names.EXITS_ZERO, "a sidecar", "`true`: it exits with code 0 on its stop signal"),
    (
        mark_names.GRACE_SECONDS,
        "a sidecar",
        "its grace period in seconds, at most the pod's own",
    ),
    (mark_names.ORDER, "a sidecar", "a whole number; sidecars are stopped lowest first"),
    (mark_names.COMMAND, "a sidecar", "a command run in it before its stop signal"),
    *(
        (name, "a container", "another system's sidecar mark, with the same meaning as ours")
        for name, _ in mark_names.MARKS[1:]
    ),
)


def text(_: Path) -> str:
    """Return the page."""
    return "".join(
        (
            HEAD,
            "## Resources\n\nIn the limits of a container.\n\n",
            _named(("resource", "meaning", "example"), RESOURCES, examples=True),
            "## Annotations that you write on a pod\n\n",
            _named(("annotation", "meaning", "example"), WRITTEN_ON_PODS, examples=True),
            "## Names that an administrator writes\n\n",
            _named(("name", "kind", "meaning", "example"), WRITTEN_ON_OTHERS, examples=True),
            "## Names that pyvgpu writes\n\n",
            _named(("name", "written on", "written by, and meaning"), KEPT),
            "## Claims: dynamic resource allocation\n\nSee [dra.md](../dra.md).\n\n",
            _named(("name", "kind", "meaning"), DRA),
            "## CDI devices\n\n",
            _named(("device", "effect in a container"), CDI),
            "## Environment variables\n\n",
            _named(("variable", "read by", "meaning"), VARIABLES),
        )
    )


def _named(head: Row, rows: tuple[Row, ...], *, examples: bool = False) -> str:
    """Return a table whose first column is a name; with *examples*, the last is an example."""
    return table(
        head,
        (
            [code(first), *rest[:-1], code(rest[-1])] if examples else [code(first), *rest]
            for first, *rest in rows
        ),
    )
