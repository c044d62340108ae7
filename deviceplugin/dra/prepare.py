"""Prepare and unprepare claims for kubelet: turn allocations into grants.

A claim that was prepared before is answered from the checkpoint, even if kubelet or the agent was
killed meanwhile. Temporary failures are retried here for a while before kubelet sees one: kubelet
backs off longer after each.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names
from pyvgpu.deviceplugin.dra import claim_grants, mig_partitions
from pyvgpu.deviceplugin.grants.placement import RefusedError
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyvgpu.allocator import datatypes
    from pyvgpu.deviceplugin.dra.claim_grants import Named, Prepared
    from pyvgpu.deviceplugin.grants import Grant
    from pyvgpu.deviceplugin.grants.manager import GrantManager

log = logging.getLogger(__name__)

RETRY_SECONDS = 30.0  # kubelet waits for 45
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class PreparerDependencies:
    """Dependencies of the preparer besides the grant manager."""

    node: str
    read: Callable[[str], dict[str, Any]]  # an object of the API server, by its path
    gives: Callable[[str], bool]  # whether a device, by its UUID, is allocated through DRA
    admit: Callable[[str, Sequence[str]], str]  # write an admin claim's CDI device
    dismiss: Callable[[str], None]  # remove it, by the claim's uid
    prepared: Callable[[Named], None] = lambda _: None  # called for each prepared claim
    retry_seconds: float = RETRY_SECONDS


class Preparer:
    """Prepares and unprepares claims; thread-safe."""

    def __init__(self, grant_manager: GrantManager, means: PreparerDependencies) -> None:
        self._grant_manager = grant_manager
        self._means = means
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stop retrying."""
        self._stopped.set()

    def prepare(self, named: Sequence[Named]) -> dict[str, Sequence[Prepared] | str]:
        """Return the devices of each claim of a pod, or the error, by uid."""
        together = tuple(claim.name for claim in named)
        end = time.monotonic() + self._means.retry_seconds
        found: dict[str, Sequence[Prepared] | str] = {}
        for one in named:
            try:
                found[one.uid] = self._patiently(one, together, end)
            except errors.PyVgpuError as exc:
                log.warning("refused claim %s/%s: %s", one.namespace, one.name, exc)
                found[one.uid] = f"pyvgpu: {exc}"
        return found

    def unprepare(self, named: Sequence[Named]) -> dict[str, str]:
        """End the grants of claims; return by uid the error, or '' on success."""
        found = {}
        for one in named:
            try:
                self._grant_manager.end(lambda grant, one=one: _is_of(grant, one))  # type: ignore[misc]
                self._means.dismiss(one.uid)
                found[one.uid] = ""
            except errors.PyVgpuError as exc:
                log.warning("could not end claim %s/%s: %s", one.namespace, one.name, exc)
                found[one.uid] = f"pyvgpu: {exc}"
        return found

    def _patiently(self, one: Named, together: tuple[str, ...], end: float) -> Sequence[Prepared]:
        pause = _FIRST_PAUSE
        while True:
            try:
                return self._prepare(one, together)
            except errors.UnavailableError as exc:
                passes = not (isinstance(exc, RefusedError) and exc.final)
                if not passes or time.monotonic() + pause > end or self._stopped.wait(pause):
                    raise
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _prepare(self, one: Named, together: tuple[str, ...]) -> Sequence[Prepared]:
        if any(_is_of(live, one) for live in self._grant_manager.known.values()):
            claim, used = None, frozenset[str]()
        else:
            claim = claim_grants.read(
                self._read("resourceclaims", one, _CLAIMS), one, self._means.node
            )
            used = self._used(claim, together)
            if admin := self._admitted(claim, used):
                return admin
        own: list[Grant] = []

        def choose(node: datatypes.NodeDevices, known: Mapping[str, Grant]) -> Sequence[Grant]:
            own[:] = [grant for grant in known.values() if _is_of(grant, one)]
            if not own and claim is not None:  # else a concurrent call has prepared it
                means = self._means
                around = claim_grants.ClaimContext(means.node, node, means.gives, time.time())
                own[:] = claim_grants.grants_of(claim, used, around)
            return own

        self._grant_manager.give(choose)
        if not own:
            raise RefusedError(
                f"claim {one.namespace}/{one.name}: has ended meanwhile", final=False
            )
        self._means.prepared(one)
        return [prepared for grant in own for prepared in self._answer(grant)]

    def _answer(self, grant: Grant) -> list[Prepared]:
        """Return the devices of a grant; the first of each request carries its CDI device."""
        found, said = [], set()
        node = self._means.node
        pool = mig_partitions.pool_of(node) if grant.mig else node
        for result in grant.claim.results if grant.claim else ():
            cdi = () if result.request in said else (f"{names.GRANT_KIND}={grant.id}",)
            said.add(result.request)
            found.append(
                claim_grants.Prepared(result.request, pool, result.device, cdi, result.share_id)
            )
        return found

    def _used(self, claim: claim_grants.Allocated, together: tuple[str, ...]) -> frozenset[str]:
        """Return the requests that containers name of a claim; read only where it matters."""
        if len(together) == 1 and len(claim.requests) < 2:
            return frozenset()
        named = claim.named
        if not claim.pod:
            return frozenset()
        pod = self._read(
            "pods", claim_grants.Named(named.namespace, claim.pod_uid, claim.pod), _PODS
        )
        return claim_grants.uses(pod, together)[named.name]

    def _admitted(self, claim: claim_grants.Allocated, used: frozenset[str]) -> Sequence[Prepared]:
        """Return the devices of a claim with adminAccess; nothing for any other claim."""
        if claim_grants.parts(claim, used):
            return ()
        devices = self._grant_manager.devices
        uuids = (mig_partitions.uuid_of(piece.result.device, devices) for piece in claim.pieces)
        wanted = [uuid for uuid in uuids if uuid]
        if not wanted:
            raise RefusedError(
                f"claim {claim.named.namespace}/{claim.named.name}: has no device of this node",
                final=False,
            )
        cdi = self._means.admit(claim.named.uid, tuple(dict.fromkeys(wanted)))
        return [
            claim_grants.Prepared(
                piece.result.request,
                piece.pool,
                piece.result.device,
                (cdi,),
                piece.result.share_id,
            )
            for piece in claim.pieces
        ]

    def _read(self, kind: str, one: Named, group: str) -> dict[str, Any]:
        path = f"{group}/namespaces/{one.namespace}/{kind}/{one.name}"
        try:
            return self._means.read(path)
        except apiserver.ServerError as exc:
            if exc.status == apiserver.NOT_FOUND:
                text = f"claim {one.namespace}/{one.name}: does not exist any more"
                raise RefusedError(text, final=True) from exc
            raise


_CLAIMS = "/apis/resource.k8s.io/v1"
_PODS = "/api/v1"


def _is_of(grant: Grant, one: Named) -> bool:
    return grant.claim is not None and grant.claim.uid == one.uid
