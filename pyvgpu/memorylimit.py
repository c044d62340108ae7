"""The driver's own limit of device memory for a cgroup, where the driver has one.

NVML has it since CUDA 13.4 (nvmlDeviceSetMemoryLimits_v1), for root, for cgroups of version 2 and
devices that are not in MIG mode. The driver refuses what goes beyond it to any program in the
cgroup, with the shim or without. The shim stays the first to refuse: the limit is the quota and a
margin. The soft limit is left at 0: the driver adds those of a cgroup to its parents', and takes
them back only if they are lifted before the cgroup is removed.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from pyvgpu import cgroups, errors

# What a container may hold beyond its quota before it is at the driver's limit: what the driver
# takes for its processes beyond all that is charged, until that is measured.
MARGIN_BYTES = 64 << 20

FUNCTION = "nvmlDeviceSetMemoryLimits_v1"  # of NVML

_USUAL = Path("/sys/fs/cgroup")
_REASONS = {  # by the name of NVML's result
    "NVML_ERROR_NO_PERMISSION": "the driver lets only an administrator set limits, which may take "
    "the capability SYS_ADMIN (agent.capabilities of the chart)",
    "NVML_ERROR_OPERATING_SYSTEM": "the driver could not open the cgroup",
    "NVML_ERROR_NOT_FOUND": "the cgroup has no dmem controller, which its parent may have enabled "
    "for it (+dmem in cgroup.subtree_control)",
}


class NotSetError(errors.UnavailableError):
    """The driver has no such limit for this cgroup and device; why not."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """What is known of the driver's limit for one run or container, or why there is none."""

    cgroups: tuple[str, ...] = ()  # their folders
    sizes: tuple[int, ...] = ()  # bytes by device of the quota, as they were set
    why: str = ""  # why it is not as it should be, where the driver could have one

    def dump(self) -> bytes:
        """Return it as the file of the run or grant has it."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"


NONE = Limit()


def load(raw: bytes) -> Limit:
    """Read what :meth:`Limit.dump` wrote; DataError if it is nothing of the kind."""
    try:
        found = json.loads(raw)
        limit = Limit(tuple(found["cgroups"]), tuple(found["sizes"]), found["why"])
        texts = (*limit.cgroups, limit.why)
        if {type(it) for it in texts} != {str} or {type(it) for it in limit.sizes} - {int}:
            raise TypeError("a field has another type")
    except (ValueError, LookupError, TypeError, RecursionError) as exc:
        raise errors.DataError(f"no limit of the driver's: {exc}") from exc
    return limit


def size(vmemory: int, memory_bytes: int) -> int:
    """Return the limit for a quota of *vmemory* bytes on a device that has *memory_bytes*.

    The driver refuses limits that are larger than the device.
    """
    return min(vmemory + MARGIN_BYTES, memory_bytes)


def is_offered(uuid: str) -> bool:
    """Tell whether the driver has such limits for a device, in a session of NVML."""
    import pynvml

    from pyvgpu import nvml

    found = cgroups.mount()
    try:
        nvml.read_memory_limit(uuid, _USUAL if found is None else found[1])
    except pynvml.NVMLError as exc:
        return exc.value not in nvml.UNKNOWN
    return True


def put(uuid: str, cgroup: Path, vmemory: int) -> int:
    """Set the limit for a quota, in a session of NVML; return its bytes. NotSetError if not."""
    import pynvml

    from pyvgpu import nvml

    try:
        wanted = size(vmemory, nvml.total_bytes(uuid))
        nvml.set_memory_limit(uuid, cgroup, wanted)
    except pynvml.NVMLError as exc:
        reasons = {getattr(pynvml, name): text for name, text in _REASONS.items()}
        raise NotSetError(reasons.get(exc.value, f"NVML: {exc}")) from exc
    return wanted
