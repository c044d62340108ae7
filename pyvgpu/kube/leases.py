"""Leader election of controllers, and heartbeats of node parts, by Lease objects.

Only our own clock counts for expiry: a lease has expired when its duration has passed *since we
last saw it change*, so the clocks of two machines need not agree.
"""

from __future__ import annotations

import datetime
import logging
import time
from typing import TYPE_CHECKING, Any

from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

log = logging.getLogger(__name__)

CONTROLLER = "pyvgpu-sidecar-controller"  # the leader's lease
CLAIMS = "pyvgpu-claim-controller"  # the same of the other controller
NODE = "pyvgpu-sidecar-"  # plus a node's name: the lease of its node part

LEASE_SECONDS = 15
RENEW_SECONDS = 2
FENCE_SECONDS = 10  # since its last renewal; then the holder stops acting


def path(namespace: str, name: str = "") -> str:
    """Return the URL path of leases, or of one."""
    folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    return f"{folder}/{name}" if name else folder


class Lease:
    """One lease that this process holds or tries to acquire."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        namespace: str,
        name: str,
        holder: str,
        seconds: float = LEASE_SECONDS,
    ) -> None:
        """Write nothing yet; *seconds* is the duration of the lease, at least 1."""
        self._api = api
        self._seconds = seconds
        self._namespace = namespace
        self._name = name
        self._holder = holder
        self._seen: tuple[str, str] = ("", "")  # holder and renewal time, as last seen
        self._seen_at = 0.0
        self._renewed_at = 0.0
        self._written: dict[str, Any] | None = None  # the lease as we last wrote it

    @property
    def is_held(self) -> bool:
        """Return whether this process may act: it renewed the lease within FENCE_SECONDS."""
        return self.is_held_for(0.0)

    def is_held_for(self, seconds: float) -> bool:
        """Return whether this process may act for so many seconds from now, whatever happens."""
        return time.monotonic() + seconds < self._renewed_at + FENCE_SECONDS

    def wait(self, stop: threading.Event) -> bool:
        """Wait until the lease is ours; False if *stop* came first."""
        while not stop.is_set():
            if self.try_to_hold():
                return True
            stop.wait(RENEW_SECONDS)
        return False

    def keep(self, stop: threading.Event) -> None:
        """Renew it until *stop*, then release it; return early if it was lost."""
        while self.is_held:
            if stop.wait(RENEW_SECONDS):
                self.give_back()
                return
            self.try_to_hold()

    def act(self, stop: threading.Event) -> None:
        """Acquire and hold it again and again, until *stop*."""
        called = f"{self._namespace}/{self._name}"
        while self.wait(stop):
            log.info("acquired lease %s", called)
            self.keep(stop)
            if not stop.is_set():
                log.warning("lost lease %s: another replica is the leader, or none is", called)

    def try_to_hold(self, annotations: Mapping[str, str] | None = None) -> bool:
        """Acquire or renew the lease; return whether it is ours now."""
        asked = time.monotonic()
        try:
            held = self._write(annotations or {})
        except apiserver.ServerError as exc:
            if exc.status != apiserver.CONFLICT:
                log.warning("cannot renew lease %s: %s", self._name, exc)
            return False
        # If another process holds it, stop acting at once, whatever time is left.
        self._renewed_at = asked if held else 0.0
        return held

    def give_back(self) -> None:
        """Release it, so that another process can acquire it at once."""
        self._renewed_at = 0.0
        self._written = None
        try:
            lease = self._api.call("GET", path(self._namespace, self._name))
            if objects.section(lease, "spec").get("holderIdentity") == self._holder:
                lease["spec"] = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                self._api.call("PUT", path(self._namespace, self._name), body=lease)
        except apiserver.ServerError as exc:
            log.warning("cannot release lease %s: %s", self._name, exc)

    def _write(self, annotations: Mapping[str, str]) -> bool:
        # Do not read back our own last write: if the lease has changed since, the PUT conflicts.
        known, self._written = self._written, None
        if known is not None:
            try:
                self._put(known, annotations)
            except apiserver.ServerError as exc:
                if not exc.outdated:
                    raise
            else:
                return True
        try:
            lease = self._api.call("GET", path(self._namespace, self._name))
        except apiserver.ServerError as exc:
            if exc.status != 404:
                raise
            new = {"name": self._name, "labels": objects.OURS, "annotations": dict(annotations)}
            body = {"metadata": new, "spec": self._spec(0)}
            self._written = self._api.call("POST", path(self._namespace), body=body)
            return True
        spec = objects.section(lease, "spec")
        holder = str(spec.get("holderIdentity") or "")
        if holder not in ("", self._holder) and not self._is_over(holder, spec):
            return False
        self._put(lease, annotations)
        return True

    def _put(self, lease: dict[str, Any], annotations: Mapping[str, str]) -> None:
        spec = objects.section(lease, "spec")  # optional in the API
        kept = objects.section(lease, "metadata", "annotations")
        changes = int(spec.get("leaseTransitions") or 0)
        changes += spec.get("holderIdentity") != self._holder
        body = {
            **lease,
            "metadata": {**lease["metadata"], "annotations": {**kept, **annotations}},
            "spec": self._spec(changes),
        }
        self._written = self._api.call("PUT", path(self._namespace, self._name), body=body)

    def _is_over(self, holder: str, spec: objects.Object) -> bool:
        now = (holder, str(spec.get("renewTime")))
        if now != self._seen:
            self._seen, self._seen_at = now, time.monotonic()
        lasts = int(spec.get("leaseDurationSeconds") or LEASE_SECONDS)
        return time.monotonic() >= self._seen_at + lasts

    def _spec(self, changes: int) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": int(self._seconds),
            "leaseTransitions": changes,
            "renewTime": now,
        }
