"""Derive the parameters of a simulated machine from the figures of a record.

Time slices: with two processes, one is off the device for a slice of the other and two switches;
with three, for two slices and three switches. Slice and switch times follow from both.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors, models
from pyvgpu.simulation import machines

if TYPE_CHECKING:
    from pyvgpu.calibration.calibration_record import KitRecord

MOST_UNCOUNTED = 64 << 20
MIB = 1 << 20
BLOCK = 2 * MIB  # granularity of device memory
AROUND_A_KERNEL = "kernel of 100 us, back to back: events above its own timer"
SHORT_US = 5  # short kernels show the gap between two; for shorter ones the host is the limit
DEEPEST = 8192  # maximum depth of a simulated queue
LATEST_NS, MS_NS = 10**9, 10**6  # maximum delay of simulated NVML values; resolution of the kit


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """A parameter of a simulated machine, and how it was measured."""

    value: int | bool
    how: str

    def __str__(self) -> str:
        if isinstance(self.value, bool):
            return "yes" if self.value else "no"
        return str(self.value)


def values(record: KitRecord) -> dict[str, Value]:
    """Return the measured values for keys of a machine file; unknown ones are left out."""
    found = {
        **_turns(record), **_launches(record), **_events(record), **_queue(record),
        **_allocations(record), **_contexts(record), **_fork(record), **_nvml(record),
        **_device(record),
    }  # fmt: skip
    order = (*machines.LAW_KEYS, *machines.DEVICE_KEYS)
    return {key: found[key] for key in order if key in found}


def model(record: KitRecord, named: str | None = None) -> models.Model:
    """Return the device's model: the one *named*, or the one in the device's name.

    UsageError if there is none, or more than one.
    """
    if named is not None:
        found = models.BY_KEY.get(named.lower())
        if found is None:
            raise errors.UsageError(f"--model {named!r}: {_one_of()}")
        return found
    total = record.figure("facts", "memory total")
    found = nearest(record.device, None if total is None else total.value)
    if found is not None:
        return found
    raise errors.UsageError(
        f"{record.path}: the simulator has no model for its device, {record.device!r}; "
        f"name the nearest by --model: {_one_of()}"
    )


def nearest(device: str, memory_bytes: float | None) -> models.Model | None:
    """Return the model in a device's name; None if there is none, or more than one."""
    words = device.lower().replace("-", " ").split()
    alike = [candidate for candidate in models.MODELS if candidate.key.partition("-")[0] in words]
    if memory_bytes is not None and alike:  # the A100 has two sizes
        return min(alike, key=lambda candidate: abs(candidate.memory_bytes - memory_bytes))
    return alike[0] if len(alike) == 1 else None


def _one_of() -> str:
    return f"must be one of {', '.join(models.BY_KEY)}, such as h100"


def _turns(record: KitRecord) -> dict[str, Value]:
    if record.fact("slices", "processes are clients of MPS"):
        return {}
    two = record.figure("slices", "2 processes: away from the device")
    three = record.figure("slices", "3 processes: away from the device")
    if two is None:
        return {}
    if three is None:
        return {"slice_ns": Value(max(1, round(two.value * 1000)), "two processes in turns")}
    turn = round(1000 * (2 * three.value - 3 * two.value))
    switch = round(1000 * (2 * two.value - three.value))
    how = "two and three processes in turns"
    if switch < 0 or turn < 1:  # the noise of both exceeds the time of a switch
        return {
            "slice_ns": Value(max(1, round(two.value * 1000)), how),
            "switch_ns": Value(0, f"{how}: less than can be measured"),
        }
    return {"slice_ns": Value(turn, how), "switch_ns": Value(switch, how)}


def _launches(record: KitRecord) -> dict[str, Value]:
    """From the device share of short kernels without a quota: the rest are the gaps between them.

    Without that, from the time between events around a kernel, minus the time of an event.
    """
    share = record.figure("alone", f"without a quota, {SHORT_US} us: share")
    if share is not None and 0 < share.value <= 100:
        between = round(SHORT_US * 1000 * (100 / share.value - 1))
        how = f"kernels of {SHORT_US} us one behind the other, alone"
        return {"launch_ns": Value(between, how)}
    above = record.figure("events", AROUND_A_KERNEL)
    event = _events(record).get("event_ns")
    if above is None or event is None:
        return {}
    between = max(0, round(1000 * above.value) - int(event.value))
    return {"launch_ns": Value(between, "events around a kernel of 100 us, less an event")}


def _events(record: KitRecord) -> dict[str, Value]:
    pair = record.figure("events", "two events in a queue, by throughput")
    if pair is None:
        return {}
    held = max(0, round(500 * pair.value))
    return {
        "event_ns": Value(held, "many events in a row"),
        "event_late_ns": Value(
            held // 2, "taken as half of event_ns: no elapsed time depends on it"
        ),
    }


def _queue(record: KitRecord) -> dict[str, Value]:
    full = record.figure("queue", "launches that a stream behind a gate takes")
    if full is not None:  # the gate also occupies a place
        return {"queue_depth": Value(min(DEEPEST, int(full.value) + 1), "launches behind a gate")}
    least = record.figure("queue", "launches that a stream behind a gate takes at least")
    if least is None:
        return {}
    return {
        "queue_depth": Value(
            min(DEEPEST, int(least.value) + 1), "launches behind a gate, none of which blocked"
        )
    }


def _allocations(record: KitRecord) -> dict[str, Value]:
    found = {}
    survivor = record.figure("memory", "512 bytes that survive in a block of 2 MiB")
    smallest = record.figure("memory", "allocation of 1")
    if survivor is not None:
        blocks = survivor.value > BLOCK / 2
        found["small_blocks"] = Value(blocks, "one allocation that survives in 2 MiB of them")
        if smallest is not None and not blocks:  # with blocks, many of them share one
            found["small_bytes"] = Value(round(smallest.value), "many allocations of 1 byte")
    one = record.figure("memory", f"allocation of {MIB}")
    next_ = record.figure("memory", f"allocation of {MIB + 1}")
    if one is not None and next_ is not None:
        step = round(next_.value - one.value)  # 0 if 1 MiB does not fill one unit
        found["large_bytes"] = Value(
            step or round(one.value), "many allocations of 1 MiB, and of 1 byte more"
        )
    chunk = record.figure("pools", "reserved after 1")
    if chunk is not None:
        found["pool_chunk_bytes"] = Value(int(chunk.value), "a pool's first allocation")
    growth = record.figure("pools", "time to grow by 256 MiB")
    if growth is not None and chunk is not None and chunk.value > 0:
        chunks = 256 * MIB / chunk.value
        found["pool_chunk_ns"] = Value(round(growth.value * 1000 / chunks), "a pool that grows")
    return found


def _contexts(record: KitRecord) -> dict[str, Value]:
    found = {}
    for key, series, step in (
        ("second_context_percent", "many contexts", "2 second"),
        ("green_context_percent", "lazy loading", "10 green"),
    ):
        primary = record.figure("contexts", f"{series}: 1 primary, by NVML")
        other = record.figure("contexts", f"{series}: {step}, by NVML")
        if primary is not None and other is not None and primary.value > 0:
            percent = round(100 * other.value / primary.value)
            found[key] = Value(min(100, max(0, percent)), "NVML, before and after each")
    counted = record.figure("contexts", "lazy loading: 1 primary, of its process")
    whole = [
        record.figure("contexts", f"lazy loading: {step}, by NVML")
        for step in ("0 cuInit", "1 primary")
    ]
    if counted is not None and None not in whole:
        more = sum(figure.value for figure in whole if figure is not None) - counted.value
        found["uncounted_bytes"] = Value(
            min(MOST_UNCOUNTED, max(0, round(more))), "NVML, of the device and of the process"
        )
    return found


def _fork(record: KitRecord) -> dict[str, Value]:
    said = record.fact("fork", "memory of a killed process with a forked child")
    if said is None:
        return {}
    return {"fork_keeps": Value(not str(said).startswith("free"), "a parent that was killed")}


def _nvml(record: KitRecord) -> dict[str, Value]:
    found = {}
    memory = record.figure("nvml", "allocation until memory in use shows it")
    if memory is not None:
        found["nvml_memory_late_ns"] = Value(
            _whole_ms(memory.value), "an allocation, until NVML shows it"
        )
    sample = record.figure("nvml", "age of the newest sample of utilization")
    if sample is not None:  # the minimum: a sample ages until the next one
        found["nvml_load_late_ns"] = Value(
            _whole_ms(sample.least), "NVML's newest sample, when it had just come"
        )
    return found


def _whole_ms(milliseconds: float) -> int:
    return min(LATEST_NS, MS_NS * max(0, round(milliseconds)))


def _device(record: KitRecord) -> dict[str, Value]:
    found = {}
    total = record.figure("facts", "memory total")
    context = record.figure("memory", "primary context, by NVML")
    processors = record.fact("facts", "multiprocessors")
    if total is not None:
        found["memory_bytes"] = Value(int(total.value), "cuMemGetInfo")
    if context is not None:
        found["context_bytes"] = Value(
            BLOCK * max(0, round(context.value / BLOCK)), "NVML, before and after"
        )
    if isinstance(processors, int):
        found["sm_count"] = Value(processors, "an attribute of the device")
    return found
