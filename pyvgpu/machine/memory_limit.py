"""The driver's own memory limit per cgroup and device.

NVML has it since CUDA 13.4 (nvmlDeviceSetMemoryLimits_v1), for root, cgroup v2 and devices that
are not in MIG mode. The driver fails allocations over it for any program in the cgroup, with the
shim or without. The shim still refuses first: the limit is the quota plus a margin. The soft limit
stays at 0: the driver adds a cgroup's soft limit to its parents', and subtracts it only if it is
cleared before the cgroup is removed.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from pyvgpu import errors
from pyvgpu.machine import cgroups

# The margin between a container's quota and the driver's limit, for memory that the driver uses
# for its processes beyond all charges, until that is measured.
MARGIN_BYTES = 64 << 20

FUNCTION = "nvmlDeviceSetMemoryLimits_v1"  # of NVML

_USUAL = Path("/sys/fs/cgroup")
_REASONS = {  # by the name of NVML's result
    "NVML_ERROR_NO_PERMISSION": "the driver lets only an administrator set limits, which may need "
    "the capability SYS_ADMIN (agent.capabilities of the chart)",
    "NVML_ERROR_OPERATING_SYSTEM": "the driver could not open the cgroup",
    "NVML_ERROR_NOT_FOUND": "the cgroup has no dmem controller; its parent can enable it "
    "(+dmem in cgroup.subtree_control)",
}


class NotSetError(errors.UnavailableError):
    """The driver did not set a limit for this cgroup and device; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """The driver's limit for one run or container, or why there is none."""

    cgroups: tuple[str, ...] = ()  # their folders
    sizes: tuple[int, ...] = ()  # bytes that were set, by device of the quota
    why: str = ""  # why the limit is missing or outdated, if the driver supports limits

    def dump(self) -> bytes:
        """Return the content of the limit file of a run or grant."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"


NONE = Limit()


def load(raw: bytes) -> Limit:
    """Parse the output of :meth:`Limit.dump`; DataError if it is not valid."""
    try:
        found = json.loads(raw)
        limit = Limit(tuple(found["cgroups"]), tuple(found["sizes"]), found["why"])
        texts = (*limit.cgroups, limit.why)
        if {type(text) for text in texts} != {str} or {type(cap) for cap in limit.sizes} - {int}:
            raise TypeError("a field has another type")
    except (ValueError, LookupError, TypeError, RecursionError) as exc:
        raise errors.DataError(f"not a driver limit: {exc}") from exc
    return limit


def size(vmemory: int, memory_bytes: int) -> int:
    """Return the limit for a quota of *vmemory* bytes on a device of *memory_bytes*.

    The driver rejects limits that are larger than the device.
    """
    return min(vmemory + MARGIN_BYTES, memory_bytes)


def is_offered(uuid: str) -> bool:
    """Return whether the driver supports limits on a device; call this in an NVML session."""
    import pynvml

    from pyvgpu import nvml

    found = cgroups.mount()
    try:
        nvml.read_memory_limit(uuid, _USUAL if found is None else found[1])
    except pynvml.NVMLError as exc:
        return exc.value not in nvml.UNSUPPORTED
    return True


def put(uuid: str, cgroup: Path, vmemory: int) -> int:
    """Set the limit for a quota, in an NVML session, and return its bytes; NotSetError."""
    import pynvml

    from pyvgpu import nvml

    try:
        wanted = size(vmemory, nvml.total_bytes(uuid))
        nvml.set_memory_limit(uuid, cgroup, wanted)
    except pynvml.NVMLError as exc:
        reasons = {getattr(pynvml, name): text for name, text in _REASONS.items()}
        raise NotSetError(reasons.get(exc.value, f"NVML: {exc}")) from exc
    return wanted
