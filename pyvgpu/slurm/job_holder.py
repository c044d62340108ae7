"""The process that holds a job's quota on this node, for all its steps.

The first step with shards starts it. It reserves the quota, as `pyvgpu run` does, and listens on a
socket that only root reaches: each step sends its request, with the read end of a pipe whose write
end its slurmstepd keeps open. When the last slurmstepd has ended it removes everything.

A lock excludes steps that start from a holder that ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import selectors
import socket
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pyvgpu import errors, nvml, quota
from pyvgpu.machine import holders
from pyvgpu.run import run_files, run_setup
from pyvgpu.slurm import shards

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyvgpu.device import Device

FOLDER = Path("/run/pyvgpu-slurm")
CACHE = Path("/var/cache/pyvgpu")
LOG_FILE = "log"
ANSWER_SECONDS = 60.0  # for a step's request
FIRST_STEP_SECONDS = 60.0  # for the step that started the holder to join
LOCK_SECONDS = 120.0  # a holder may first copy the driver and measure a context

_RETRY_SECONDS = 0.05
_LONGEST = 1 << 16


@dataclasses.dataclass(frozen=True, slots=True)
class JobSettings:
    """A job, and the plugin's arguments in plugstack.conf."""

    job: int
    user: int  # uid
    simulate: str | None = None
    driver_libraries: str | None = None
    total: int | None = None  # shards of each GPU; None: ask slurmd


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold the lock of all jobs; UnavailableError after LOCK_SECONDS."""
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    found = FOLDER.lstat()
    if found.st_uid != 0 or found.st_mode & 0o077 or FOLDER.is_symlink():
        raise errors.DataError(f"{FOLDER}: must be a folder of root, with mode 700")
    file = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _try_lock(file):
            if time.monotonic() > deadline:
                raise errors.UnavailableError(
                    f"{FOLDER}: another step has held its lock for {LOCK_SECONDS:.0f} s"
                )
            time.sleep(_RETRY_SECONDS)
        yield
    finally:
        os.close(file)


def join(job: int, request: shards.StepRequest, alive: int) -> list[str] | None:
    """Add a step to its job's holder; return the plugin's lines, None without a holder.

    *alive* is a pipe that reaches EOF when the step has ended. Raises the holder's refusal.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect(str(_path(job)))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        socket.send_fds(connection, [json.dumps(shards.dump(request)).encode()], [alive])
        raw = connection.recv(_LONGEST)
    if not raw:
        raise errors.UnavailableError(f"the process that holds job {job}'s quota has ended")
    found = json.loads(raw)
    if "error" in found:
        raise errors.UnavailableError(found["error"])
    return [str(line) for line in found["lines"]]


def hold(settings: JobSettings, held: shards.HeldShards, ready: BinaryIO) -> None:
    """Reserve the quota, close the pipe *ready*, and serve the job's steps until all have ended.

    *held* are those of the first step. Raises before *ready* is closed if there is no quota.
    """
    _sweep()
    cache = run_files.check_cache(CACHE, 0o755)
    base = run_setup.find_base(settings.simulate, settings.driver_libraries)
    chosen = run_setup.measured(base, (_device(base, held.minor),), cache)
    most = shards.entitled(held.count, held.total, chosen[0].memory_bytes)
    plan = run_setup.RunPlan(
        base,
        run_setup.mirror(base, cache),
        cache,
        holders.RunRequest(shards.limited(held, most), chosen, base.driver.release),
        holders.Holder(
            f"slurm-{settings.job}",
            f"Slurm job {settings.job}",
            tree=str(cache / run_files.RUNS),
        ),
        user=settings.user,
    )
    with run_setup.opened(plan) as opened, _listening(settings.job) as listener:
        overlays = run_setup.overlays(base, opened.tree, plan.source)
        closed = str(_close(cache, [overlay.layer for overlay in overlays]))
        lines = shards.answer_lines(
            str(opened.tree / "lib64"),
            # CUDA_VISIBLE_DEVICES has Slurm's index; the quota's device is the only one.
            {"CUDA_VISIBLE_DEVICES": "0", **run_setup.variables(base)},
            [(str(overlay.layer), closed, str(overlay.folder)) for overlay in overlays],
        )
        opened.ensure_arbiter()
        opened.start_threads()
        ready.close()
        _Steps(settings.job, held, opened, lines).serve(listener)


class _Steps:
    """The steps of a job that share its quota."""

    def __init__(
        self, job: int, held: shards.HeldShards, opened: run_setup.OpenRun, lines: list[str]
    ) -> None:
        self._job = job
        self._held = held
        self._opened = opened
        self._lines = lines
        self._selector = selectors.DefaultSelector()
        self._alive = 0

    def serve(self, listener: socket.socket) -> None:
        """Answer steps until all have ended."""
        self._selector.register(listener, selectors.EVENT_READ)
        deadline = time.monotonic() + FIRST_STEP_SECONDS
        joined = False
        while True:
            joined = joined or self._alive > 0
            ended = not self._alive and (joined or time.monotonic() > deadline)
            if ended and self._end(listener):
                return
            wait = None if self._alive else _RETRY_SECONDS
            for key, _ in self._selector.select(wait):
                if key.fileobj is listener:
                    self._accept(listener)
                else:
                    self._selector.unregister(key.fileobj)
                    os.close(key.fd)
                    self._alive -= 1

    def _end(self, listener: socket.socket) -> bool:
        """Close the socket, unless a step is about to join."""
        file = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not _try_lock(file) or self._selector.select(0):
                return False
            _path(self._job).unlink(missing_ok=True)
            listener.close()
            return True
        finally:
            os.close(file)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(ANSWER_SECONDS)
                raw, received, _, _ = socket.recv_fds(connection, _LONGEST, 1)
                answer = self._answer(raw, received)
                connection.send(json.dumps(answer).encode())

    def _answer(self, raw: bytes, received: list[int]) -> Mapping[str, Any]:
        try:
            if len(received) != 1:
                raise errors.DataError("a step's request came without its pipe")
            self._join(shards.load(json.loads(raw)))
        except (errors.PyVgpuError, ValueError) as exc:
            for descriptor in received:
                os.close(descriptor)
            return {"error": str(exc)}
        self._selector.register(received[0], selectors.EVENT_READ)
        self._alive += 1
        return {"lines": self._lines}

    def _join(self, request: shards.StepRequest) -> None:
        """Raise the quota if the step has more shards than the others had."""
        shards.check_joins(request, self._held, self._job)
        if request.shards is None or request.shards <= self._held.count:
            return
        held = dataclasses.replace(self._held, count=request.shards)
        memory = self._opened.made.share.device.memory_bytes
        wanted = shards.limited(held, shards.entitled(held.count, held.total, memory))
        self._opened.change(quota.QuotaChange(vcore=wanted.vcore, vmemory=wanted.vmemory))
        self._held = held


def _device(base: run_setup.Base, minor: int) -> Device:
    with run_setup.nvml_session(base):
        for device in base.devices:
            if not device.mig and nvml.minor_number(device.uuid) == minor:
                return device
    raise errors.UnavailableError(
        f"GPU {minor}: the driver has no device with that minor number outside MIG mode; "
        f"gres.conf must name a device file that exists, such as File=/dev/nvidia{minor}"
    )


def _close(cache: Path, layers: Sequence[Path]) -> Path:
    """Return a folder to mount between *layers* and the driver; it hides all of their names.

    The layers are removed with the run. A process that outlives it then finds no driver, instead
    of the bare one.
    """
    folder = cache / "closed"
    folder.mkdir(mode=0o755, exist_ok=True)
    for layer in layers:
        for entry in layer.iterdir():
            with contextlib.suppress(FileExistsError):  # an overlay's whiteout
                os.mknod(folder / entry.name, stat.S_IFCHR, os.makedev(0, 0))
    return folder


@contextlib.contextmanager
def _listening(job: int) -> Iterator[socket.socket]:
    path = _path(job)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        yield listener


def _sweep() -> None:
    """Remove the sockets of holders that were killed; the caller's step holds the lock."""
    for path in FOLDER.glob("[0-9]*"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            try:
                connection.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)


def _path(job: int) -> Path:
    return FOLDER / str(job)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
