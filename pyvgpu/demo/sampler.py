"""Samples of the device from outside: from the ledgers of the runs, and from the driver.

The driver is queried through its own NVML, without the shim, so that the two sources are
independent.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pyvgpu import errors, names, region, shim
from pyvgpu.demo.observations import TENANTS, DemoSample, Observation, Role
from pyvgpu.machine import reservations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyvgpu.simulation import simulator


class DeviceSampler:
    """Samples one device of a simulated machine; to be used in a with statement."""

    def __init__(self, machine: simulator.Machine) -> None:
        import pynvml

        self._nvml = pynvml
        self._usage: dict[Role, int] = {}
        os.environ.update(machine.environment)  # the driver reads it when it is loaded
        library = next(shim.simulator_libraries().glob("libnvidia-ml.so.*"))
        try:
            pynvml.nvmlLib = ctypes.CDLL(str(library))
            pynvml.nvmlInit()
            self._device = pynvml.nvmlDeviceGetHandleByIndex(0)
        except (OSError, pynvml.NVMLError) as exc:
            raise errors.UnavailableError(f"{library}: does not start: {exc}") from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._usage.values():
            os.close(file)
        self._usage.clear()
        self._nvml.nvmlShutdown()

    def follow(self, role: Role, name: str) -> None:
        """Start sampling the ledger of the run called *name*."""
        for reservation in reservations.Registries().live():
            if reservation.holder.name == name and role not in self._usage:
                path = reservation.folder / names.USAGE_FILE
                self._usage[role] = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def used(self) -> int:
        """Return the bytes of the device that the driver counts as used."""
        version = self._nvml.nvmlMemory_v2
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._device, version=version).used)

    def sample(self, seconds: float, pids: Mapping[Role, Sequence[int]]) -> DemoSample:
        """Take one sample; *pids* are all processes that each tenant has had."""
        used = self.used()
        held = {
            process.pid: int(process.usedGpuMemory or 0)
            for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._device)
        }
        return DemoSample(
            seconds,
            used,
            tuple(
                self._holding(role, sum(held.get(pid, 0) for pid in pids[role]), pids[role])
                for role in TENANTS
            ),
        )

    def _holding(self, role: Role, held: int, pids: Sequence[int]) -> Observation:
        file = self._usage.get(role)
        if file is None:
            return Observation(role, 0, held)
        charged = region.read_settled_usage(file).charged[0]
        busy_ns = region.read_compute(file, 1)[0].busy_ns
        return Observation(role, charged, held, busy_ns, sum(map(_kept_waiting_ns, pids)))


def _kept_waiting_ns(pid: int) -> int:
    """Return how long a process was runnable but not scheduled; 0 if unknown."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
