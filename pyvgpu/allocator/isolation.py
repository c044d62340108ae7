"""The isolation that a pod requests by its annotation, and the one that a share has."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from pyvgpu import errors, names, quota

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyvgpu.allocator import datatypes, elastic

TIME_SLICES = "time-slices"  # the allocation API of that name


def read(annotations: Mapping[str, str]) -> quota.Isolation:
    """Return the isolation of a pod's *annotations*, by default QUOTA; UsageError."""
    text = annotations.get(names.ISOLATION_ANNOTATION)
    if text is None:
        return quota.Isolation.QUOTA
    return quota.Isolation.parse(text, names.ISOLATION_ANNOTATION)


def check_need(need: datatypes.ContainerNeed) -> None:
    """Raise UsageError unless MPS can serve *need*: a share of one device."""
    if need.whole or need.count > 1:
        asked = "whole devices" if need.whole else f"shares of {need.count} devices"
        raise errors.UsageError(
            f"{names.ISOLATION_ANNOTATION} mps: a container gets a share of one device, {asked} "
            "are requested; valid would be 1 to 99 vcore and one device"
        )


def check_time_sharing(
    isolation: quota.Isolation,
    time_sharing: elastic.TimeSharing | None,
    priority: quota.Priority | None,
) -> None:
    """Raise UsageError for options that divide time, under MPS, which does not."""
    if isolation is quota.Isolation.MPS:
        quota.Quota(
            policy=quota.TimePolicy.HARD if time_sharing is None else time_sharing.policy,
            vcore_limit=None if time_sharing is None else time_sharing.ceiling,
            priority=priority or quota.Priority.NORMAL,
            isolation=isolation,
        )


class Means(enum.StrEnum):
    """The means that hold tenants to their shares of a device, as all views show them."""

    QUOTA = "quota"  # the shim: vcore is device time
    HARDWARE = "hardware"  # a MIG device of its own
    HARDWARE_AND_QUOTA = "hardware+quota"  # a MIG device, divided again by the shim
    MPS = "mps"  # vcore is SMs, by MPS, and memory is the shim's
    TIME_SLICES = "time-slices"  # turns of the driver, without limits
    WHOLE = "whole-device"  # none: the container alone has the GPU


def of_share(share: datatypes.NodeShare, *, mps: bool = False) -> Means:
    """Return the means that hold a container to its *share*; *mps*: MPS divides the device."""
    if mps:
        return Means.MPS
    in_mig_device = share.uuid.startswith(names.MIG_UUID_PREFIX)
    if share.mig or (in_mig_device and share.whole):
        return Means.HARDWARE
    if in_mig_device:
        return Means.HARDWARE_AND_QUOTA
    return Means.WHOLE if share.whole else Means.QUOTA


def of_run(uuid: str, asked: quota.Isolation) -> Means:
    """Return the means that hold a run to its share of the device *uuid*.

    A run has a quota on a MIG device, too.
    """
    if uuid.startswith(names.MIG_UUID_PREFIX) and asked is quota.Isolation.QUOTA:
        return Means.HARDWARE_AND_QUOTA
    return Means(asked.name.lower())


def of_device(device: datatypes.NodeDevice) -> Means:
    """Return the means that hold the tenants of a *device* to their shares."""
    if device.profiles:
        return Means.HARDWARE
    if device.mps and not device.allocated_by:
        return Means.MPS
    if device.instance:
        return Means.HARDWARE_AND_QUOTA
    return Means.TIME_SLICES if device.allocated_by == TIME_SLICES else Means.QUOTA


def describe(devices: Iterable[datatypes.NodeDevice]) -> str:
    """Return the means of a node's *devices* in one line, such as gpu0=quota,gpu1=hardware."""
    return ",".join(f"{device.label}={of_device(device)}" for device in devices)
