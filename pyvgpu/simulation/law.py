"""Behaviour parameters ("law") of a simulated device and its driver.

Each field is a key of ``machine.conf``. Its rule is defined only here: ``csrc/simulator/law.py``
generates the table for the simulated driver, in C.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pyvgpu import errors

_MIB = 1 << 20
_SECOND = 10**9  # in nanoseconds


def _number(usual: int, least: int, most: int, example: int) -> int:
    rule = f"from {least} to {most}, such as {example}"
    field: int = dataclasses.field(
        default=usual, metadata={"least": least, "most": most, "rule": rule}
    )
    return field


def _flag(*, usual: bool) -> bool:
    field: bool = dataclasses.field(default=usual, metadata={"rule": "yes or no"})
    return field


@dataclasses.dataclass(frozen=True, slots=True)
class Law:
    """The fields are keys of ``machine.conf``; times are in nanoseconds, sizes in bytes."""

    # The time slice of a process while others wait, and the idle time of a switch after it.
    slice_ns: int = _number(1_000_000, 1, _SECOND, 1_000_000)
    switch_ns: int = _number(0, 0, _SECOND, 100_000)
    # The device time of each kernel before it starts.
    launch_ns: int = _number(0, 0, _SECOND, 2000)
    # How long an event occupies its stream, and after which part of it its time is recorded.
    event_ns: int = _number(0, 0, _SECOND, 3000)
    event_late_ns: int = _number(0, 0, _SECOND, 1500)
    # An event behind kernels completes only in the process's time slice.
    events_in_turn: bool = _flag(usual=False)
    # Work that a stream can hold; at most half of MODEL_PLACES (csrc/simulator/model.h).
    queue_depth: int = _number(1024, 1, 8192, 1024)
    # The granularity of allocations below 1 MiB, and of those from 1 MiB on.
    small_bytes: int = _number(512, 1, _MIB, 512)
    large_bytes: int = _number(2 * _MIB, 1, 64 * _MIB, 2 * _MIB)
    # Allocations of at most 1 MiB come from blocks of 2 MiB, which the device counts as a whole.
    small_blocks: bool = _flag(usual=False)
    pool_chunk_bytes: int = _number(32 * _MIB, 2 * _MIB, 1024 * _MIB, 32 * _MIB)
    # The latency of a pool that grows by a chunk, or returns one.
    pool_chunk_ns: int = _number(0, 0, _SECOND, 45_000)
    # Percentages of the device's context_bytes: a process's second context, a green context.
    second_context_percent: int = _number(100, 0, 100, 50)
    green_context_percent: int = _number(100, 0, 100, 10)
    # Memory of each process with a context that NVML counts as used, but for no process; part of
    # context_bytes.
    uncounted_bytes: int = _number(0, 0, 64 * _MIB, 8 * _MIB)
    # A process's memory stays allocated while a forked child lives that has not called exec.
    fork_keeps: bool = _flag(usual=True)
    # Ranges of device memory have dma-buf descriptors.
    dma_buf: bool = _flag(usual=True)
    # Speed of checkpoints and restores of a process, in percent of the device's pcie_bandwidth.
    checkpoint_percent: int = _number(16, 1, 100, 16)
    restore_percent: int = _number(28, 1, 100, 28)
    # Calls that wait for a context or a stream do not wait while the process is locked, and end
    # the process while it is checkpointed.
    sync_ignores_lock: bool = _flag(usual=False)
    # Memory limits of cgroups: 0 none, 1 by the driver's own accounting, 2 by the kernel's.
    cgroup_limits: int = _number(0, 0, 2, 1)
    # Kernels of several clients of an MPS server run together as SMs allow; else in turns.
    mps_overlap: bool = _flag(usual=True)
    # Memory of an MPS server on each of its devices, and the most clients that it has.
    mps_server_bytes: int = _number(30 * _MIB, 0, 1024 * _MIB, 30 * _MIB)
    mps_clients: int = _number(60, 1, 1024, 48)
    # The delay of NVML's values: memory in use, utilization.
    nvml_memory_late_ns: int = _number(0, 0, _SECOND, 100_000_000)
    nvml_load_late_ns: int = _number(0, 0, _SECOND, 100_000_000)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, rule = getattr(self, field.name), field.metadata
            if "least" in rule and not rule["least"] <= value <= rule["most"]:
                raise errors.UsageError(f"{field.name}={value}: must be {rule['rule']}")
        if self.event_late_ns > self.event_ns:
            raise errors.UsageError(
                f"event_late_ns={self.event_late_ns}: must be from 0 to event_ns={self.event_ns}"
            )

    def render(self) -> dict[str, str]:
        """Return the values by key, as in ``machine.conf``."""
        words = {True: "yes", False: "no"}
        return {
            name: words[value] if isinstance(value, bool) else str(value)
            for name, value in dataclasses.asdict(self).items()
        }


def parse(values: dict[str, str]) -> Law:
    """Return the law of *values*; missing keys have their defaults, unknown keys are ignored.

    UsageError names the key, its value and the rule.
    """
    found: dict[str, Any] = {}
    for field in dataclasses.fields(Law):
        text = values.get(field.name)
        if text is None:
            continue
        if "least" in field.metadata and text.isascii() and text.isdigit() and len(text) < 20:
            found[field.name] = int(text)
        elif "least" not in field.metadata and text in ("yes", "no"):
            found[field.name] = text == "yes"
        else:
            raise errors.UsageError(f"{field.name}={text}: must be {field.metadata['rule']}")
    return Law(**found)
