"""MIG profiles of simulated models, and GPUs on which pods get instances."""

from __future__ import annotations

from typing import Any

from pyvgpu import device
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin.devices import inventory
from pyvgpu.deviceplugin.dra import mig_partitions, resource_slices
from pyvgpu.simulation import mig

DRIVER = inventory.DriverVersions("550.163.01", "12.4")
ALL = resource_slices.ServerSupport()
SEPARATE = mig_partitions.Form.SEPARATE


def of_model(model: str) -> tuple[datatypes.MigProfile, ...]:
    """Return the profiles of a model, as an agent publishes them."""
    return tuple(
        datatypes.MigProfile(
            one.name, one.id, one.memory_mib << 20, one.sms, one.slices, one.size, one.most,
            one.starts,
        )
        for one in mig.profiles(model)
    )  # fmt: skip


def gpu(number: int = 0, model: str = "h100", taken: tuple[str, ...] = ()) -> datatypes.NodeDevice:
    """Return a GPU on which pods get instances."""
    profiles = of_model(model)
    return datatypes.NodeDevice(
        f"GPU-00000000-0000-0000-0000-{number:012}",
        number,
        max(profile.memory_bytes for profile in profiles),
        profiles=profiles,
        taken=taken,
    )


def partitioned(
    *gpus: datatypes.NodeDevice, support: resource_slices.ServerSupport = ALL
) -> tuple[mig_partitions.Partitioned, ...]:
    """Return the partitions of *gpus*, as an agent publishes them."""
    seen = [
        inventory.InventoryDevice(
            device.Device(gpu.uuid, gpu.index, gpu.model, 80 << 30, 1 << 20), gpu.index, 0, {}
        )
        for gpu in gpus
    ]
    return mig_partitions.of_devices(seen, gpus, DRIVER, support)


def slices(
    node: str, *gpus: datatypes.NodeDevice, form: mig_partitions.Form = SEPARATE
) -> list[dict[str, Any]]:
    """Return the ResourceSlices of these partitions."""
    return mig_partitions.slices_of({"name": node, "uid": "n"}, partitioned(*gpus), form)
