"""Prove that a quota is enforced: allocate more than it allows, and use a device for two seconds.

The test program is an ordinary one, the demonstration's tenant: it uses the driver API, and
kernels in PTX. It allocates one block that is larger than the quota, which uses no memory if it
fails; and it launches kernels without a pause. Not only its own report counts: the ledger shows
whether the shim refused the allocation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import threading
from time import monotonic
from typing import IO, TYPE_CHECKING, Any, cast

from pyvgpu import errors, quantity, quota, region, shim
from pyvgpu.doctor.check_results import CheckState, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = 2.0  # duration of the measurement of a share
WARM_SECONDS = 0.5  # before it: kernels are compiled, and saved-up time is used
KERNEL_US = 1000
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_BEYOND = 1 << 20  # bytes over the quota
_TIMEOUT_SECONDS = 120.0
_LEAST_SLACK = 5.0  # tolerance of the measurement in hundredths of a device, at least
_SLACK = 0.25  # tolerance relative to the limit
_ENOUGH = 0.8  # minimum relative to vcore


@dataclasses.dataclass(frozen=True, slots=True)
class Spun:
    """The device time of a program, by its own report and by the ledger.

    Each has its own interval: the reader may be delayed, and work done meanwhile must not count as
    an excess.
    """

    seconds: float  # by the program's clock
    spun_ns: int
    busy_seconds: float  # by ours
    busy_ns: int

    @property
    def percent(self) -> float:
        """Hundredths of the device's time: the larger of both."""
        return max(self.spun_ns / self.seconds, self.busy_ns / self.busy_seconds) / 1e7


def memory(limits: region.DeviceLimits, usage: Path) -> Finding:
    """Allocate a block that is larger than the quota, on the first visible device."""
    before = _refused(usage)
    with _tenant("grow", str(limits.vmemory + _BEYOND)) as events:
        seen = []
        for event in events:
            seen.append(event)
            if event["event"] != "start":
                break
    return check_memory(limits.vmemory, seen, _refused(usage) - before)


def check_memory(vmemory: int, events: list[dict[str, Any]], refused: int) -> Finding:
    """Evaluate the *events* of a program that allocates more than *vmemory* bytes.

    *refused* is the number of charges refused meanwhile, by the ledger.
    """
    size = quantity.format_size(vmemory)
    last = events[-1] if events else {"event": "nothing"}
    match last["event"]:
        case "refused" if last["result"] == OUT_OF_MEMORY and refused > 0:
            seen = events[0].get("total")
            if seen != vmemory:
                return Finding(
                    CheckState.LIMITED,
                    f"more than {size} was refused, but cuMemGetInfo shows {seen} bytes in total",
                    "a driver or shim of another version is mixed in: restart the program",
                )
            return Finding(
                CheckState.OK,
                f"{size} and 1 MiB more was refused by the shim ({last['name']}), and "
                f"cuMemGetInfo shows {size}",
            )
        case "refused":
            return Finding(
                CheckState.LIMITED,
                f"not the shim but the driver refused {size} and 1 MiB more ({last['name']})",
                "the device is full, or broken: try again when it has room",
            )
        case "grown":
            return Finding(
                CheckState.MISSING,
                f"a block of {size} and 1 MiB more was allocated: the quota is not enforced",
                "check the row libcuda.so.1: the program loads another driver than the shim",
            )
        case _:
            return _broken(last)


def time(limits: region.DeviceLimits, usage: Path) -> Finding:
    """Launch kernels for :data:`SECONDS`, and measure their device time."""
    if allowed(limits) >= 100:
        return Finding(CheckState.OK, "not limited: it may use all of the device's time")
    with _tenant("spin", str(KERNEL_US)) as events:
        found = _spin(events, usage)
    return found if isinstance(found, Finding) else check_time(limits, found)


def check_time(limits: region.DeviceLimits, spun: Spun) -> Finding:
    """Evaluate whether a program stayed within *limits*."""
    most = allowed(limits)
    said = (
        f"{spun.percent:.1f} % of the device's time in {spun.seconds:.1f} s of work without a "
        f"pause; allocated {limits.vcore}, at most {most}"
    )
    if spun.percent > most + max(_LEAST_SLACK, _SLACK * most):
        return Finding(
            CheckState.MISSING,
            f"{said}: the share is not enforced",
            "check the row libcuda.so.1: the program loads another driver than the shim",
        )
    if spun.percent < _ENOUGH * limits.vcore:
        return Finding(
            CheckState.LIMITED,
            f"{said}: less than allocated",
            "programs without the shim or of the same container use the device, or the CPU is "
            "overloaded: see pyvgpu top, and docs/vcore.md",
        )
    return Finding(CheckState.OK, said)


def allowed(limits: region.DeviceLimits) -> int:
    """Return the most of the device's time that a program may use, in hundredths."""
    return limits.vcore_limit if limits.policy is quota.TimePolicy.ELASTIC else limits.vcore


def _spin(events: Iterator[dict[str, Any]], usage: Path) -> Spun | Finding:
    first: dict[str, Any] | None = None
    begun: tuple[dict[str, Any], float, int] | None = None
    last: dict[str, Any] = {"event": "nothing"}
    for last in events:
        if last["event"] == "failed":
            break
        if last["event"] != "spun":
            continue
        first = first or last
        if last["at"] < first["at"] + WARM_SECONDS:
            continue
        if begun is None:
            begun = last, monotonic(), _busy(usage)
        elif last["at"] >= begun[0]["at"] + SECONDS:
            busy, now = _busy(usage), monotonic()
            seconds = last["at"] - begun[0]["at"]
            return Spun(seconds, last["ns"] - begun[0]["ns"], now - begun[1], busy - begun[2])
    return _broken(last)


def _broken(last: dict[str, Any]) -> Finding:
    """Return the finding for a program that ended too early."""
    if last["event"] == "failed":
        said = f": {last['said']}" if last.get("said") else ""
        return Finding(
            CheckState.MISSING,
            f"{last['call']} returns {last['name']} ({last['result']}){said}",
            "check the driver (nvidia-smi); PYVGPU_LOG=info makes the shim log more",
        )
    return Finding(
        CheckState.MISSING,
        f"the program did nothing: {last.get('said') or 'it printed nothing'}",
        "check the row libcuda.so.1",
    )


@contextlib.contextmanager
def _tenant(*words: str) -> Iterator[Iterator[dict[str, Any]]]:
    """Start the tenant; yield its events. It is killed at the end, and after two minutes."""
    with subprocess.Popen(
        [shim.tenant_program(), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        timer = threading.Timer(_TIMEOUT_SECONDS, process.kill)
        timer.start()
        try:
            yield _events(process)
        finally:
            process.kill()
            timer.cancel()


def _events(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    output, stderr = cast("IO[str]", process.stdout), cast("IO[str]", process.stderr)
    for line in output:
        event = json.loads(line)
        if event["event"] == "failed":  # after which it ends
            event["said"] = _last(stderr)
        yield event
    yield {"event": "nothing", "said": _last(stderr)}


def _last(stderr: IO[str]) -> str:
    return (stderr.read().strip().splitlines() or [""])[-1]


def _refused(usage: Path) -> int:
    with _opened(usage) as file:
        return region.read_usage(file, 1).refused[0]


def _busy(usage: Path) -> int:
    with _opened(usage) as file:
        return region.read_compute(file, 1)[0].busy_ns


@contextlib.contextmanager
def _opened(usage: Path) -> Iterator[int]:
    try:
        file = os.open(usage, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        raise errors.of_files(f"{usage}: the ledger cannot be read", exc) from exc
    try:
        yield file
    finally:
        os.close(file)
