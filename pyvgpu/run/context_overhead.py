"""Memory overhead of CUDA contexts: measured once for each driver release and GPU model.

A separate process creates a context on the bare driver, and NVML reports the memory that it then
holds; then the same for a green context in it. The driver also uses memory that it attributes to
no process (9 MiB for one with a context on an H200): the rest of the increase of used memory.
This can be measured only while nothing else on the device changes, so it is tried several times,
and until it succeeds each run tries again. Run as a program, this module is that process:

    python -m pyvgpu.run.context_overhead LIBCUDA LIBNVIDIA_ML UUID
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import device, nvml, quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pyvgpu.volumes.find import Driver

FILE = "context-reserves.json"
_LATE_SECONDS = 0.3  # maximum age of NVML's values
SECONDS = 20  # timeout: a device that hangs must not hang the run
_UNIT = 2 << 20  # granularity of device memory
_RESOURCE_BYTES, _SM_RESOURCE, _DEFAULT_STREAM = 144, 1, 1  # CUdevResource; CU_... of cuda.h
_TRIES = 3  # while something else changes on the device
_LARGEST_UNCOUNTED = 64 << 20  # more belongs to another process
_LARGEST_PART = 4  # a context does not use more than a quarter of the device


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """Measured overhead in bytes."""

    context: int
    green: int  # 0 if the driver has no green contexts
    uncounted: int | None = 0  # part of context that NVML attributes to no process; None: unknown


def with_measured(
    devices: Sequence[device.Device], driver: Driver, cache: Path, say: Callable[[str], None]
) -> tuple[device.Device, ...]:
    """Return *devices* of a GPU driver with the measured context overhead of each.

    A device on which it cannot be measured keeps its default. Measurements are stored in *cache*;
    *say* reports start and failure, because measuring can take seconds. Processes never measure
    concurrently, because each would change the used memory.
    """
    with _alone(cache):
        return _with_measured(devices, driver, cache, say)


@contextlib.contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """Exclude other processes with this *cache* from measuring, if *cache* can be locked."""
    file = -1
    with contextlib.suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        file = os.open(cache, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if file >= 0:
            os.close(file)


def _with_measured(
    devices: Sequence[device.Device], driver: Driver, cache: Path, say: Callable[[str], None]
) -> tuple[device.Device, ...]:
    known = _read(cache / FILE)
    found = dict(known)
    result = []
    for entry in devices:
        if entry.mig:  # never used by runs
            result.append(entry)
            continue
        key = f"{driver.release} {entry.name}"
        green_key, uncounted_key = f"{key} green", f"{key} uncounted"
        if not found.get(key) or not {green_key, uncounted_key} <= found.keys():
            say(f"measuring the memory of a context on {entry.label}, once for this driver")
            taken = measure(driver, entry.uuid)
            if taken is None or not _is_plausible(taken, entry):
                say(
                    "it cannot be measured here: "
                    f"{quantity.format_size(entry.context_bytes)} is reserved for each context"
                )
                result.append(entry)
                continue
            found[key] = -(-taken.context // _UNIT) * _UNIT
            found[green_key] = -(-taken.green // _UNIT) * _UNIT
            if taken.uncounted is not None:
                found[uncounted_key] = taken.uncounted
        result.append(
            dataclasses.replace(
                entry,
                context_bytes=found[key],
                green_bytes=found[green_key],
                uncounted_bytes=found.get(uncounted_key, 0),
            )
        )
    if found != known:
        _write(cache / FILE, found)
    return tuple(result)


def _is_plausible(taken: Taken, entry: device.Device) -> bool:
    return (
        0 < taken.context <= entry.memory_bytes // _LARGEST_PART
        and 0 <= taken.green <= taken.context
        and 0 <= (taken.uncounted or 0) <= _LARGEST_UNCOUNTED
    )


def measure(driver: Driver, uuid: str) -> Taken | None:
    """Return the overhead of contexts on the device *uuid*; None if it cannot be measured."""
    command = [sys.executable, "-Pm", "pyvgpu.run.context_overhead"]
    command += [str(driver.libcuda), str(driver.libnvidia_ml), uuid]
    taken = None
    for _ in range(_TRIES):
        try:
            ran = subprocess.run(
                command,
                capture_output=True,
                check=True,
                stdin=subprocess.DEVNULL,
                timeout=SECONDS,
            )
            context, green, uncounted = map(int, ran.stdout.split())
        except (OSError, ValueError, subprocess.SubprocessError):
            return taken
        taken = Taken(context, green, None if uncounted < 0 else uncounted)
        if taken.uncounted is not None:
            break
    return taken


def _read(path: Path) -> dict[str, int]:
    """Return the plausible values in the file; none if it is not readable."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(document, dict):
        return {}
    return {
        key: size
        for key, size in document.items()
        if isinstance(size, int) and 0 <= size <= quantity.MAXIMUM_BYTES
    }


def _write(path: Path, figures: Mapping[str, int]) -> None:
    """Replace the file; without it the next run measures again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=FILE)
        with os.fdopen(handle, "w") as file:
            json.dump(figures, file, indent=2, sort_keys=True)
        Path(name).replace(path)


def _make_context(cuda: ctypes.CDLL) -> None:
    context = ctypes.c_void_p()
    for result in (
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
        cuda.cuCtxSynchronize(),
    ):
        if result != 0:
            sys.exit(f"CUDA error {result}")


def _make_green_context(cuda: ctypes.CDLL) -> bool:
    """Create a green context on the whole device; False if the driver has none."""
    resource = (ctypes.c_char * _RESOURCE_BYTES)()
    description, green = ctypes.c_void_p(), ctypes.c_void_p()
    try:
        results = (
            cuda.cuDeviceGetDevResource(0, resource, _SM_RESOURCE),
            cuda.cuDevResourceGenerateDesc(ctypes.byref(description), resource, 1),
            cuda.cuGreenCtxCreate(ctypes.byref(green), description, 0, _DEFAULT_STREAM),
        )
    except AttributeError:  # drivers before 550
        return False
    return not any(results)


def _held_now(uuid: str, before: Collection[int]) -> int:
    time.sleep(_LATE_SECONDS)
    new = {pid: size for pid, size in nvml.bytes_by_pid(uuid).items() if pid not in before}
    # In a pid namespace NVML may report another pid for us: then it is the only new one.
    size = new.get(os.getpid()) or (next(iter(new.values())) if len(new) == 1 else None)
    if size is None:
        sys.exit("NVML does not list this process")
    return size


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryValues:
    """NVML's memory values for a device at one moment, in bytes."""

    used: int  # of the device
    others: Mapping[int, int]  # of older processes, by pid


def uncounted(held: int, before: MemoryValues, after: MemoryValues) -> int | None:
    """Return the bytes that a process uses on the device without being attributed to it.

    *held* is what NVML attributes to it between the two samples. None: something else has changed.
    """
    more = after.used - before.used - held
    return more if before.others == after.others and 0 <= more <= _LARGEST_UNCOUNTED else None


def _see(uuid: str, before: Collection[int]) -> MemoryValues:
    held = nvml.bytes_by_pid(uuid)
    return MemoryValues(nvml.used_bytes(uuid), {pid: held[pid] for pid in before if pid in held})


def main(libcuda: str, libnvidia_ml: str, uuid: str) -> None:
    """Print the overhead of a context, of a green context in it, and the uncounted part."""
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    cuda = ctypes.CDLL(libcuda)
    with nvml.session(Path(libnvidia_ml)):
        before = nvml.bytes_by_pid(uuid)
        seen = _see(uuid, before)
        _make_context(cuda)
        context = _held_now(uuid, before)
        with_context = _see(uuid, before)
        green = _held_now(uuid, before) - context if _make_green_context(cuda) else 0
        with_green = _see(uuid, before)
    more = uncounted(context, seen, with_context)
    green += (uncounted(green, with_context, with_green) or 0) if more is not None else 0
    print(context + (more or 0), max(0, green), -1 if more is None else more)


if __name__ == "__main__":
    main(*sys.argv[1:])
