"""The law of a simulated device: how it and its driver behave, as far as real ones differ.

Each field is a key of ``machine.conf`` and has its rule here, and here alone: the simulated driver
has this table by ``csrc/simulator/law.py``, which writes it for the C compiler.
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

    # The turn of a process while others wait, and the time in which nothing runs after it.
    slice_ns: int = _number(1_000_000, 1, _SECOND, 1_000_000)
    switch_ns: int = _number(0, 0, _SECOND, 100_000)
    # What each kernel takes of the device before it begins.
    launch_ns: int = _number(0, 0, _SECOND, 2000)
    # How long an event holds up its stream, and when of it the event's time is noted.
    event_ns: int = _number(0, 0, _SECOND, 3000)
    event_late_ns: int = _number(0, 0, _SECOND, 1500)
    # Behind kernels an event is passed when it is the process's turn.
    events_in_turn: bool = _flag(usual=False)
    # Work that a stream can hold; at most half of MODEL_PLACES (csrc/simulator/model.h).
    queue_depth: int = _number(1024, 1, 8192, 1024)
    # What an allocation below 1 MiB, and one from there on, is rounded up to on the device.
    small_bytes: int = _number(512, 1, _MIB, 512)
    large_bytes: int = _number(2 * _MIB, 1, 64 * _MIB, 2 * _MIB)
    # Those of at most 1 MiB come out of blocks of 2 MiB, of which the device counts whole ones.
    small_blocks: bool = _flag(usual=False)
    pool_chunk_bytes: int = _number(32 * _MIB, 2 * _MIB, 1024 * _MIB, 32 * _MIB)
    # How long a pool is waited for that grows by a chunk, or gives one back.
    pool_chunk_ns: int = _number(0, 0, _SECOND, 45_000)
    # Percentages of the device's context_bytes: a process's second context, a green one.
    second_context_percent: int = _number(100, 0, 100, 50)
    green_context_percent: int = _number(100, 0, 100, 10)
    # Of a process with a context, what NVML counts as in use and for no process; part of
    # context_bytes.
    uncounted_bytes: int = _number(0, 0, 64 * _MIB, 8 * _MIB)
    # A process's memory stays while a child lives that it forked and that has not called exec.
    fork_keeps: bool = _flag(usual=True)
    # Limits of memory for cgroups: 0 none, 1 by the driver's own account, 2 by the kernel's.
    cgroup_limits: int = _number(0, 0, 2, 1)
    # How old the figures of NVML are: memory in use, utilization.
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
        """Return the values by key, as ``machine.conf`` has them."""
        words = {True: "yes", False: "no"}
        return {
            name: words[value] if isinstance(value, bool) else str(value)
            for name, value in dataclasses.asdict(self).items()
        }


def parse(values: dict[str, str]) -> Law:
    """Return the law of the keys in *values* that are a law's; the others keep what is usual.

    Raises UsageError, which names the key, its value and the rule.
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
