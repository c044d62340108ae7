"""Write each claim's device status, and end the grants of claims that were deleted.

Kubelet unprepares a claim at its end. If it never does, because it has lost its state, the claim
disappears from the API server; then its grant ends once no process uses it.
"""

from __future__ import annotations

import datetime
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from pyvgpu import names, quantity
from pyvgpu.allocator import mig_placement
from pyvgpu.deviceplugin.dra import mig_partitions, resource_slices
from pyvgpu.deviceplugin.grants import holdings
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyvgpu.allocator import datatypes
    from pyvgpu.deviceplugin.grants import Grant, GrantClaim
    from pyvgpu.deviceplugin.grants.manager import GrantManager

log = logging.getLogger(__name__)

GONE_SECONDS = 300.0  # between two polls; a claim missing in both is deleted
AGAIN_SECONDS = 5.0  # before a failed write is retried
CALM_SECONDS = 1.0  # debounce before a write: the claim's pod is just starting
APPLY = "application/apply-patch+yaml"
_CLAIMS = f"/apis/{resource_slices.GROUP}"


def devices_of(
    own: Iterable[Grant], node: str, devices: Iterable[datatypes.NodeDevice]
) -> list[dict[str, Any]]:
    """Return the entries of a claim's status for the devices of its grants."""
    known = list(devices)
    found = []
    for grant in own:
        unhealthy = holdings.unhealthy(grant, known)
        shares = {_name_of(given): given for given in grant.shares}
        pool = mig_partitions.pool_of(node) if grant.mig else node
        for result in grant.claim.results if grant.claim else ():
            share = shares[result.device]
            one: dict[str, Any] = {
                "driver": names.DRA_DRIVER,
                "pool": pool,
                "device": result.device,
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "False" if unhealthy else "True",
                        "reason": "DeviceUnhealthy" if unhealthy else "Granted",
                        "message": unhealthy,
                    }
                ],
                "data": {
                    "apiVersion": f"{names.DOMAIN}/v1alpha1",
                    "kind": "Granted",
                    "grant": grant.id,
                    "uuid": share.uuid,
                    names.DRA_VCORE: share.vcore,
                    names.DRA_VMEMORY: quantity.format_exact(share.vmemory).removesuffix("B"),
                    "policy": grant.policy.name.lower(),
                    "priority": grant.priority.name.lower(),
                    **({"mig": share.mig} if share.mig else {}),
                },
            }
            if result.share_id:
                one["shareID"] = result.share_id
            found.append(one)
    return found


def _name_of(share: datatypes.NodeShare) -> str:
    """Return the name in a ResourceSlice of what a share is of."""
    if share.mig:
        return mig_partitions.name_of(share.uuid, *mig_placement.split(share.mig))
    return resource_slices.device_name(share.uuid)


class Statuses:
    """Writes statuses from :meth:`run` until :meth:`stop`."""

    def __init__(self, api: apiserver.ApiServer, node: str, grant_manager: GrantManager) -> None:
        self._api = api
        self._node = node
        self._grant_manager = grant_manager
        self._changed = threading.Condition()
        self._wanted = True
        self._stopped = False
        self._said: dict[str, list[dict[str, Any]]] = {}  # by the claim's uid
        self._gone: set[str] = set()  # claims that were missing at the last poll

    def poll(self) -> None:
        """Request a comparison of all statuses soon."""
        with self._changed:
            self._wanted = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Let :meth:`run` end."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def run(self) -> None:
        """Write statuses after each change; look for deleted claims now and then."""
        due, pause, failed = 0.0, GONE_SECONDS, False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._wanted, pause)
                if self._changed.wait_for(lambda: self._stopped, CALM_SECONDS):
                    return
                self._wanted = False
            try:
                self._report()
                if time.monotonic() >= due:
                    self._collect()
                    due = time.monotonic() + GONE_SECONDS
                pause, failed = GONE_SECONDS, False
            except apiserver.ServerError as exc:
                if not failed:
                    log.warning("could not write the status of claims: %s", exc)
                pause, failed = AGAIN_SECONDS, True

    def _claims(self) -> dict[str, tuple[GrantClaim, list[Grant]]]:
        found: dict[str, tuple[GrantClaim, list[Grant]]] = {}
        for grant in self._grant_manager.known.values():
            if grant.claim is not None:
                found.setdefault(grant.claim.uid, (grant.claim, []))[1].append(grant)
        return found

    def _report(self) -> None:
        known = self._claims()
        self._said = {uid: devices for uid, devices in self._said.items() if uid in known}
        for uid, (claim, own) in known.items():
            devices = devices_of(own, self._node, self._grant_manager.devices)
            if self._said.get(uid) != devices:
                self._write(claim, devices)
                self._said[uid] = devices

    def _write(self, claim: GrantClaim, devices: Iterable[Mapping[str, Any]]) -> None:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        dated = [
            {
                **device,
                "conditions": [
                    {**each, "lastTransitionTime": now} for each in device["conditions"]
                ],
            }
            for device in devices
        ]
        body = {
            "apiVersion": resource_slices.GROUP,
            "kind": "ResourceClaim",
            "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
            "status": {"devices": dated},
        }
        query = {"fieldManager": f"pyvgpu-{self._node}"[:128], "force": "true"}
        try:
            self._api.call("PATCH", f"{_path(claim)}/status", query, body, APPLY)
        except apiserver.ServerError as exc:
            if exc.status in (0, 429) or exc.status >= 500:
                raise
            log.info("claim %s/%s: status not written: %s", claim.namespace, claim.name, exc)

    def _collect(self) -> None:
        """End the grants of claims missing in two polls, once no process uses them."""
        gone = {
            uid for uid, (claim, _) in self._claims().items() if not _is_there(self._api, claim)
        }
        over = gone & self._gone
        self._gone = gone
        if over:
            self._grant_manager.end(
                lambda grant: grant.claim is not None and grant.claim.uid in over, used=False
            )


def _is_there(api: apiserver.ApiServer, claim: GrantClaim) -> bool:
    try:
        found = api.call("GET", _path(claim))
    except apiserver.ServerError as exc:
        if exc.status == apiserver.NOT_FOUND:
            return False
        raise
    return bool(found["metadata"]["uid"] == claim.uid)


def _path(claim: GrantClaim) -> str:
    return f"{_CLAIMS}/namespaces/{claim.namespace}/resourceclaims/{claim.name}"


def allocated(claims: Iterable[Mapping[str, Any]], node: str) -> set[str]:
    """Return the names of *node*'s devices that are allocated to any of *claims*."""
    pools = (node, mig_partitions.pool_of(node))
    return {
        result["device"]
        for claim in claims
        for result in (
            ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
        ).get("results")
        or ()
        if result["driver"] == names.DRA_DRIVER and result["pool"] in pools
    }


def names_in_use(
    api: apiserver.ApiServer, node: str, grant_manager: GrantManager
) -> set[str] | None:
    """Return the names of *node*'s devices that any claim has; None if claims cannot be read."""
    try:
        there = api.call("GET", f"{_CLAIMS}/resourceclaims")["items"]
    except apiserver.ServerError as exc:
        log.warning("could not list the claims that hold devices: %s", exc)
        return None
    return allocated(there, node) | {
        result.device
        for grant in grant_manager.known.values()
        if grant.claim is not None
        for result in grant.claim.results
    }


def held_by_claims(
    api: apiserver.ApiServer, node: str, grant_manager: GrantManager
) -> set[str] | None:
    """Return the UUIDs of devices that any claim holds; None if the API server cannot be read."""
    in_use = names_in_use(api, node, grant_manager)
    if in_use is None:
        return None
    devices = grant_manager.devices
    return {uuid for name in in_use if (uuid := mig_partitions.uuid_of(name, devices))} | {
        share.uuid
        for grant in grant_manager.known.values()
        if grant.claim is not None
        for share in grant.shares
    }


def held_by_counters(grant_manager: GrantManager) -> set[str]:
    """Return the UUIDs of devices that the device plugin has allocated.

    All devices while any grant is not matched to its container yet.
    """
    plain = [grant for grant in grant_manager.known.values() if grant.claim is None]
    if any(grant.owner is None for grant in plain):
        return {device.uuid for device in grant_manager.devices}
    return {share.uuid for grant in plain for share in grant.shares}
