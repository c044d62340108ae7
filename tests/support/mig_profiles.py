"""MIG profiles of simulated models, and GPUs on which pods get instances."""

from __future__ import annotations

from pyvgpu.allocator import datatypes
from pyvgpu.simulation import mig


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
