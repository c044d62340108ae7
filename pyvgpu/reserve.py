"""What a context takes of a device: measured once for each driver release and model.

A process of its own makes a context on the bare driver, and NVML says what that process then
holds; and the same for a green context in it. The driver also takes memory that it counts for no
process (9 MiB for one with a context on an H200): by how much more of the device is in use then.
That can be told only while nothing else on the device changes, so it is tried some times, and as
long as it is not known each run tries again. Run as a program, this module is that process:

    python -m pyvgpu.reserve LIBCUDA LIBNVIDIA_ML UUID
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
_LATE_SECONDS = 0.3  # how old NVML's figures can be
SECONDS = 20  # a device that hangs must not hang the run
_UNIT = 2 << 20  # what a device gives memory out in
_RESOURCE_BYTES, _SM_RESOURCE, _DEFAULT_STREAM = 144, 1, 1  # CUdevResource; CU_... of cuda.h
_TRIES = 3  # as long as something else changes on the device
_LARGEST_UNCOUNTED = 64 << 20  # beyond what a process holds; more is another's
_LARGEST_PART = 4  # a figure above a quarter of the device is not a context's


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """What was measured, bytes."""

    context: int
    green: int  # 0 where the driver has no green contexts
    uncounted: int | None = 0  # of the context, that NVML counts for no process; None: unknown


def with_measured(
    devices: Sequence[device.Device], driver: Driver, cache: Path, say: Callable[[str], None]
) -> tuple[device.Device, ...]:
    """Return *devices* of a GPU driver with what a context takes on each.

    Where it cannot be measured the device keeps the figure it has. What was measured is kept in
    *cache*; *say* is told before and after, for it can take seconds. Two never measure at the same
    time, since each would change what is in use.
    """
    with _alone(cache):
        return _with_measured(devices, driver, cache, say)


@contextlib.contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """Be the only one that measures, of those with this *cache*; not where there cannot be one."""
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
        if entry.mig:  # no context of ours can be on it
            result.append(entry)
            continue
        key = f"{driver.release} {entry.name}"
        green_key, uncounted_key = f"{key} green", f"{key} uncounted"
        if not found.get(key) or not {green_key, uncounted_key} <= found.keys():
            say(f"measuring what a context takes on {entry.label}, once for this driver")
            taken = measure(driver, entry.uuid)
            if taken is None or not _is_plausible(taken, entry):
                say(
                    "it cannot be measured here: "
                    f"{quantity.format_size(entry.context_bytes)} is kept for each context"
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
    """Return what contexts take on the device *uuid*; None if it cannot be measured."""
    command = [sys.executable, "-m", "pyvgpu.reserve"]
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
    """Return the figures in the file, those that are plausible; none if it is not readable."""
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
    """Make a green context of the whole device; False where the driver has none."""
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
    # In a pid namespace NVML may call this process otherwise: then it is the only new one.
    size = new.get(os.getpid()) or (next(iter(new.values())) if len(new) == 1 else None)
    if size is None:
        sys.exit("NVML does not list this process")
    return size


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What NVML says of a device at a moment, bytes."""

    used: int  # of the device
    others: Mapping[int, int]  # processes that were there before, by pid


def uncounted(held: int, before: Seen, after: Seen) -> int | None:
    """Return what a process takes of the device that NVML does not count for it, bytes.

    NVML says that it *held* so much between the two looks. None: something else has changed.
    """
    more = after.used - before.used - held
    return more if before.others == after.others and 0 <= more <= _LARGEST_UNCOUNTED else None


def _see(uuid: str, before: Collection[int]) -> Seen:
    held = nvml.bytes_by_pid(uuid)
    return Seen(nvml.used_bytes(uuid), {pid: held[pid] for pid in before if pid in held})


def main(libcuda: str, libnvidia_ml: str, uuid: str) -> None:
    """Print what a context takes of the device, and a green one in it."""
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
