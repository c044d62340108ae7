"""Enforces the totals of namespaces with a ledger of admitted claims that all replicas share.

A replica reads the ledger before it lists the claims, and writes it with the resourceVersion that
it read. So of two replicas that admit claims at once one starts over, and a claim created
meanwhile is in the ledger or in the list.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.controller.claims import claim_totals, templates
from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    from pyvgpu.kube.objects import Object

LEDGER = "claims-of-"  # plus the namespace's name: a ConfigMap in our own namespace
ATTEMPTS = 8  # to write the ledger, on conflicts
TURN_SECONDS = 5.0  # for which a claim waits for those before it
SECONDS = 3.0  # timeout of a request; the API server waits for our admission review meanwhile


class ClaimAdmitter:
    """Admits claims within the totals of their namespaces."""

    def __init__(self, api: apiserver.ApiServer, namespace: str) -> None:
        self._api = api
        self._folder = f"/api/v1/namespaces/{namespace}/configmaps"
        self._turn = threading.Lock()  # so that only other replicas' writes conflict

    def why_not(self, namespace: str, claim: Object, uid: str, dry_run: bool) -> str:
        """Return why *claim* may not be created; empty if it may, and then the ledger has it.

        UsageError for an invalid claim or total; UnavailableError if too many claims are created
        at once, or the API server does not answer.
        """
        home = self._call("GET", f"/api/v1/namespaces/{namespace}")
        total = claim_totals.total_of(home)
        asked = claim_totals.asked_by(claim)
        if total == claim_totals.Total() or asked == claim_totals.Amount():
            return ""
        if not self._turn.acquire(timeout=TURN_SECONDS):
            raise errors.UnavailableError(
                f"too many claims at once: this one of namespace {namespace} could not be counted"
            )
        try:
            return self._admit(home, asked, uid, dry_run=dry_run)
        finally:
            self._turn.release()

    def _admit(self, home: Object, asked: claim_totals.Amount, uid: str, *, dry_run: bool) -> str:
        namespace, total = home["metadata"]["name"], claim_totals.total_of(home)
        for _ in range(ATTEMPTS):
            ledger = self._ledger(namespace)
            known = claim_totals.read(ledger)
            there = self._claims(namespace)
            left = claim_totals.left(known, (uid, *there), time.time())
            why = claim_totals.why_not(total, asked, there.values(), left.values())
            if dry_run:
                return why
            if why:
                if left != known:  # drop the reservations of claims that exist by now
                    self._write(home, ledger, left)
                return why
            left[uid] = claim_totals.Reserved(asked, time.time())
            if self._write(home, ledger, left):
                return ""
        raise errors.UnavailableError(
            f"too many claims of namespace {namespace} at once: this one could not be added "
            f"to the total"
        )

    def _claims(self, namespace: str) -> dict[str, claim_totals.Amount]:
        path = f"{templates.FOLDER}/namespaces/{namespace}/resourceclaims"
        found, _ = self._api.items(path, {})
        return {str(claim["metadata"].get("uid")): claim_totals.held_by(claim) for claim in found}

    def _ledger(self, namespace: str) -> Object:
        try:
            return self._call("GET", f"{self._folder}/{LEDGER}{namespace}")
        except apiserver.ServerError as exc:
            if exc.status != 404:
                raise
            return {}

    def _write(self, home: Object, ledger: Object, left: dict[str, claim_totals.Reserved]) -> bool:
        """Write *left* to the ledger of namespace *home*; return False if *ledger* was outdated.

        The namespace owns it, so that it is garbage collected with the namespace.
        """
        name = f"{LEDGER}{home['metadata']['name']}"
        data = {uid: reserved.text for uid, reserved in left.items()}
        owned = {"ownerReferences": [objects.owner("Namespace", home)]}
        try:
            if ledger:
                body = {**ledger, "metadata": {**ledger["metadata"], **owned}, "data": data}
                self._call("PUT", f"{self._folder}/{name}", body)
            else:
                new = {"name": name, "labels": objects.OURS, **owned}
                self._call("POST", self._folder, {"metadata": new, "data": data})
        except apiserver.ServerError as exc:
            if not exc.outdated:
                raise
            return False
        return True

    def _call(self, method: str, path: str, body: object = None) -> Object:
        return self._api.call(method, path, None, body, seconds=SECONDS)
