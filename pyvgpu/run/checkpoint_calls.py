"""Calls of CUDA's checkpoint interface, in a process of its own that can be killed.

A call hangs while its target is stopped, and then ignores its own timeout. So a child makes the
calls, one JSON request per line, and is killed if an answer takes too long: the driver then ends
what it has begun, or has done nothing. Run as a program, this module is that child:

    python -m pyvgpu.run.checkpoint_calls LIBCUDA LIBNVIDIA_ML
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pyvgpu import errors, names
from pyvgpu.run import suspension

if TYPE_CHECKING:
    from collections.abc import Mapping

CUDA_VERSION = 12080  # the first with the interface
DRIVER_RELEASE = "570"
_BEGIN_SECONDS = 30.0
_PERIOD_SECONDS = 0.2  # between two polls of a call's process
_STOPPED_PERIODS = 5
_PROC = Path("/proc")
_FUNCTIONS = ("Lock", "Checkpoint", "Restore", "Unlock", "GetState")
_ARGUMENT_WORDS = 16  # of 4 bytes: each argument struct has 64 bytes, and reserved ones are 0


class HangingError(errors.UnavailableError):
    """A call did not return in time, and its child was killed."""


class NoCheckpointsError(errors.UnavailableError):
    """The driver does not have the interface."""


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointDriver:
    """The driver's own libraries, and the folder of a simulated machine."""

    libcuda: Path
    libnvidia_ml: Path
    machine: Path | None
    release: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of a device, as NVML reports it."""

    free: int  # bytes
    by_pid: Mapping[int, int]
    is_mig: bool = False  # whether it is in MIG mode now


class Calls:
    """The child that makes the calls; to be used in a with statement."""

    def __init__(self, driver: CheckpointDriver) -> None:
        self._driver = driver
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def is_simulated(self) -> bool:
        """Whether the driver is a simulated one."""
        return self._driver.machine is not None

    @property
    def release(self) -> str:
        """The driver's release, such as 580.65.06; empty: unknown."""
        return self._driver.release

    def check_offered(self) -> None:
        """Raise NoCheckpointsError, with the needed release, if the driver has no checkpoints."""
        found = self._ask({"call": "version"}, _BEGIN_SECONDS)
        if not found["offered"]:
            raise NoCheckpointsError(
                f"driver {self._driver.release or 'here'} (CUDA {found['version'] // 1000}."
                f"{found['version'] % 1000 // 10}) cannot suspend processes: it needs release "
                f"{DRIVER_RELEASE} or later (CUDA 12.8)"
            )

    def memory(self, uuid: str, uncounted: int) -> DeviceMemory:
        """Return the memory of a device; *uncounted* bytes are added to each process's."""
        request = {"call": "memory", "uuid": uuid, "uncounted": uncounted}
        found = self._ask(request, _BEGIN_SECONDS)
        by_pid = {int(pid): int(size) for pid, size in found["by_pid"].items()}
        return DeviceMemory(int(found["free"]), by_pid, bool(found["is_mig"]))

    def state(self, pid: int, seconds: float) -> suspension.ProcessState | None:
        """Return the state of a process; None: it has ended, or does not use CUDA yet."""
        found = self._ask({"call": "GetState", "pid": pid}, seconds, pid)
        if found["result"]:
            return None
        try:
            return suspension.ProcessState(found["state"])
        except ValueError as exc:
            raise errors.UnavailableError(
                f"process {pid}: is in state {found['state']} of the driver, which is unknown"
            ) from exc

    def act(self, step: suspension.Step, timeout_ms: int, seconds: float) -> int:
        """Make a call and return its CUresult; *timeout_ms* is that of a lock. HangingError."""
        request = {"call": step.action.value, "pid": step.pid, "timeout_ms": timeout_ms}
        return int(self._ask(request, seconds, step.pid)["result"])

    def end(self) -> None:
        """End the child, also in the middle of a call."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        child.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        if self._driver.machine is not None:
            environment[names.SIMULATED_MACHINE_VARIABLE] = str(self._driver.machine)
        command = (
            *(sys.executable, "-Pm", "pyvgpu.run.checkpoint_calls"),
            *(str(self._driver.libcuda), str(self._driver.libnvidia_ml)),
        )
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd="/",
            bufsize=0,
            start_new_session=True,
        )

    def _ask(
        self, request: Mapping[str, object], seconds: float, pid: int | None = None
    ) -> dict[str, Any]:
        """Return the child's answer; HangingError: too late, or process *pid* is stopped."""
        if self._child is None:
            self._child = self._start()
            seconds += _BEGIN_SECONDS
        child = self._child
        try:
            writing, reading = _pipes(child)
            os.write(writing, json.dumps(request).encode() + b"\n")
            answer = _read_line(reading, time.monotonic() + seconds, pid)
        except OSError:
            answer = b""
        if answer is None:
            self.end()
            raise HangingError(f"the driver did not answer {request['call']}")
        if not answer:
            self.end()
            raise errors.UnavailableError("the process that calls the driver has ended")
        found: dict[str, Any] = json.loads(answer)
        if "error" in found:
            raise errors.UnavailableError(str(found["error"]))
        return found


def _pipes(child: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Return the descriptors of a child's input and output; OSError if it has none."""
    if child.stdin is None or child.stdout is None:
        raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
    return child.stdin.fileno(), child.stdout.fileno()


def _read_line(reading: int, until: float, pid: int | None) -> bytes | None:
    """Return a line of the child, empty if it has ended, None if it takes too long.

    A call about a process that is stopped, and remains so, takes too long at once.
    """
    line = b""
    stopped = 0  # periods in a row
    while not line.endswith(b"\n"):
        left = until - time.monotonic()
        ready, _, _ = select.select([reading], [], [], max(0.0, min(left, _PERIOD_SECONDS)))
        if not ready:
            stopped = stopped + 1 if pid is not None and is_stopped(_PROC / str(pid)) else 0
            if left <= 0 or stopped == _STOPPED_PERIODS:
                return None
            continue
        part = os.read(reading, 4096)
        if not part:
            return b""
        line += part
    return line


def is_stopped(folder: Path) -> bool:
    """Return whether the process with this folder in /proc is stopped, by a signal or a tracer."""
    try:
        state = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False  # it has ended
    return state in (b"T", b"t")


# --- the child --------------------------------------------------------------------------------


class _Library:
    """The driver's libcuda, with the functions that cuGetProcAddress has."""

    def __init__(self, path: str) -> None:
        self.cuda = ctypes.CDLL(path)
        version = ctypes.c_int(0)
        self.cuda.cuDriverGetVersion(ctypes.byref(version))
        self.version = version.value
        self.functions = {}
        for name in _FUNCTIONS:
            entry = ctypes.c_void_p()
            result = self.cuda.cuGetProcAddress(
                f"cuCheckpointProcess{name}".encode(),
                ctypes.byref(entry),
                CUDA_VERSION,
                ctypes.c_uint64(0),
            )
            if result == 0 and entry.value:
                kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
                self.functions[name] = kind(entry.value)

    def answer(self, request: Mapping[str, Any]) -> dict[str, object]:
        if request["call"] == "version":
            offered = len(self.functions) == len(_FUNCTIONS)
            return {"version": self.version, "offered": offered}
        function = self.functions[request["call"]]
        if request["call"] == "GetState":
            state = ctypes.c_int(suspension.ProcessState.FAILED)
            result = function(request["pid"], ctypes.addressof(state))
            return {"result": result, "state": state.value}
        if request["call"] == suspension.CheckpointCall.RESTORE.value:
            self.cuda.cuInit(0)  # a restore needs a driver that stays loaded
        arguments = (ctypes.c_uint32 * _ARGUMENT_WORDS)()
        if request["call"] == suspension.CheckpointCall.LOCK.value:
            arguments[0] = request["timeout_ms"]
        return {"result": function(request["pid"], ctypes.addressof(arguments))}


def _memory(libnvidia_ml: Path, uuid: str, uncounted: int) -> dict[str, object]:
    import pynvml

    from pyvgpu import nvml

    try:
        with nvml.session(libnvidia_ml):
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            if nvml.is_in_mig_mode(handle):  # NVML may not tell more
                return {"free": 0, "by_pid": {}, "is_mig": True}
            free = int(pynvml.nvmlDeviceGetMemoryInfo(handle).free)
            found = nvml.bytes_by_pid(uuid, uncounted)
            return {"free": free, "by_pid": found, "is_mig": False}
    except pynvml.NVMLError as exc:
        return {"error": f"NVML: {exc}"}


def main(libcuda: str, libnvidia_ml: str) -> None:
    """Answer requests from standard input until it ends."""
    library = _Library(libcuda)
    for line in sys.stdin:
        request = json.loads(line)
        if request["call"] == "memory":
            found = _memory(Path(libnvidia_ml), request["uuid"], request["uncounted"])
        else:
            found = library.answer(request)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
