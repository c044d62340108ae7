"""Enforces the totals of namespaces with a ledger of admitted claims that all replicas share.

A replica reads the ledger before it lists the claims, and writes it with the resourceVersion that
it read. So of two replicas that admit claims at once one starts over, and a claim created
meanwhile is in the ledger or in the list.

Claims that arrive while a batch is evaluated form the next batch: however many claims a namespace
gets at once, a batch costs one list of its claims and one write of its ledger.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.controller.claims import claim_totals, templates
from pyvgpu.kube import apiserver, batcher, objects

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyvgpu.kube.objects import Object

LEDGER = "claims-of-"  # plus the namespace's name: a ConfigMap in our own namespace
ATTEMPTS = 8  # to write the ledger, on conflicts
TURN_SECONDS = 5.0  # for which a claim waits for the batches before its own
SECONDS = 3.0  # timeout of a request; the API server waits for our admission review meanwhile


@dataclasses.dataclass(frozen=True, slots=True)
class _Question:
    """A claim to be admitted; its answer is why it may not be created, empty if it may."""

    namespace: str
    asked: claim_totals.Amount
    uid: str
    dry_run: bool
    answer: concurrent.futures.Future[str] = dataclasses.field(
        default_factory=concurrent.futures.Future
    )


class ClaimAdmitter:
    """Admits claims within the totals of their namespaces."""

    def __init__(self, api: apiserver.ApiServer, namespace: str) -> None:
        self._api = api
        self._folder = f"/api/v1/namespaces/{namespace}/configmaps"
        self._batches = batcher.Gathered(self._evaluate, _in_a_thread)

    def why_not(self, namespace: str, claim: Object, uid: str, dry_run: bool) -> str:
        """Return why *claim* may not be created; empty if it may, and then the ledger has it.

        UsageError for an invalid claim or total; UnavailableError if too many claims are created
        at once, or the API server does not answer.
        """
        asked = claim_totals.asked_by(claim)
        if asked == claim_totals.Amount():
            return ""
        question = _Question(namespace, asked, uid, dry_run)
        self._batches.add(question)
        try:
            return question.answer.result(TURN_SECONDS)
        except concurrent.futures.TimeoutError:
            if not question.answer.cancel():  # its batch is being evaluated
                return question.answer.result()
        raise errors.UnavailableError(
            f"too many claims at once: this one of namespace {namespace} could not be counted"
        )

    def _evaluate(self, questions: Sequence[_Question]) -> None:
        """Answer *questions*, those of one namespace together."""
        by_namespace: dict[str, list[_Question]] = {}
        for question in questions:
            by_namespace.setdefault(question.namespace, []).append(question)
        for namespace, together in by_namespace.items():
            live = [one for one in together if one.answer.set_running_or_notify_cancel()]
            try:
                answers = self._admit(namespace, live) if live else []
            except Exception as exc:
                for one in live:
                    one.answer.set_exception(exc)
            else:
                for one, answer in zip(live, answers, strict=True):
                    one.answer.set_result(answer)

    def _admit(self, namespace: str, questions: Sequence[_Question]) -> list[str]:
        home = self._call("GET", f"/api/v1/namespaces/{namespace}")
        total = claim_totals.total_of(home)
        if total == claim_totals.Total():
            return [""] * len(questions)
        for _ in range(ATTEMPTS):
            ledger = self._ledger(namespace)
            known = claim_totals.read(ledger)
            there = self._claims(namespace)
            now = time.time()
            left = claim_totals.left(known, there, now)
            answers = []
            for question in questions:
                # A claim that is asked about again replaces its own reservation.
                others = {uid: kept for uid, kept in left.items() if uid != question.uid}
                why = claim_totals.why_not(total, question.asked, there.values(), others.values())
                answers.append(why)
                if not question.dry_run:
                    admitted = {question.uid: claim_totals.ReservedClaim(question.asked, now)}
                    left = others if why else others | admitted
            only_evaluated = all(question.dry_run for question in questions)
            if only_evaluated or left == known or self._write(home, ledger, left):
                return answers
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

    def _write(
        self, home: Object, ledger: Object, left: dict[str, claim_totals.ReservedClaim]
    ) -> bool:
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


def _in_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
