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
GRANT_KIND = f"{DOMAIN}/grant"  # of CDI; also the annotation in which kubelet keeps a grant's id

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

# What a user writes on a pod that shares devices; the last is gpu-manager's.
VCORE_POLICY_ANNOTATION = f"{DOMAIN}/vcore-policy"  # hard or elastic
VCORE_LIMIT_ANNOTATION = f"{DOMAIN}/vcore-limit"  # what elastic may reach
GAIA_LIMIT_ANNOTATION = f"{GAIA_DOMAIN}/vcuda-core-limit"
