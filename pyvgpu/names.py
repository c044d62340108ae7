"""Shared names: files, folders, environment variables, annotations, resources.

Only names that two parts of pyvgpu, or pyvgpu and another program, must agree on.
"""

from __future__ import annotations

from pathlib import Path

LIBCUDA = "libcuda.so.1"
LIBNVIDIA_ML = "libnvidia-ml.so.1"
SHIM_NAMES = (LIBCUDA, "libcuda.so", LIBNVIDIA_ML, "libnvidia-ml.so")  # one inode in each tree
SHIM_FILE = "libcuda-control.so"  # as the build installs it
LIBCUDA_ORIGIN = "libcuda-origin.so.1"
LIBNVIDIA_ML_ORIGIN = "libnvidia-ml-origin.so.1"

SIMULATED_MACHINE = "simulated-machine"  # link beside the simulated driver
MIG_UUID_PREFIX = "MIG-"  # of the UUIDs of MIG devices, as NVML writes them
SIMULATED_MACHINE_VARIABLE = "PYVGPU_SIMULATED_MACHINE"

QUOTA_FILE = "quota"
USAGE_FILE = "usage"
RESERVATION_FILE = "reservation.json"
COMMAND_FILE = "command"  # of a run: its command line, which only its user and root can read
TAMPERED_FILE = "tampered"  # exists if something other than the shim changed the usage file
LIMIT_FILE = "driver-limit"  # the driver's own limit for a run or container, or why there is none
CONTAINER_FOLDER = "container"  # of a run: the files that its container gets
TENANT_FILE = "tenant.json"  # record of a run with --oversubscribe
MOVES_FILE = "moves.json"  # sums of a run's suspensions and resumptions, for metrics
CONTROL_SOCKET = "control"  # on which a run's supervisor accepts changes of its quota

ARBITER_FOLDER = "arbiter-"  # in a registry; followed by its user's id
ARBITER_FILE = "arbiter"  # in it: the arbiter locks it and updates its heartbeat
MPS_FOLDER = "mps-"  # in a registry; followed by a user's id and a device's UUID
CLOCK_LINK = "clock."  # in a reservation's folder; followed by the device's index in the quota

ROOT_REGISTRY = Path("/run/pyvgpu")
SHARED_REGISTRY = Path("/tmp/pyvgpu")  # noqa: S108 - sticky, and every entry's owner is checked

DOMAIN = "pyvgpu.io"

# The node agent: kubelet's extended resources, and CDI kinds.
VCORE_RESOURCE = f"{DOMAIN}/vcore"
VMEMORY_RESOURCE = f"{DOMAIN}/vmemory"
VMEMORY_MIB_RESOURCE = f"{DOMAIN}/vmemory-mib"  # the webhook converts it to the former
GAIA_DOMAIN = "tencent.com"  # gpu-manager's
GAIA_VCORE_RESOURCE = f"{GAIA_DOMAIN}/vcuda-core"
GAIA_VMEMORY_RESOURCE = f"{GAIA_DOMAIN}/vcuda-memory"
GPU_SHARED_RESOURCE = f"{DOMAIN}/gpu-shared"  # default name of time slices of whole devices
TIME_SLICE_KIND = f"{DOMAIN}/time-slice"  # CDI kind: the devices of a container with time slices
CONTROL_RESOURCE = f"{DOMAIN}/control"  # all device nodes, for the agent; also a CDI kind
ADMIN_KIND = f"{DOMAIN}/admin"  # CDI kind: devices with admin access
RUN_KIND = f"{DOMAIN}/run"  # CDI kind: the quota of a run, without Kubernetes
MACHINE_KIND = f"{DOMAIN}/gpu"  # CDI kind: the whole devices of a machine
GRANT_KIND = f"{DOMAIN}/grant"  # CDI kind; also the annotation in which kubelet keeps a grant's id

# Dynamic resource allocation: names in ResourceSlices, and so in claims and device classes.
DRA_DRIVER = DOMAIN
DRA_VCORE = "vcore"  # capacities: vcore of a device
DRA_VMEMORY = "vmemory"  # bytes
DRA_UUID = "uuid"  # attributes
DRA_MODEL = "model"
DRA_COMPUTE_CLASS = "computeClass"
DRA_COMPUTE_CAPABILITY = "computeCapability"  # a version, like the next two
DRA_DRIVER_RELEASE = "driverRelease"
DRA_CUDA_VERSION = "cudaVersion"
DRA_DRIVER_RELEASE_TEXT = "driverReleaseText"  # as the driver writes it
DRA_CUDA_VERSION_TEXT = "cudaVersionText"
DRA_NVLINK_GROUP = "nvlinkGroup"  # the same value for devices that are all linked to each other
DRA_NUMA = "numa"
DRA_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
DRA_MIG_PROFILE = "migProfile"  # of a partition: the MIG profile, and its first memory slice
DRA_MIG_START = "migStart"
DRA_COMPUTE_SLICES = "compute-slices"  # counters of a GPU with partitions
DRA_MULTIPROCESSORS = "multiprocessors"
DRA_MEMORY_SLICE = "memory-slice-"  # and a number; 1
DRA_INSTANCES = "instances-"  # and a profile: the most instances of it, if slices allow more
DRA_UNHEALTHY_TAINT = f"{DOMAIN}/unhealthy"
DRA_CORDONED_TAINT = f"{DOMAIN}/cordoned"
DRA_OCCUPIED_TAINT = f"{DOMAIN}/occupied"  # no claim has the partition, but others use its place
TOTAL_VCORE = f"{DOMAIN}/total-vcore"  # on a namespace: the limit for the sum of its claims
TOTAL_VMEMORY = f"{DOMAIN}/total-vmemory"
DEVICE_RESOURCE = f"{DOMAIN}/device"  # whole devices of a class, for pods without a claim
CLAIM_TEMPLATE_LABEL = f"{DOMAIN}/claim-template"  # on claim templates that we created
CLAIM_TEMPLATE_USED_ANNOTATION = f"{DOMAIN}/used"  # on them: the time of the last use

# Sidecars: variables that users set on containers, labels and annotations that we set on pods.
SIDECAR_VARIABLE = "SIDECAR_TERMINATION"  # also the prefix of _GRACE_SECONDS, _ORDER...
SIDECAR_LABEL = f"{DOMAIN}/sidecars"
SIDECAR_MANAGED = "managed"  # its value on pods that the controllers watch; they watch no others
STOP_ANNOTATION = f"{DOMAIN}/sidecar-stop"  # the decision and its time
SWAP_ANNOTATION = f"{DOMAIN}/swap"  # a user requests other images: {container: {"image": ...}}
SWAPPED_ANNOTATION = f"{DOMAIN}/swapped"  # the original images
START_COMMAND_ANNOTATION = f"{DOMAIN}/start_command"  # .<container>.<piece>
FAST_EXIT_PROGRAM = "/pyvgpu-exit"  # the ENTRYPOINT of the fast-exit image
LAUNCH_PROGRAM = "/pyvgpu/launch/pyvgpu-launch"  # the same file, in a volume, under another name

# Annotations of agents and the scheduler; see pyvgpu/allocator/annotations.py.
CORDONED_ANNOTATION = f"{DOMAIN}/cordoned"  # on a node, by its administrator: UUIDs
AGENT_CONFIG_LABEL = f"{DOMAIN}/agent-config"  # on a node: the name of its agent's options
GPU_NODE_LABEL = f"{DOMAIN}/gpu-node"  # on a node: with agent.gpuNodesOnly it gets an agent
NODE_DEVICES_ANNOTATION = f"{DOMAIN}/node-devices"  # on a node: its devices
DEVICE_ISOLATION_ANNOTATION = f"{DOMAIN}/device-isolation"  # on a node, for `describe node`
DEVICES_ANNOTATION = f"{DOMAIN}/devices"  # on a pod: its shares
GAIA_PREDICATE = f"{GAIA_DOMAIN}/predicate-"  # on a pod: prefix of annotations of the choice
GAIA_ASSIGNED_ANNOTATION = f"{GAIA_DOMAIN}/gpu-assigned"  # on a pod: it has got its devices

# Annotations of users on pods that share devices; the last is gpu-manager's.
VCORE_POLICY_ANNOTATION = f"{DOMAIN}/vcore-policy"  # hard or elastic
VCORE_LIMIT_ANNOTATION = f"{DOMAIN}/vcore-limit"  # the most that elastic may reach
PRIORITY_ANNOTATION = f"{DOMAIN}/priority"  # low, normal or high, on the device
MIG_ANNOTATION = f"{DOMAIN}/mig"  # a MIG profile, such as 1g.10gb
ISOLATION_ANNOTATION = f"{DOMAIN}/isolation"  # quota, hardware or mps
HAMI_PRIORITY_VARIABLE = "CUDA_TASK_PRIORITY"  # 0: high, more: low
GAIA_LIMIT_ANNOTATION = f"{GAIA_DOMAIN}/vcuda-core-limit"

# Suspension of a pod: its user requests it, and its node's agent says what became of it.
SUSPEND_ANNOTATION = f"{DOMAIN}/suspend"  # keep: with its reservation
SUSPENSION_ANNOTATION = f"{DOMAIN}/suspension"  # JSON; see pyvgpu/allocator/suspensions.py

# Annotations of users on pods that select devices; see pyvgpu/allocator/device_selector.py.
DEVICE_UUIDS_ANNOTATION = f"{DOMAIN}/device-uuids"
NOT_DEVICE_UUIDS_ANNOTATION = f"{DOMAIN}/not-device-uuids"
DEVICE_MODELS_ANNOTATION = f"{DOMAIN}/device-models"
NOT_DEVICE_MODELS_ANNOTATION = f"{DOMAIN}/not-device-models"
DEVICE_CLASSES_ANNOTATION = f"{DOMAIN}/device-classes"
DEVICE_NUMA_ANNOTATION = f"{DOMAIN}/device-numa"
DEVICE_MEMORY_ANNOTATION = f"{DOMAIN}/device-memory"
DEVICE_COUNT_ANNOTATION = f"{DOMAIN}/device-count"
PACKING_ANNOTATION = f"{DOMAIN}/packing"
TOPOLOGY_POLICY_ANNOTATION = f"{DOMAIN}/topology-policy"

# Annotations of users on pods for the scheduler.
PLACEMENT_ANNOTATION = f"{DOMAIN}/placement"  # of nodes: binpack, spread or topology
GANG_ANNOTATION = f"{DOMAIN}/gang"  # the name of a gang: pods that are scheduled all together
GANG_SIZE_ANNOTATION = f"{DOMAIN}/gang-size"  # number of pods
GANG_TIMEOUT_ANNOTATION = f"{DOMAIN}/gang-timeout"  # timeout for binding all of them
