"""Periodic deletion of the leases of nodes that do not exist any more.

A cluster whose nodes come and go would otherwise collect a lease for each node name that it ever
had.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyvgpu.kube import apiserver, leases, objects

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection

    from pyvgpu.kube import rate_limit

log = logging.getLogger(__name__)

SWEEP_SECONDS = 600.0
QUIET_SECONDS = 300.0  # without a renewal, before the lease of an absent node is deleted


class LeaseSweep:
    """Deletes leases of absent nodes while *may_act* returns true."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        namespace: str,
        may_act: Callable[[], bool],
        turns: rate_limit.Pace,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._may_act = may_act
        self._turns = turns

    def run(
        self,
        stop: threading.Event,
        quiet: Callable[[], Collection[str]],
        nodes: Callable[[], Collection[str]],
    ) -> None:
        """Sweep until *stop*; the others return the arguments of :meth:`sweep`."""
        while not stop.wait(SWEEP_SECONDS):
            if not self._may_act():
                continue
            try:
                self.sweep(quiet(), nodes())
            except apiserver.ServerError as exc:
                log.warning("gave up a sweep of leases: %s", exc)

    def sweep(self, quiet: Collection[str], nodes: Collection[str]) -> None:
        """Delete the leases named in *quiet*, which no node part renews, of no node in *nodes*.

        ServerError if the API server fails.
        """
        for name in orphans(quiet, nodes):
            self._turns.wait()
            if not self._may_act():
                return
            path = leases.path(self._namespace, name)
            try:
                meta = objects.section(self._api.call("GET", path), "metadata")
                version = {key: meta[key] for key in ("uid", "resourceVersion")}
                self._api.call("DELETE", path, body={"preconditions": version})
            except apiserver.ServerError as exc:
                if not exc.outdated and exc.status != apiserver.NOT_FOUND:
                    raise
            else:
                log.info("deleted lease %s of a node that does not exist", name)


def orphans(quiet: Collection[str], nodes: Collection[str]) -> list[str]:
    """Return the leases in *quiet* that belong to node parts of no node in *nodes*."""
    known = {f"{leases.NODE}{node}" for node in nodes} | {leases.CONTROLLER}
    return sorted(name for name in quiet if name.startswith(leases.NODE) and name not in known)
