"""The limits that MPS gives the programs of a tenant: part of the SMs, and device memory.

Pure. Both are limits of a process, not of a tenant: the sum over its processes is bounded by the
shim's ledger for memory, and for SMs by the tenant's part only if one process runs at a time.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors, quantity

if TYPE_CHECKING:
    from pathlib import Path

    from pyvgpu.share import Share

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"
PERCENTAGE_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"

LEAST_CAPABILITY = (7, 0)  # Volta: older devices have no limits of clients
_HOPPER = (9, 0)
_STEP_SMS = 2
_LEAST_SMS = 8  # on Hopper
# SMs for which cuBLAS 12.6 to 13.8 was reported to leave parts of half-precision and FP8 products
# unwritten on an H200, without an error. H100 is untested, and treated alike.
_DOUBTFUL_SMS = (range(17, 30), range(35, 62), range(67, 118))


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Facts of a device that decide about MPS."""

    prohibited: bool  # compute mode: no process may use the device
    capability: tuple[int, int]
    sms: int


@dataclasses.dataclass(frozen=True, slots=True)
class SmLimit:
    """The part of a device's SMs that a process may use."""

    percent: int  # CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
    sms: int  # as the driver is expected to round it
    lowered: bool = False  # below vcore, because of _DOUBTFUL_SMS


def check_device(facts: DeviceFacts, label: str) -> None:
    """Raise UnavailableError if the device *label* cannot have an MPS server."""
    if facts.prohibited:
        raise errors.UnavailableError(
            f"sharing mps: the compute mode of {label} is PROHIBITED; must be DEFAULT or "
            "EXCLUSIVE_PROCESS, as by `nvidia-smi -c DEFAULT`"
        )
    if facts.capability < LEAST_CAPABILITY:
        major, minor = facts.capability
        raise errors.UnavailableError(
            f"sharing mps: {label} has compute capability {major}.{minor}; must be at least 7.0, "
            "because older devices do not limit the clients of MPS"
        )


def limit_sms(vcore: int, facts: DeviceFacts) -> SmLimit:
    """Return the limit for *vcore* percent of the device.

    On Hopper it is lowered to the next one that no report names; see _DOUBTFUL_SMS.
    """
    percent = vcore
    while facts.capability == _HOPPER and _is_doubtful(_sms(percent, facts)):
        percent -= 1
    return SmLimit(percent, _sms(percent, facts), percent < vcore)


def variables(share: Share, limit: SmLimit, pipe: Path) -> dict[str, str]:
    """Return the environment of a tenant's programs: the daemon, SMs, memory of each process.

    The daemon has one device, which is number 0 for its clients. Their limit is whole MiB, and not
    below the tenant's vmemory, so that the shim refuses first, with its own message.
    """
    found = {
        PIPE_VARIABLE: str(pipe),
        MEMORY_VARIABLE: f"0={-(-share.vmemory // (1 << 20))}M",
    }
    if limit.percent < quantity.WHOLE_DEVICE:
        found[PERCENTAGE_VARIABLE] = str(limit.percent)
    return found


def describe_lowered(vcore: int, limit: SmLimit, label: str) -> str:
    """Return the line that explains a limit below vcore."""
    return (
        f"sharing mps: {limit.percent} percent of {label} instead of {vcore}: {limit.sms} SMs, "
        "since wrong results of cuBLAS were reported for H200 with numbers of SMs above that "
        "(docs/sharing.md)"
    )


def _sms(percent: int, facts: DeviceFacts) -> int:
    """Return the SMs of a percentage, rounded as observed: down to an even number, at least 8."""
    if percent >= quantity.WHOLE_DEVICE:
        return facts.sms
    least = _LEAST_SMS if facts.capability >= _HOPPER else _STEP_SMS
    sms = percent * facts.sms // quantity.WHOLE_DEVICE // _STEP_SMS * _STEP_SMS
    return min(max(sms, least), facts.sms)


def _is_doubtful(sms: int) -> bool:
    return any(sms in doubtful for doubtful in _DOUBTFUL_SMS)
