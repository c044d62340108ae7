"""The MPS control daemon of a device: find its program, start it, watch it, end it.

One daemon for each device and user, with a folder of its own among the reservations. The runs that
use it have reservations with isolation MPS on its device; the last of them ends it. Its servers
belong to the user of its first client, and other users are refused before (admission).

The daemon restarts a server that has ended, for the next client. A daemon that has ended is
started again here. Neither brings back the programs that used it: they get an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import select
import shutil
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, log, names, quota
from pyvgpu.machine import mps_limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyvgpu.machine import holders, reservations

PROGRAM = "nvidia-cuda-mps-control"
PERIOD_SECONDS = 1.0  # between two polls of a daemon
TIMEOUT_SECONDS = 10.0  # for one command
_FAULT = "FAULT"
_CALL = "get_default_active_thread_percentage"
_LOCK_FILE = "lock"
_MESSAGES = "start.log"
_STEP_SECONDS = 0.01
_SHOWN_LOG = 200  # characters
_COMM_LENGTH = 15  # of a process's name in /proc: longer ones are cut


@dataclasses.dataclass(frozen=True, slots=True)
class Daemon:
    """The control daemon of one device."""

    program: Path
    folder: Path  # its pipes and logs
    uuid: str  # of the device
    label: str
    environment: Mapping[str, str]  # that the driver needs
    for_all: bool = False  # one server for all users, whose folder all may enter


@dataclasses.dataclass(frozen=True, slots=True)
class ServerState:
    """The server of a daemon."""

    pid: int  # 0: none has started yet
    faulty: bool = False


NO_SERVER = ServerState(0)


def find_program(libcuda: Path) -> Path:
    """Return the control daemon beside *libcuda* or in /usr/bin; UnavailableError."""
    beside = libcuda.parent / PROGRAM
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which(PROGRAM, path="/usr/bin:/usr/local/bin:/bin:/usr/local/nvidia/bin")
    if found is None:
        raise errors.UnavailableError(
            f"sharing mps: there is no {PROGRAM} beside {libcuda} or in /usr/bin; it is a part of "
            "NVIDIA's driver for Linux, in some distributions a package of its own"
        )
    return Path(found)


def folder_of(registry: Path, uuid: str) -> Path:
    """Return the folder of the daemon of the caller and a device."""
    return registry / f"{names.MPS_FOLDER}{os.geteuid()}-{uuid}"


def ensure(daemon: Daemon) -> None:
    """Start the daemon unless it answers; UnavailableError, with its own message, if it cannot."""
    with _locked(daemon):
        if _answers(daemon):
            return
        said = _start(daemon)
        if not _answers(daemon):
            raise errors.UnavailableError(
                f"sharing mps: the control daemon of {daemon.label} does not start: "
                f"{said or _last_line(daemon, 'control.log') or 'it gives no reason'}"
            )


def has_run(daemon: Daemon) -> bool:
    """Return whether a daemon has run in this folder and was not ended in order."""
    return (daemon.folder / f"{PROGRAM}.pid").exists()


def _start(daemon: Daemon) -> str:
    """Run the program until the daemon is in the background; return its messages.

    It is killed if that takes too long, since each later try would leave one more. The daemon
    gets no blocked signals, although this process may have blocked them.
    """
    messages = daemon.folder / _MESSAGES
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, str(messages), flags, 0o600),
    ]
    environment = {
        **daemon.environment,
        **_places(daemon),
        "CUDA_VISIBLE_DEVICES": daemon.uuid,
    }
    try:
        pid = os.posix_spawn(
            daemon.program,
            [str(daemon.program), "-d", *(["-multiuser-server"] if daemon.for_all else [])],
            environment,
            file_actions=actions,
            setsigmask=(),
        )
    except OSError as exc:
        raise errors.UnavailableError(f"sharing mps: {daemon.program}: {exc.strerror}") from exc
    deadline = time.monotonic() + TIMEOUT_SECONDS
    # The supervisor's wait for all children may have reaped it.
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() >= deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return f"it was not ready after {TIMEOUT_SECONDS:g} s"
            time.sleep(_STEP_SECONDS)
    return messages.read_text(encoding="utf-8", errors="replace").strip()


def server_state(daemon: Daemon) -> ServerState:
    """Return the state of the daemon's server; UnavailableError if the daemon does not answer."""
    listed = _send(daemon, "get_server_list")
    pids = listed.split()
    if not pids:
        return NO_SERVER
    if not pids[-1].isdecimal():  # a complaint on standard output
        raise errors.UnavailableError(f"{daemon.program}: {log.printable(listed.strip())}")
    return ServerState(
        int(pids[-1]), _send(daemon, f"get_server_status {pids[-1]}").strip() == _FAULT
    )


def has_clients(daemon: Daemon, server: ServerState) -> bool:
    """Return whether programs are connected to a *server*; UnavailableError."""
    return bool(clients(daemon, server))


def clients(daemon: Daemon, server: ServerState) -> tuple[int, ...]:
    """Return the pids of the programs that are connected to a *server*; UnavailableError."""
    if not server.pid:
        return ()
    listed = _send(daemon, f"get_client_list {server.pid}").split()
    return tuple(int(word) for word in listed if word.isdecimal())


def terminate(daemon: Daemon, server: ServerState, pid: int) -> bool:
    """Let a client end its work, and fail from then on; whether it did. UnavailableError."""
    return "SUCCESS" in _send(daemon, f"terminate_client {server.pid} {pid}")


def terminate_if_client(daemon: Daemon, pid: int) -> None:
    """Terminate a program that will be killed, if it is a client; UnavailableError."""
    server = server_state(daemon)
    if pid in clients(daemon, server):
        terminate(daemon, server, pid)


def end_if_unused(daemon: Daemon, registries: reservations.Registries) -> None:
    """End the daemon and remove its folder, if no run of its device is left."""
    with contextlib.ExitStack() as ending:
        with registries.steady() as live:
            taken = _take_if_unused(daemon, live, ending)
        if taken:
            _end(daemon)


def end_unused(registries: reservations.Registries) -> None:
    """End the caller's daemons that no run uses: the last run and its janitor were killed."""
    prefix = f"{names.MPS_FOLDER}{os.geteuid()}-"
    if not any(_folders(registry, prefix) for registry in registries.paths):
        return
    with contextlib.ExitStack() as ending:
        with registries.steady() as live:
            found = [
                _found(folder, folder.name.removeprefix(prefix))
                for registry in registries.paths
                for folder in _folders(registry, prefix)
            ]
            unused = [daemon for daemon in found if _take_if_unused(daemon, live, ending)]
        for daemon in unused:
            _end(daemon)


def _take_if_unused(
    daemon: Daemon, live: Iterable[holders.LiveReservation], ending: contextlib.ExitStack
) -> bool:
    """Take the daemon's lock if no run uses it, while no run can begin; return whether.

    The end of a daemon may take many seconds, in which runs of other devices must be able to begin
    and end; one of this device waits for the daemon's lock. A process that has that lock already
    starts the daemon, or ends it.
    """
    if any(_uses(reservation, daemon) for reservation in live):
        return False
    try:
        ending.enter_context(_locked(daemon, wait=False))
    except (errors.UnavailableError, OSError):
        return False
    return True


def _folders(registry: Path, prefix: str) -> list[Path]:
    return sorted(registry.glob(f"{prefix}*"))


def _found(folder: Path, uuid: str) -> Daemon:
    """Return the daemon of *folder* as its process tells it: its program and environment."""
    pid = _read_pid(folder)
    environment = {}
    program = Path(PROGRAM)
    if pid is not None:
        with contextlib.suppress(OSError):
            process = Path(f"/proc/{pid}")
            words = (process / "environ").read_bytes().split(b"\0")
            environment = dict(os.fsdecode(word).split("=", 1) for word in words if b"=" in word)
            program = (process / "exe").readlink()
    return Daemon(program, folder, uuid, uuid, environment)


def end(daemon: Daemon) -> None:
    """End the daemon, by force if it does not obey, and remove its folder."""
    with contextlib.suppress(errors.UnavailableError, OSError), _locked(daemon):
        _end(daemon)


def _end(daemon: Daemon) -> None:
    with contextlib.suppress(OSError), _process(daemon.folder) as process:
        with contextlib.suppress(errors.UnavailableError):
            _send(daemon, "quit")
        if process is not None and not _has_ended(process):
            signal.pidfd_send_signal(process, signal.SIGKILL)
    shutil.rmtree(daemon.folder, ignore_errors=True)


@contextlib.contextmanager
def _process(folder: Path) -> Iterator[int | None]:
    """Yield a descriptor of the daemon's process; None if there is none."""
    pid = _read_pid(folder)
    descriptor = None
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _read_pid(folder: Path) -> int | None:
    """Return the pid in the daemon's pid file, if a process of that name has it."""
    try:
        pid = int((folder / f"{PROGRAM}.pid").read_text(encoding="ascii"))
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return pid if name == PROGRAM[:_COMM_LENGTH] else None


def _has_ended(process: int) -> bool:
    return bool(select.select([process], [], [], TIMEOUT_SECONDS)[0])


class DaemonWatcher:
    """Watches the daemon of a run in its own thread: reports the ends of servers, restarts it."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._server = NO_SERVER
        self._problem = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mps", daemon=True)

    def start(self) -> None:
        """Start the periodic checks; call this only after the last fork of this process."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the checks with a last one, which starts nothing. Harmless without start.

        The run's program may have ended because the daemon has.
        """
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(TIMEOUT_SECONDS)
        with contextlib.suppress(OSError):
            self.poll()

    def poll(self) -> None:
        """Check the daemon once."""
        try:
            state = server_state(self._daemon)
        except errors.UnavailableError:
            self._restart()
            return
        self._problem = ""
        before, self._server = self._server, state
        if state.faulty and not before.faulty:
            log.say(
                f"a fatal error of one program ended all programs that MPS served on "
                f"{self._daemon.label}{self._reason()}; new ones fail with error 807 until the "
                "last of them has ended"
            )
        elif before.pid and state.pid != before.pid:
            log.say(
                f"the MPS server of {self._daemon.label} has ended{self._reason()}; programs that "
                "used it get error 806 and must be started again; the next one gets a new server"
            )

    def _restart(self) -> None:
        before, self._server = self._server, NO_SERVER
        if self._stopped.is_set():
            if before.pid:
                log.say(
                    f"the MPS control daemon of {self._daemon.label} has ended; programs that "
                    "used it get error 805 or 806"
                )
            return
        try:
            ensure(self._daemon)
        except errors.UnavailableError as exc:
            if str(exc) != self._problem:
                log.say(str(exc))
            self._problem = str(exc)
            return
        lost = "; programs that used it get error 805 or 806 and must be started again"
        log.say(
            f"the MPS control daemon of {self._daemon.label} had ended and was started again"
            + (lost if before.pid else "")
        )

    def _reason(self) -> str:
        last = _last_line(self._daemon, "server.log")
        return f" (server.log: {last})" if last else ""

    def _run(self) -> None:
        while not self._stopped.wait(PERIOD_SECONDS):
            with contextlib.suppress(OSError):
                self.poll()


def _uses(reservation: holders.LiveReservation, daemon: Daemon) -> bool:
    return reservation.uid == os.geteuid() and any(
        limits.uuid == daemon.uuid and limits.isolation is quota.Isolation.MPS
        for limits in reservation.limits.devices
    )


def _places(daemon: Daemon) -> dict[str, str]:
    return {
        mps_limits.PIPE_VARIABLE: str(daemon.folder),
        mps_limits.LOG_VARIABLE: str(daemon.folder),
    }


def _send(daemon: Daemon, command: str) -> str:
    """Return the daemon's answer to *command*; UnavailableError if there is none."""
    try:
        answered = subprocess.run(
            [daemon.program],
            env={**daemon.environment, **_places(daemon)},
            input=f"{command}\n",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise errors.UnavailableError(f"{daemon.program}: {errors.reason_of(exc)}") from exc
    # The supervisor's wait for all children may have taken the exit code.
    if answered.stderr:
        raise errors.UnavailableError(f"{daemon.program}: {answered.stderr.strip()}")
    return answered.stdout


def _answers(daemon: Daemon) -> bool:
    try:
        float(_send(daemon, _CALL))
    except (errors.UnavailableError, ValueError):  # not a number: a complaint on standard output
        return False
    return True


def _last_line(daemon: Daemon, name: str) -> str:
    try:
        lines = (daemon.folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return log.printable(lines[-1][:_SHOWN_LOG]) if lines else ""


@contextlib.contextmanager
def _locked(daemon: Daemon, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of the daemon's folder, which is created if it is missing.

    BlockingIOError without *wait*, if another process holds it.
    """
    while True:
        file = _open_lock(daemon)
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_lock(file, daemon):
                yield
                return
        finally:
            os.close(file)


def _open_lock(daemon: Daemon) -> int:
    while True:
        with contextlib.suppress(FileExistsError):
            daemon.folder.mkdir(mode=0o700)
            if daemon.for_all:
                daemon.folder.chmod(0o755)
        with contextlib.suppress(FileNotFoundError):  # it was just removed
            found = daemon.folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise errors.UnavailableError(
                    f"{daemon.folder}: must be a folder of user {os.geteuid()}; remove it"
                )
            path = daemon.folder / _LOCK_FILE
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_lock(file: int, daemon: Daemon) -> bool:
    """Return whether the folder of a lock was not removed by the process that held it before."""
    try:
        return os.path.samestat(os.fstat(file), (daemon.folder / _LOCK_FILE).stat())
    except FileNotFoundError:
        return False
