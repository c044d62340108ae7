"""The reference of names: resources, annotations, labels, and variables of the environment.

Each name comes from the code; here is what it means to whom it concerns. A test looks for names of
ours in all of the code and in `deploy/`, and misses none here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from generator.tables import code, table
from pyvgpu import names, simulator
from pyvgpu.controller.scheduler.shell import leading, waking
from pyvgpu.controller.sidecar import claims, marking, nodes
from pyvgpu.controller.webhook import argv
from pyvgpu.deviceplugin import control, gaia
from pyvgpu.volumes import cdi

if TYPE_CHECKING:
    from pathlib import Path

Row = tuple[str, ...]

HEAD = """# Names: resources, annotations, labels, variables

All that you can write on a pod, a node or a namespace, and all that pyvgpu writes there. What
somebody else may not write, [an admission policy keeps](../webhook.md#annotations-that-components-alone-write).

"""

RESOURCES: tuple[Row, ...] = (
    (names.VCORE_RESOURCE, "hundredths of one device's time; 100, 200... are whole devices", "50"),
    (names.VMEMORY_RESOURCE, "memory of it, in units of 256 MiB (`--memory-unit`)", "16"),
    (names.DEVICE_RESOURCE, "whole devices by a class, where devices are for claims", "1"),
    (names.GAIA_VCORE_RESOURCE, "gpu-manager's word for vcore: `--profile gaia`", "50"),
    (names.GAIA_VMEMORY_RESOURCE, "gpu-manager's word for vmemory, units of 256 MiB", "16"),
    (names.CONTROL_RESOURCE, "the nodes of all devices; the agent's own pod alone gets it", "1"),
)

WRITTEN_ON_PODS: tuple[Row, ...] = (
    (
        names.VCORE_POLICY_ANNOTATION,
        "`hard`: never above its vcore; `elastic`: above it, while there is idle time",
        "elastic",
    ),
    (names.VCORE_LIMIT_ANNOTATION, "elastic: what it may reach, from its vcore to 100", "80"),
    (
        names.PRIORITY_ANNOTATION,
        "`low`: only the time that others leave; `high`: first where time is lent; or `normal`",
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
    (names.DEVICE_MEMORY_ANNOTATION, "only devices with so much memory in all, and more", "40Gi"),
    (names.DEVICE_NUMA_ANNOTATION, "only devices of this NUMA node", "0"),
    (
        names.DEVICE_COUNT_ANNOTATION,
        "so many devices with the same share of each, for all containers or for some",
        "main=2,side=1",
    ),
    (names.PACKING_ANNOTATION, "`binpack` or `spread`, among the devices of a node", "spread"),
    (names.NEARNESS_ANNOTATION, "several devices: `preferred`, `nvlink` or `numa`", "nvlink"),
    (names.PLACEMENT_ANNOTATION, "`binpack`, `spread` or `topology`, among nodes", "topology"),
    (
        names.GANG_ANNOTATION,
        "pods of the namespace with this name run all together, or none",
        "train-7",
    ),
    (names.GANG_SIZE_ANNOTATION, "how many they are", "4"),
    (names.GANG_SECONDS_ANNOTATION, "in how many seconds all must be bound", "60"),
    (
        names.SWAP_ANNOTATION,
        "other images for marked containers, while the pod runs",
        '{"log": {"image": "shipper:3"}}',
    ),
    (names.GAIA_LIMIT_ANNOTATION, "gpu-manager's: elastic, and what it may reach", "80"),
)

WRITTEN_ON_OTHERS: tuple[Row, ...] = (
    (
        names.CORDONED_ANNOTATION,
        "annotation of a node",
        "nothing new comes onto these devices",
        "GPU-8c9f...",
    ),
    (
        f"{names.DOMAIN}/claim-vcore",
        "annotation of a namespace",
        "the most vcore that one claim may ask for in sum",
        "200",
    ),
    (f"{names.DOMAIN}/claim-vmemory", "annotation of a namespace", "the same of memory", "64Gi"),
    (
        f"{names.DOMAIN}/totals",
        "label of a namespace",
        "`kept`: its claims together have a limit, by the next two",
        "kept",
    ),
    (
        names.TOTAL_VCORE,
        "annotation of a namespace",
        "what all its claims may ask for together",
        "400",
    ),
    (names.TOTAL_VMEMORY, "annotation of a namespace", "the same of memory", "128Gi"),
    (
        f"{names.DOMAIN}/metrics",
        "label of a namespace",
        "`allowed`: its pods may read the agents' metrics",
        "allowed",
    ),
)

KEPT: tuple[Row, ...] = (
    (names.NODE_DEVICES_ANNOTATION, "node", "the agent: what devices there are, and how they are"),
    (names.DEVICES_ANNOTATION, "pod", "the scheduler: which devices it gets; sealed"),
    (names.GRANT_KIND, "container", "kubelet: which grant it has; also a CDI kind"),
    (
        waking.ANNOTATION,
        "the scheduler's pod",
        "the scheduler: when it last let kube-scheduler look again",
    ),
    (
        f"{names.DOMAIN}/image-rules",
        "the webhook's pods",
        "the installation: a digest of its rules for images, so that it starts anew with others",
    ),
    (
        f"{names.DOMAIN}/sidecar-settings",
        "the pods of the webhook and of what ends sidecars",
        "the installation: a digest of the settings of sidecars, so that they start anew with others",
    ),
    (
        f"{names.DOMAIN}/configuration",
        "the second kube-scheduler's pods",
        "the installation: a digest of what it is told, so that it starts anew with something else",
    ),
    (leading.LABEL, "the scheduler's pod", "the scheduler: `leads` on the one that answers"),
    (
        names.SIDECAR_LABEL,
        "pod",
        "the webhook, the controller: `managed`, so that its sidecars are ended; any other value: left alone",
    ),
    (names.STOP_ANNOTATION, "pod", "the controller: which sidecars are ended how, and since when"),
    (names.SWAPPED_ANNOTATION, "pod", "the controller: which image to put back"),
    (
        f"{names.START_COMMAND_ANNOTATION}.",
        "pod",
        "the webhook: what a marked container runs; its container and a number follow",
    ),
    (claims.ANNOTATION, "lease of a node part", "the node part: whose work is done"),
    (
        nodes.FAST_EXIT_ANNOTATION,
        "lease of a node part",
        "the node part: the fast-exit image that the node has",
    ),
    (
        nodes.IMAGES_ANNOTATION,
        "lease of a node part",
        "the node part: which images that swaps ask for are there",
    ),
    (names.CLAIM_TEMPLATE_LABEL, "ResourceClaimTemplate", "the webhook: it has made this one"),
    (
        names.CLAIM_TEMPLATE_USED_ANNOTATION,
        "ResourceClaimTemplate",
        "the webhook: when it was last needed",
    ),
    (
        names.GAIA_ASSIGNED_ANNOTATION,
        "pod",
        "agent and scheduler, for gpu-manager: it has got its devices",
    ),
    (f"{names.GAIA_PREDICATE}time", "pod", "the same: when they were chosen"),
    (f"{names.GAIA_PREDICATE}node", "pod", "the same: on which node"),
    (
        f"{names.GAIA_PREDICATE}gpu-idx-",
        "pod",
        "the same: which; the number of the container follows",
    ),
    (gaia.MODEL_LABEL, "node", "the agent, with `--profile gaia`: the model's name"),
)

DRA: tuple[Row, ...] = (
    (names.DRA_DRIVER, "driver", "the name of the driver, in claims and classes"),
    (names.DRA_VCORE, "capacity", "hundredths of the device's time"),
    (names.DRA_VMEMORY, "capacity", "bytes of its memory"),
    (names.DRA_UUID, "attribute", "its UUID"),
    (names.DRA_MODEL, "attribute", "its model's name"),
    (names.DRA_COMPUTE_CLASS, "attribute", "its class (`--compute-class`)"),
    (names.DRA_COMPUTE_CAPABILITY, "attribute", "its compute capability, a version"),
    (names.DRA_DRIVER_RELEASE, "attribute", "the driver's release, a version"),
    (names.DRA_DRIVER_RELEASE_TEXT, "attribute", "the same as the driver says it"),
    (names.DRA_CUDA_VERSION, "attribute", "the driver's CUDA version"),
    (names.DRA_CUDA_VERSION_TEXT, "attribute", "the same as the driver says it"),
    (
        names.DRA_NVLINK_GROUP,
        "attribute",
        "the same for devices that are all linked with each other",
    ),
    (names.DRA_NUMA, "attribute", "its NUMA node"),
    (names.DRA_PCIE_ROOT, "attribute", "its PCIe root, as all drivers say it"),
    (names.DRA_SICK_TAINT, "taint", "it does not work: no new claim"),
    (names.DRA_CORDONED_TAINT, "taint", "its administrator wants nothing new on it"),
    (f"{names.DOMAIN}/v1alpha1", "apiVersion", "of a `VGPUConfig`, the parameters of a claim"),
)

CDI: tuple[Row, ...] = (
    (f"{names.GRANT_KIND}=ID", "one container's grant; the agent describes it when it is bound"),
    (f"{cdi.KIND}=shared", "the driver with the shim in it"),
    (f"{cdi.KIND}=exclusive", "the driver as it is"),
    (f"{cdi.KIND}=nvidia0", "the node of one device"),
    (f"{cdi.KIND}=library-path", "`LD_LIBRARY_PATH` into the driver"),
    (f"{names.ADMIN_KIND}=ID", "devices to look at, of a claim with `adminAccess`"),
    (f"{names.CONTROL_RESOURCE}=ID", "the nodes of all devices, for the agent"),
)

VARIABLES: tuple[Row, ...] = (
    (
        "PYVGPU_LOG",
        "any program with the shim",
        "`info`: the shim says on standard error what it refuses; else errors alone",
    ),
    (
        "CUDA_VISIBLE_DEVICES",
        "any program with the shim",
        "as ever, counted within the quota's devices",
    ),
    (
        simulator.BASE_VARIABLE,
        "`pyvgpu` with `--simulate`",
        "the folder of simulated machines; without it `/tmp/pyvgpu-simulated-<uid>`",
    ),
    (
        simulator.MACHINE_VARIABLE,
        "the simulated driver; agents of a cluster without GPUs",
        "the folder of one simulated machine",
    ),
    ("XDG_CACHE_HOME", "`pyvgpu run`", "where the mirror of the driver is kept, in `pyvgpu`"),
    ("NODE_NAME", "agents, node parts", "the node that it is on, where no option says it"),
    ("POD_NAME", "`pyvgpu scheduler`", "the pod that this is"),
    ("POD_NAMESPACE", "`pyvgpu control-nodes`", "the agent's namespace"),
    (
        control.VARIABLE,
        "the agent's container",
        "written by `pyvgpu control-nodes`: the nodes that it was given",
    ),
    (
        "NVIDIA_VISIBLE_DEVICES",
        "containers with a part of a device",
        "written by the agent: `void`, so that NVIDIA's own runtime adds nothing",
    ),
    (
        f"{argv.PREFIXES[0]}, {argv.PREFIXES[1]}",
        "marked containers",
        "written by the webhook: what they run, from the pod's annotations",
    ),
    (
        marking.VARIABLES[0],
        "a container",
        "`true` marks it as a sidecar that ends with the work, `false` keeps policies from it",
    ),
    (marking.EXITS_ZERO, "a sidecar", "`true`: it ends with code 0 when it is told to end"),
    (marking.GRACE_SECONDS, "a sidecar", "how long it may take to end, at most the pod's own"),
    (marking.ORDER, "a sidecar", "a whole number; the lowest is told first"),
    (marking.COMMAND, "a sidecar", "run in it before its signal"),
    *(
        (name, "a container", "another system's mark of a sidecar, taken for ours")
        for name, _ in marking.MARKS[1:]
    ),
)


def text(_: Path) -> str:
    """Return the page."""
    return "".join(
        (
            HEAD,
            "## Resources\n\nAmong the limits of a container.\n\n",
            _named(("resource", "what it is", "such as"), RESOURCES, examples=True),
            "## Annotations that you write on a pod\n\n",
            _named(("annotation", "what it says", "such as"), WRITTEN_ON_PODS, examples=True),
            "## What an administrator writes\n\n",
            _named(
                ("name", "on what", "what it says", "such as"), WRITTEN_ON_OTHERS, examples=True
            ),
            "## What pyvgpu writes\n\n",
            _named(("name", "on what", "who writes it, and what it says"), KEPT),
            "## Claims: dynamic resource allocation\n\nSee [dra.md](../dra.md).\n\n",
            _named(("name", "what it is", "what it says"), DRA),
            "## CDI devices\n\n",
            _named(("device", "what a container gets"), CDI),
            "## Variables of the environment\n\n",
            _named(("variable", "read by", "what it says"), VARIABLES),
        )
    )


def _named(head: Row, rows: tuple[Row, ...], *, examples: bool = False) -> str:
    """Return a table whose first column is a name, and whose last one an example if there are."""
    return table(
        head,
        (
            [code(first), *rest[:-1], code(rest[-1])] if examples else [code(first), *rest]
            for first, *rest in rows
        ),
    )
