"""MPS for one run: checks its device, starts the daemon, and limits the run's programs.

Programs whose quota is under MPS do not start outside it: the shim asks the driver.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors, log, nvml, quota
from pyvgpu.machine import mps_daemon, mps_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyvgpu.device import Device
    from pyvgpu.machine import holders, reservations

_PROHIBITED = 2  # NVML_COMPUTEMODE_PROHIBITED


@dataclasses.dataclass(frozen=True, slots=True)
class MpsRun:
    """MPS of a run; without MPS all of it does nothing."""

    registries: reservations.Registries
    variables: Mapping[str, str]  # of the environment of the run's programs
    daemon: mps_daemon.Daemon | None = None
    watcher: mps_daemon.DaemonWatcher | None = None

    def ensure(self) -> None:
        """Start the daemon unless it runs; UnavailableError."""
        if self.daemon is not None:
            mps_daemon.ensure(self.daemon)

    def start(self) -> None:
        """Start to watch the daemon; call this only after the last fork of this process."""
        if self.watcher is not None:
            self.watcher.start()

    def stop(self) -> None:
        """Stop to watch it."""
        if self.watcher is not None:
            self.watcher.stop()

    def before_kill(self, pid: int) -> None:
        """Have MPS end the work of a program that will be killed, without harm to others."""
        if self.daemon is not None:
            with contextlib.suppress(errors.UnavailableError):
                mps_daemon.terminate_if_client(self.daemon, pid)

    def end(self) -> None:
        """End the daemon if no run needs it; the reservation of this one is gone."""
        if self.daemon is not None:
            mps_daemon.end_if_unused(self.daemon, self.registries)


def usable(
    request: holders.RunRequest, read_facts: Callable[[str], mps_limits.DeviceFacts]
) -> holders.RunRequest:
    """Return *request* with the devices that can have it; UnavailableError if none can.

    *read_facts* takes a device's UUID.
    """
    if request.quota.isolation is not quota.Isolation.MPS:
        return request
    found: list[Device] = []
    refusals: list[errors.UnavailableError] = []
    for device in request.devices:
        try:
            mps_limits.check_device(read_facts(device.uuid), device.label)
        except errors.UnavailableError as exc:
            refusals.append(exc)
        else:
            found.append(device)
    if not found:
        raise refusals[0]
    return dataclasses.replace(request, devices=tuple(found))


def prepare(
    libcuda: Path,
    environment: Mapping[str, str],
    made: holders.OwnReservation,
    registries: reservations.Registries,
    read_facts: Callable[[str], mps_limits.DeviceFacts],
) -> MpsRun:
    """Return the limits and the daemon of a run whose reservation is under MPS; UnavailableError.

    *environment* has the variables that the driver needs; *read_facts* takes a device's UUID.
    """
    share = made.share
    if share.isolation is not quota.Isolation.MPS:
        return MpsRun(registries, {})
    program = mps_daemon.find_program(libcuda)
    facts = read_facts(share.device.uuid)
    limit = mps_limits.limit_sms(share.vcore, facts)
    if limit.lowered:
        log.say(mps_limits.describe_lowered(share.vcore, limit, share.device.label))
    daemon = mps_daemon.Daemon(
        program,
        mps_daemon.folder_of(made.folder.parent, share.device.uuid),
        share.device.uuid,
        share.device.label,
        environment,
    )
    variables = mps_limits.variables(share, limit, daemon.folder)
    return MpsRun(registries, variables, daemon, mps_daemon.DaemonWatcher(daemon))


def read_facts(uuid: str) -> mps_limits.DeviceFacts:
    """Read a device's facts, in a session with NVML; NVMLError."""
    return mps_limits.DeviceFacts(
        nvml.compute_mode(uuid) == _PROHIBITED,
        nvml.compute_capability(uuid),
        nvml.multiprocessors(uuid),
    )
