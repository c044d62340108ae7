"""The names by which others know us: files, folders, environment variables.

Only names that two parts of pyvgpu, or pyvgpu and somebody else, must agree on.
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
SIMULATED_MACHINE_VARIABLE = "PYVGPU_SIMULATED_MACHINE"

QUOTA_FILE = "quota"
USAGE_FILE = "usage"
PROMISE_FILE = "promise.json"
TAMPERED_FILE = "tampered"  # there if something other than the shim changed the usage file
LIMIT_FILE = "driver-limit"  # what the driver itself holds a run or container to, or why not
CONTROL_SOCKET = "control"  # on which a run's supervisor is asked for another quota

ARBITER_FOLDER = "arbiter-"  # in a book; and the number of the user whose it is
ARBITER_FILE = "arbiter"  # in it: locked by the arbiter, which keeps it beating
CLOCK_LINK = "clock."  # in a promise's folder; and the index of the device in the quota

BOOK_OF_ROOT = Path("/run/pyvgpu")
BOOK_OF_ALL = Path("/tmp/pyvgpu")  # noqa: S108 - sticky, and every entry's owner is checked

DOMAIN = "pyvgpu.io"

# The node agent: what kubelet counts, and how a container's grant is called.
VCORE_RESOURCE = f"{DOMAIN}/vcore"
VMEMORY_RESOURCE = f"{DOMAIN}/vmemory"
GAIA_DOMAIN = "tencent.com"  # gpu-manager's
GAIA_VCORE_RESOURCE = f"{GAIA_DOMAIN}/vcuda-core"
GAIA_VMEMORY_RESOURCE = f"{GAIA_DOMAIN}/vcuda-memory"
CONTROL_RESOURCE = f"{DOMAIN}/control"  # the nodes of all devices, for the agent; also of CDI
ADMIN_KIND = f"{DOMAIN}/admin"  # of CDI: devices to look at
GRANT_KIND = f"{DOMAIN}/grant"  # of CDI; also the annotation in which kubelet keeps a grant's id

# Dynamic resource allocation: what is in ResourceSlices, and so in claims and classes of devices.
DRA_DRIVER = DOMAIN
DRA_VCORE = "vcore"  # capacities: vcore of a device
DRA_VMEMORY = "vmemory"  # bytes
DRA_UUID = "uuid"  # attributes
DRA_MODEL = "model"
DRA_COMPUTE_CLASS = "computeClass"
DRA_COMPUTE_CAPABILITY = "computeCapability"  # a version, as the next two
DRA_DRIVER_RELEASE = "driverRelease"
DRA_CUDA_VERSION = "cudaVersion"
DRA_DRIVER_RELEASE_TEXT = "driverReleaseText"  # as the driver says it
DRA_CUDA_VERSION_TEXT = "cudaVersionText"
DRA_NVLINK_GROUP = "nvlinkGroup"  # the same for devices that are all linked with each other
DRA_NUMA = "numa"
DRA_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
DRA_SICK_TAINT = f"{DOMAIN}/sick"
DRA_CORDONED_TAINT = f"{DOMAIN}/cordoned"
TOTAL_VCORE = f"{DOMAIN}/total-vcore"  # on a namespace: what all its claims may ask for together
TOTAL_VMEMORY = f"{DOMAIN}/total-vmemory"
DEVICE_RESOURCE = f"{DOMAIN}/device"  # whole devices by a class, for pods without a claim
CLAIM_TEMPLATE_LABEL = f"{DOMAIN}/claim-template"  # on templates of claims that we have made
CLAIM_TEMPLATE_USED_ANNOTATION = f"{DOMAIN}/used"  # on them: when one was last needed

# Sidecars: what a user writes on a container, what we write on a pod.
SIDECAR_VARIABLE = "SIDECAR_TERMINATION"  # and what it begins with: _GRACE_SECONDS, _ORDER...
SIDECAR_LABEL = f"{DOMAIN}/sidecars"
SIDECAR_MANAGED = "managed"  # its value in pods that the controllers watch; they watch no others
STOP_ANNOTATION = f"{DOMAIN}/sidecar-stop"  # what was decided and when
SWAP_ANNOTATION = f"{DOMAIN}/swap"  # a person asks for other images: {container: {"image": ...}}
SWAPPED_ANNOTATION = f"{DOMAIN}/swapped"  # what to put back
START_COMMAND_ANNOTATION = f"{DOMAIN}/start_command"  # .<container>.<piece>
FAST_EXIT_PROGRAM = "/pyvgpu-exit"  # the ENTRYPOINT of the image that ends at once
LAUNCH_PROGRAM = "/pyvgpu/launch/pyvgpu-launch"  # the same file, in a volume, under the other name

# What agents and the scheduler write; see pyvgpu/allocator/annotations.py.
CORDONED_ANNOTATION = f"{DOMAIN}/cordoned"  # on a node, by its administrator: UUIDs
NODE_DEVICES_ANNOTATION = f"{DOMAIN}/node-devices"  # on a node: what it has
DEVICES_ANNOTATION = f"{DOMAIN}/devices"  # on a pod: what it gets
GAIA_PREDICATE = f"{GAIA_DOMAIN}/predicate-"  # on a pod: what annotations of its choice begin with
GAIA_ASSIGNED_ANNOTATION = f"{GAIA_DOMAIN}/gpu-assigned"  # on a pod: that it has got them

# What a user writes on a pod that shares devices; the last is gpu-manager's.
VCORE_POLICY_ANNOTATION = f"{DOMAIN}/vcore-policy"  # hard or elastic
VCORE_LIMIT_ANNOTATION = f"{DOMAIN}/vcore-limit"  # what elastic may reach
PRIORITY_ANNOTATION = f"{DOMAIN}/priority"  # low, normal or high, on the device
HAMI_PRIORITY_VARIABLE = "CUDA_TASK_PRIORITY"  # 0: high, more: low
GAIA_LIMIT_ANNOTATION = f"{GAIA_DOMAIN}/vcuda-core-limit"

# What a user writes on a pod about which devices it may get; see pyvgpu/allocator/wanted.py.
DEVICE_UUIDS_ANNOTATION = f"{DOMAIN}/device-uuids"
NOT_DEVICE_UUIDS_ANNOTATION = f"{DOMAIN}/not-device-uuids"
DEVICE_MODELS_ANNOTATION = f"{DOMAIN}/device-models"
NOT_DEVICE_MODELS_ANNOTATION = f"{DOMAIN}/not-device-models"
DEVICE_CLASSES_ANNOTATION = f"{DOMAIN}/device-classes"
DEVICE_NUMA_ANNOTATION = f"{DOMAIN}/device-numa"
DEVICE_MEMORY_ANNOTATION = f"{DOMAIN}/device-memory"
DEVICE_COUNT_ANNOTATION = f"{DOMAIN}/device-count"
PACKING_ANNOTATION = f"{DOMAIN}/packing"
NEARNESS_ANNOTATION = f"{DOMAIN}/nearness"

# What a user writes on a pod for the scheduler; which devices, is in pyvgpu/allocator/wanted.py.
PLACEMENT_ANNOTATION = f"{DOMAIN}/placement"  # which node: binpack, spread or topology
GANG_ANNOTATION = f"{DOMAIN}/gang"  # the name of pods that run all together
GANG_SIZE_ANNOTATION = f"{DOMAIN}/gang-size"  # how many they are
GANG_SECONDS_ANNOTATION = f"{DOMAIN}/gang-seconds"  # in which they must be bound
