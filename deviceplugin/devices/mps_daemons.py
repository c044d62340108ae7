"""The MPS control daemons of the node's devices: one for each device that MPS divides.

They belong to the agent: it starts and watches them, and starts one again that has ended. They end
with the agent's pod; outside of a pod the next agent finds them. Their servers serve all users, as
containers run as any uid.

The programs of a device share its server, so the agent reports what ends all of them: to the pods
by an event, and as the device's health while new programs could not start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import platform
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pyvgpu import errors
from pyvgpu.deviceplugin.containers import cdi_edits
from pyvgpu.machine import mps_daemon, mps_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

log = logging.getLogger(__name__)

FOLDER = "mps"  # in the run folder
SHARED_MEMORY = (
    "shm"  # in it: the /dev/shm of daemons and programs, if the agent has it as its own
)
FAULT = (
    "MPS: a fatal error of one program has ended all programs of the device, and new ones cannot "
    "start until the last of them is gone"
)
_STARTING = "its MPS daemon has not started yet"
_AGAIN = "its programs get CUDA error {codes} and must be started again"
_ROOTS = ("", "run/nvidia/driver")  # of the driver, below the node's root
_PLACES = (
    "usr/bin",
    "usr/local/nvidia/bin",
    "usr/local/bin",
    f"usr/lib/{platform.machine()}-linux-gnu",
    "usr/lib64",
)


@dataclasses.dataclass(frozen=True, slots=True)
class MpsDevice:
    """A device that MPS divides."""

    uuid: str
    label: str
    facts: mps_limits.DeviceFacts


@dataclasses.dataclass(frozen=True, slots=True)
class MpsDriver:
    """The driver that daemons use."""

    root: Path  # of the node
    library: Path  # NVML, in the mirror
    release: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class _Watched:
    daemon: mps_daemon.Daemon
    server: mps_daemon.ServerState = mps_daemon.NO_SERVER
    trouble: str = _STARTING
    reported: str = ""  # the trouble of which pods know
    answered: bool = False  # at least once
    ended: bool = False  # for good: its device is not divided any more
    lock: threading.Lock = dataclasses.field(
        default_factory=threading.Lock
    )  # while it starts, ends

    def end(self) -> None:
        """End the daemon for good."""
        with self.lock:
            self.ended = True
            mps_daemon.end(self.daemon)

    def ensure(self) -> bool:
        """Start the daemon unless it answers; false: it was ended for good. UnavailableError."""
        with self.lock:
            if not self.ended:
                mps_daemon.ensure(self.daemon)
            return not self.ended


class Hear(Protocol):
    """Hears of a change of a device's health."""

    def __call__(self, uuid: str, reason: str, *, is_known: bool) -> None:
        """Take the *reason* why it is unhealthy, empty: healthy; *is_known*: to its pods."""


class MpsDaemons:
    """Runs the daemons, and watches them from a thread of its own; thread-safe."""

    def __init__(
        self,
        run: Path,
        ill: Hear,
        lost: Callable[[str, str], None],
    ) -> None:
        """Keep the daemons' files below the folder *run*.

        *ill* hears of changes of health; *lost* gets a device's UUID and the reason why its
        programs have failed.
        """
        self.folder = run / FOLDER
        self._ill, self._lost = ill, lost
        self._lock = threading.Lock()
        self._polling = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._hopeless: dict[str, str] = {}  # devices that cannot have a daemon, and why
        self._release = ""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def trouble(self, uuid: str) -> str:
        """Return why no program can start on a device; empty if one can, or MPS is not used."""
        with self._lock:
            known = self._watched.get(uuid)
            return self._hopeless.get(uuid, "" if known is None else known.trouble)

    @property
    def shared_memory(self) -> Path:
        """The folder of the node that programs get as /dev/shm: the one that the daemons use."""
        own = self.folder / SHARED_MEMORY
        with contextlib.suppress(OSError):
            if own.samefile(cdi_edits.SHARED_MEMORY):
                return own
        return Path(cdi_edits.SHARED_MEMORY)

    def servers(self) -> frozenset[int]:
        """Return the pids of the servers."""
        with self._lock:
            return frozenset(one.server.pid for one in self._watched.values() if one.server.pid)

    def clients(self, uuid: str) -> tuple[int, ...]:
        """Return the pids of the programs that use a device by MPS; UnavailableError."""
        with self._lock:
            one = self._watched.get(uuid)
        if one is None:
            return ()
        return mps_daemon.clients(one.daemon, mps_daemon.server_state(one.daemon))

    def terminate(self, uuid: str, pid: int) -> bool:
        """End a program's use of a device without harm to others; UnavailableError.

        False if it does not use the device by MPS.
        """
        with self._lock:
            one = self._watched.get(uuid)
        if one is None:
            return False
        return mps_daemon.terminate(one.daemon, mps_daemon.server_state(one.daemon), pid)

    def before_kill(self, pid: int) -> None:
        """Terminate a client of any device, since the process *pid* will be killed."""
        with self._lock:
            watched = tuple(self._watched.values())
        for one in watched:
            with contextlib.suppress(errors.UnavailableError):
                mps_daemon.terminate_if_client(one.daemon, pid)

    def follow(self, devices: Collection[MpsDevice], driver: MpsDriver) -> None:
        """Have daemons for exactly these *devices*; they start soon, or are adopted."""
        made: dict[str, _Watched] = {}
        hopeless: dict[str, str] = {}
        if devices:
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for device in devices:
            try:
                mps_limits.check_device(device.facts, device.label)
                daemon = self._daemon(device, driver)
            except errors.UnavailableError as exc:
                hopeless[device.uuid] = str(exc)
                continue
            made[device.uuid] = _Watched(daemon)
        with self._lock:
            before, another = self._watched, self._release not in ("", driver.release)
            for uuid, one in before.items():
                if uuid not in made or another:
                    log.info("ending the MPS daemon of device %s", uuid)
                    one.end()
                else:
                    made[uuid] = one
            self._watched, self._hopeless, self._release = made, hopeless, driver.release
            if made and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mps", daemon=True)
                self._thread.start()

    def stop(self, used: Callable[[str], bool]) -> None:
        """End the watch, and the daemons of devices that are not *used* by containers."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(mps_daemon.TIMEOUT_SECONDS)
        with self._lock:
            for uuid, one in self._watched.items():
                if not used(uuid):
                    one.end()

    def poll(self) -> None:
        """Check all daemons once."""
        with self._polling:
            with self._lock:
                watched = dict(self._watched)
            for uuid, one in watched.items():
                with contextlib.suppress(OSError):
                    self._poll(uuid, one)

    def _poll(self, uuid: str, one: _Watched) -> None:
        try:
            state = mps_daemon.server_state(one.daemon)
            stuck = state.faulty and mps_daemon.has_clients(one.daemon, state)
        except errors.UnavailableError:
            self._start(uuid, one)
            return
        before, one.server, one.answered = one.server, state, True
        if state.pid != before.pid:
            log.info("MPS on device %s: the server has pid %d", uuid, state.pid)
        self._set(uuid, one, FAULT if stuck else "")
        if before.pid and state.pid != before.pid and not before.faulty:
            self._lost(uuid, f"the MPS server has ended; {_AGAIN.format(codes='806')}")

    def _start(self, uuid: str, one: _Watched) -> None:
        one.server = mps_daemon.NO_SERVER
        # One of an earlier agent may have been killed together with it.
        has_ended = one.answered or mps_daemon.has_run(one.daemon)
        try:
            if not one.ensure():  # follow has ended it meanwhile
                return
        except errors.UnavailableError as exc:
            self._set(uuid, one, str(exc))
            return
        if has_ended:
            self._lost(
                uuid,
                "the MPS control daemon had ended and was started again; "
                + _AGAIN.format(codes="805 or 806"),
            )
        one.answered = True
        self._set(uuid, one, "")

    def _set(self, uuid: str, one: _Watched, trouble: str) -> None:
        with self._lock:
            before, one.trouble = one.trouble, trouble
        if trouble != before:
            log.warning("MPS on device %s: %s", uuid, trouble or "programs can start")
            is_known, one.reported = trouble == one.reported, trouble
            self._ill(uuid, trouble, is_known=is_known)

    def _daemon(self, device: MpsDevice, driver: MpsDriver) -> mps_daemon.Daemon:
        program = _find_program(driver.root)
        environment = {
            **driver.environment,
            "LD_LIBRARY_PATH": str(driver.library.parent),
            "PATH": f"{program.parent}:/usr/bin:/bin",
        }
        return mps_daemon.Daemon(
            program,
            self.folder / device.uuid,
            device.uuid,
            device.label,
            environment,
            for_all=True,
        )

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.poll()
            self._stopped.wait(mps_daemon.PERIOD_SECONDS)


def _find_program(root: Path) -> Path:
    """Return the control daemon below the node's *root*; UnavailableError."""
    places = [root / base / place for base in _ROOTS for place in _PLACES]
    for place in places:
        found = place / mps_daemon.PROGRAM
        if os.access(found, os.X_OK):
            return found
    raise errors.UnavailableError(
        f"sharing mps: there is no {mps_daemon.PROGRAM} in {places[0]} or beside the driver; it "
        "is a part of NVIDIA's driver for Linux, in some distributions a package of its own"
    )
