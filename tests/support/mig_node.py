"""The driver's capability files of a GPU in MIG mode, below a node's root."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CAPS = 235  # a major number
_INSTANCES = 15  # that a GPU can have


def capabilities(proc: Path) -> None:
    """Write the files of all instances that GPU 0 can have below *proc*."""
    proc.mkdir(exist_ok=True)
    (proc / "devices").write_text(f"Character devices:\n{CAPS} nvidia-caps\n")
    for instance in range(_INSTANCES):
        own = proc / f"driver/nvidia/capabilities/gpu0/mig/gi{instance}"
        for path, number in zip((own, own / "ci0"), minors(instance), strict=True):
            path.mkdir(parents=True, exist_ok=True)
            (path / "access").write_text(f"DeviceFileMinor: {number}\nDeviceFileMode: 292\n")


def minors(instance: int) -> tuple[int, int]:
    """Return the minor numbers of a GPU instance of GPU 0 and of its first compute instance."""
    return 3 + 9 * instance, 4 + 9 * instance
