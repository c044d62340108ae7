"""A tenant's share of one device, derived from its quota."""

from __future__ import annotations

import dataclasses

from pyvgpu import device, errors, quantity, quota

MPS_SERVER_BYTES = 64 << 20  # of a device; servers of 27 to 60 MiB were reported
LEAST_ROOM_BYTES = 64 << 20  # minimum beside the context, for a program to be of use


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """A share of one device."""

    device: device.Device
    vcore: int  # percent of the device's time
    vmemory: int  # bytes
    policy: quota.TimePolicy = quota.TimePolicy.HARD
    ceiling: int | None = None  # most percent for elastic; None: the whole device
    priority: quota.Priority = quota.Priority.NORMAL
    isolation: quota.Isolation = quota.Isolation.QUOTA

    def __post_init__(self) -> None:
        if not 1 <= self.vcore <= quantity.WHOLE_DEVICE:
            raise errors.UsageError(
                f"vcore={self.vcore}: must be from 1 to {quantity.WHOLE_DEVICE}, such as 50"
            )
        self._check_ceiling()
        have = usable_bytes(self.device, self.isolation)
        if self.vmemory > have:
            raise errors.UsageError(
                f"vmemory {quantity.format_exact(self.vmemory)}: {self.device.label} has "
                f"{quantity.format_size(have)}; valid would be "
                f"{quantity.format_exact(quantity.round_down(have))}"
            )
        least = self.device.context_bytes + LEAST_ROOM_BYTES
        if self.vmemory < least:
            raise errors.UsageError(
                f"vmemory {quantity.format_exact(self.vmemory)}: must be at least "
                f"{quantity.format_exact(least)} on {self.device.label}, because a CUDA context "
                f"alone takes {quantity.format_size(self.device.context_bytes)} of it"
                f"{quantity.meant(self.vmemory)}"
            )

    @property
    def vcore_limit(self) -> int:
        """The most that the share may reach while no other tenant wants the device's time."""
        if self.policy is quota.TimePolicy.HARD:
            return self.vcore
        return quantity.WHOLE_DEVICE if self.ceiling is None else self.ceiling

    def _check_ceiling(self) -> None:
        if self.ceiling is None:
            return
        if self.policy is not quota.TimePolicy.ELASTIC:
            raise errors.UsageError(
                f"vcore limit {self.ceiling}: needs the policy elastic, such as "
                f"--policy elastic --vcore-limit {self.ceiling}"
            )
        if not self.vcore <= self.ceiling <= quantity.WHOLE_DEVICE:
            raise errors.UsageError(
                f"vcore limit {self.ceiling}: must be from the vcore, {self.vcore}, to "
                f"{quantity.WHOLE_DEVICE}, such as --vcore-limit {quantity.WHOLE_DEVICE}"
            )


def usable_bytes(chosen: device.Device, isolation: quota.Isolation) -> int:
    """Return the bytes of a device that tenants with *isolation* may have together."""
    server = MPS_SERVER_BYTES if isolation is quota.Isolation.MPS else 0
    return max(chosen.memory_bytes - server, 0)


def fit(asked: quota.Quota, chosen: device.Device) -> Share:
    """Return the share of *chosen* for the quota *asked*, with defaults for missing values."""
    vcore = quantity.WHOLE_DEVICE if asked.vcore is None else asked.vcore
    vmemory = asked.vmemory
    if vmemory is None:
        vmemory = usable_bytes(chosen, asked.isolation)
        if vcore < quantity.WHOLE_DEVICE:
            vmemory = quantity.round_down(vmemory * vcore // quantity.WHOLE_DEVICE)
            _check_default(chosen, vcore, vmemory)
    return Share(
        chosen,
        vcore,
        vmemory,
        asked.policy,
        asked.vcore_limit,
        asked.priority,
        asked.isolation,
    )


def _check_default(chosen: device.Device, vcore: int, vmemory: int) -> None:
    """Raise UsageError if *vcore* percent of a device's memory, in bytes, is too little."""
    least = chosen.context_bytes + LEAST_ROOM_BYTES
    if vmemory < least:
        raise errors.UsageError(
            f"vcore {vcore} without a vmemory: {vcore} percent of {chosen.label} is "
            f"{quantity.format_size(vmemory)} of memory, and a share needs at least "
            f"{quantity.format_exact(least)}, because a CUDA context alone takes "
            f"{quantity.format_size(chosen.context_bytes)}; valid would be --vmemory "
            f"{quantity.format_exact(least)}"
        )


def change(held: Share, wanted: quota.QuotaChange) -> Share:
    """Return *held* with the change *wanted*."""
    if held.isolation is quota.Isolation.MPS:
        _check_change_under_mps(held, wanted)
    policy = held.policy if wanted.policy is None else wanted.policy
    ceiling = held.ceiling if policy is quota.TimePolicy.ELASTIC else None
    return Share(
        held.device,
        held.vcore if wanted.vcore is None else wanted.vcore,
        held.vmemory if wanted.vmemory is None else wanted.vmemory,
        policy,
        ceiling if wanted.vcore_limit is None else wanted.vcore_limit,
        held.priority if wanted.priority is None else wanted.priority,
        held.isolation,
    )


def _check_change_under_mps(held: Share, wanted: quota.QuotaChange) -> None:
    """MPS fixes the limits of a process at its start; the shim can only lower its memory."""
    time = (wanted.vcore, wanted.policy, wanted.vcore_limit, wanted.priority)
    if time != (None, None, None, None):
        raise errors.UsageError(
            "under MPS only --vmemory can change: MPS fixes the SMs of a process at its start"
        )
    if wanted.vmemory is not None and wanted.vmemory > held.vmemory:
        raise errors.UsageError(
            f"vmemory {quantity.format_exact(wanted.vmemory)}: must be at most "
            f"{quantity.format_exact(held.vmemory)} under MPS, which fixes the most at the start"
        )
