"""Keeps the totals of namespaces: a ledger of what was admitted, which all of us write.

The ledger is read before the claims are, and written as it was read or not at all. So of two who
admit claims at once one begins anew, and a claim that comes meanwhile is in one of the two.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.controller import objects
from pyvgpu.controller.claims import templates, totals
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from pyvgpu.controller.objects import Object

LEDGER = "claims-of-"  # and the name of the namespace: a ConfigMap in ours
ATTEMPTS = 8  # to write it, where others do
SECONDS = 3.0  # for each answer of the API server, which waits for us meanwhile


class Keeper:
    """Admits claims by the totals of their namespaces."""

    def __init__(self, api: apiserver.ApiServer, namespace: str) -> None:
        self._api = api
        self._folder = f"/api/v1/namespaces/{namespace}/configmaps"

    def why_not(self, namespace: str, claim: Object, uid: str, dry_run: bool) -> str:
        """Return why a *claim* may not be created, empty if it may: then it is in the ledger.

        UsageError for a claim or a total that means nothing; UnavailableError where too many ask
        at once, or the API server does not answer.
        """
        total = totals.total_of(self._call("GET", f"/api/v1/namespaces/{namespace}"))
        asked = totals.asked_by(claim)
        if total == totals.Total() or asked == totals.Amount():
            return ""
        for _ in range(ATTEMPTS):
            ledger = self._ledger(namespace)
            known = totals.read(ledger)
            there = self._claims(namespace)
            left = totals.left(known, (uid, *there), time.time())
            why = totals.why_not(total, asked, there.values(), left.values())
            if dry_run:
                return why
            if why:
                if left != known:  # those that are there count as what they are from now on
                    self._write(namespace, ledger, left)
                return why
            left[uid] = totals.Reserved(asked, time.time())
            if self._write(namespace, ledger, left):
                return ""
        raise errors.UnavailableError(
            f"too many claims of namespace {namespace} at once: this one could not be counted"
        )

    def _claims(self, namespace: str) -> dict[str, totals.Amount]:
        path = f"{templates.FOLDER}/namespaces/{namespace}/resourceclaims"
        found, _ = self._api.items(path, {})
        return {str(it["metadata"].get("uid")): totals.held_by(it) for it in found}

    def _ledger(self, namespace: str) -> Object:
        try:
            return self._call("GET", f"{self._folder}/{LEDGER}{namespace}")
        except apiserver.ServerError as exc:
            if exc.status != 404:
                raise
            return {}

    def _write(self, namespace: str, ledger: Object, left: dict[str, totals.Reserved]) -> bool:
        """Write a ledger as it shall be; return whether it was what we had read."""
        name = f"{LEDGER}{namespace}"
        data = {uid: it.text for uid, it in left.items()}
        try:
            if ledger:
                self._call("PUT", f"{self._folder}/{name}", {**ledger, "data": data})
            else:
                new = {"name": name, "labels": objects.OURS}
                self._call("POST", self._folder, {"metadata": new, "data": data})
        except apiserver.ServerError as exc:
            if not exc.outdated:
                raise
            return False
        return True

    def _call(self, method: str, path: str, body: object = None) -> Object:
        return self._api.call(method, path, None, body, seconds=SECONDS)
