"""Ends programs under MPS without harm to others: they are terminated by MPS before a kill.

A client of an MPS server that is killed while its kernels run may leave the server and all other
clients in an undefined state. MPS's command terminate_client waits for its work, and then all its
CUDA calls fail. So the clients of a pod that is being deleted get it shortly before kubelet kills
them: until then they may end by themselves.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, quota
from pyvgpu.deviceplugin.containers import process_owner
from pyvgpu.machine import mounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pyvgpu.deviceplugin.devices import mps_daemons
    from pyvgpu.deviceplugin.grants import Grant

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
MARGIN_SECONDS = 5.0  # before the kill, or half of a shorter grace period


class LeavingClients:
    """Terminates the MPS clients of pods that kubelet will soon kill; see the module."""

    def __init__(
        self,
        daemons: mps_daemons.MpsDaemons,
        grants: Callable[[], Iterable[Grant]],
        pod_of: Callable[[str], Mapping[str, Any] | None],
        grant_of: Callable[[int], str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """*pod_of* returns a pod by its uid, *grant_of* the id of the grant that a pid belongs to.

        *clock* returns seconds since the epoch.
        """
        self._daemons, self._grants = daemons, grants
        self._pod_of, self._grant_of, self._clock = pod_of, grant_of, clock
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let :meth:`run` end soon."""
        self._stopped.set()

    def run(self) -> None:
        """Terminate clients every POLL_SECONDS until :meth:`stop`."""
        while not self._stopped.wait(POLL_SECONDS):
            self.poll()

    def poll(self) -> None:
        """Terminate the clients whose time is over."""
        for grant in list(self._grants()):
            if grant.isolation is not quota.Isolation.MPS or grant.owner is None:
                continue
            pod = self._pod_of(grant.owner.uid)
            if pod is not None and self._clock() >= _last_moment(pod["metadata"]):
                for share in grant.shares:
                    with contextlib.suppress(errors.UnavailableError):
                        self._terminate(grant, share.uuid)

    def _terminate(self, grant: Grant, uuid: str) -> None:
        for pid in self._daemons.clients(uuid):
            if self._grant_of(pid) == grant.id and self._daemons.terminate(uuid, pid):
                log.info("MPS terminated process %d of %s, which is deleted", pid, grant.label)


def grant_of(folder: Path, pid: int) -> str:
    """Return the id of the grant, with its files below *folder*, of a process; empty: none."""
    owner = process_owner.whose(pid, mounts.origin(folder))
    return "" if owner is None else owner.grant


def _last_moment(metadata: Mapping[str, Any]) -> float:
    """Return when to terminate a pod's clients, in seconds since the epoch; else infinity."""
    with contextlib.suppress(KeyError, ValueError, TypeError):
        kill = datetime.datetime.fromisoformat(str(metadata["deletionTimestamp"])).timestamp()
        grace = float(metadata.get("deletionGracePeriodSeconds") or 0.0)
        return kill - min(MARGIN_SECONDS, grace / 2)
    return float("inf")
