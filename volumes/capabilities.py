"""Device nodes of the driver's capabilities: permission to use one MIG device, or to see all.

The kernel driver lists them in /proc, one file each, and numbers them; their nodes are
/dev/nvidia-caps/nvidia-cap<minor>. NVIDIA's tools create a node when it is first needed, so it may
be missing on the host: runtimes create it in a container from its numbers.

    /proc/driver/nvidia/capabilities/mig/monitor                   see all instances
    /proc/driver/nvidia/capabilities/gpu0/mig/gi1/access           one GPU instance
    /proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access       one compute instance

The GPU's number is its minor, which is not its index.
"""

from __future__ import annotations

from pathlib import Path

from pyvgpu import errors
from pyvgpu.volumes import cdi, root

PROC = Path("/proc")
FOLDER = "nvidia-caps"  # in /dev, and the driver's name in /proc/devices
_CAPABILITIES = "driver/nvidia/capabilities"
_MINOR = "DeviceFileMinor"


def proc_of(driver_root: Path) -> Path:
    """Return /proc below *driver_root* if it has the driver's capabilities, else the machine's."""
    own = root.Root(driver_root).outside("/proc")
    return own if (own / _CAPABILITIES).is_dir() else PROC


def of_instance(
    minor: int, gpu_instance: int, compute_instance: int, proc: Path = PROC
) -> tuple[cdi.CdiNode, cdi.CdiNode]:
    """Return the two nodes of a MIG device: of its GPU instance, and its compute instance.

    *minor* is the GPU's. Raises UnavailableError if the driver does not list them.
    """
    base = proc / _CAPABILITIES / f"gpu{minor}/mig/gi{gpu_instance}"
    return _node(proc, base / "access"), _node(proc, base / f"ci{compute_instance}/access")


def monitor(proc: Path = PROC) -> tuple[cdi.CdiNode, ...]:
    """Return the node that lets an unprivileged process see all MIG devices; none without MIG."""
    try:
        return (_node(proc, proc / _CAPABILITIES / "mig/monitor"),)
    except errors.UnavailableError:
        return ()


def _node(proc: Path, path: Path) -> cdi.CdiNode:
    minor = next(
        (
            value.strip()
            for key, _, value in (line.partition(":") for line in _lines(path))
            if key.strip() == _MINOR
        ),
        "",
    )
    major = next(
        (
            words[0]
            for words in map(str.split, _lines(proc / "devices"))
            if len(words) == 2 and words[1] == FOLDER
        ),
        "",
    )
    if not minor.isdecimal() or not major.isdecimal():
        missing = f"{path} has no {_MINOR}" if major else f"{proc / 'devices'} has no {FOLDER}"
        raise errors.UnavailableError(
            f"{missing}; the kernel module must be of a driver with MIG, 450 or later"
        )
    return cdi.CdiNode(f"{FOLDER}/nvidia-cap{minor}", int(major), int(minor))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise errors.UnavailableError(f"{path}: cannot be read: {errors.reason_of(exc)}") from exc
