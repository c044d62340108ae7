"""AdmissionReview v1: what the API server asks, and the answer that it takes.

A mutation says what is to be changed in an object, or why it is refused; a server has one at each
of its paths. Whatever a mutation fails at, the object is admitted as it is: nobody's pod is
refused for a bug of ours. Where that would let something through that must not be, it is
``closed``: then whoever asked is told to try again.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.controller import objects

if TYPE_CHECKING:
    from pyvgpu.controller.objects import Object, Operation

log = logging.getLogger(__name__)

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
MOST_WARNING = 250  # characters; the API server cuts what is longer than 256
MOST_WARNINGS = 12
FORBIDDEN, FAILED = 403, 500
NODE_USER, NODE_GROUP = "system:node:", "system:nodes"
_REASONS = {FORBIDDEN: "Forbidden", FAILED: "InternalError"}


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What somebody asks the API server for."""

    uid: str  # of the request
    operation: str  # CREATE, UPDATE...
    resource: str  # pods; pods/status is another
    namespace: str
    thing: Object  # as it would be
    former: Object = dataclasses.field(default_factory=dict)  # as it is, if it is there
    user: str = ""  # who asks
    groups: tuple[str, ...] = ()  # that they are in
    dry_run: bool = False  # nothing is to come of it

    @property
    def by_a_node(self) -> bool:
        """Whether a kubelet asks, which only ever creates the mirrors of its own static pods."""
        return self.user.startswith(NODE_USER) and NODE_GROUP in self.groups


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What is to be changed, and what to tell whoever asked."""

    operations: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    refusal: str = ""  # why it is not admitted; empty: it is
    code: int = FORBIDDEN  # what a refusal is, in HTTP
    failed: bool = False  # we failed: it is admitted as it is, or refused for now


Mutation = Callable[[Request], Answer]


def read(content: bytes) -> Request:
    """Read what the API server sends; DataError for anything else."""
    try:
        review: Any = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise errors.DataError(f"the body must be JSON: {exc}") from exc
    if not isinstance(review, Mapping) or (
        (review.get("apiVersion"), review.get("kind")) != (API_VERSION, KIND)
    ):
        raise errors.DataError(f"the body must be an {KIND} of {API_VERSION}")
    request = objects.section(review, "request")
    uid, thing, former = request.get("uid"), request.get("object"), request.get("oldObject")
    if not isinstance(uid, str) or not uid:
        raise errors.DataError("request.uid must be a string")
    resource = objects.section(request, "resource")
    kind = "/".join(str(it) for it in (resource.get("resource"), request.get("subResource")) if it)
    group = resource.get("group")
    who = objects.section(request, "userInfo")
    return Request(
        uid=uid,
        operation=str(request.get("operation") or ""),
        resource=f"{kind}.{group}" if group else kind,
        namespace=str(request.get("namespace") or ""),
        thing=thing if isinstance(thing, Mapping) else {},
        former=former if isinstance(former, Mapping) else {},
        user=str(who.get("username") or ""),
        groups=objects.words(who, "groups"),
        dry_run=request.get("dryRun") is True,
    )


def ask(mutation: Mutation, request: Request) -> Answer:
    """Return what *mutation* says, or that nothing is changed where it fails."""
    try:
        return mutation(request)
    except Exception:
        log.exception("failed on %s in namespace %s", request.resource, request.namespace)
        told = "pyvgpu failed on this object and left it as it is; its log says why"
        return Answer(warnings=(told,), failed=True)


def closed(mutation: Mutation) -> Mutation:
    """Return *mutation*, where it fails refusing the object for now."""

    def strict(request: Request) -> Answer:
        try:
            return mutation(request)
        except Exception:
            log.exception("failed on %s in namespace %s", request.resource, request.namespace)
            told = "pyvgpu failed on this object, so that it is refused for now; its log says why"
            return Answer(refusal=told, code=FAILED, failed=True)

    return strict


def write(request: Request, answer: Answer) -> bytes:
    """Return what the API server reads."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": not answer.refusal}
    if answer.refusal:
        reason = _REASONS[answer.code]
        response["status"] = {"code": answer.code, "reason": reason, "message": answer.refusal}
    elif answer.operations:
        patch = json.dumps(answer.operations).encode()
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    if answer.warnings:
        response["warnings"] = [_short(it) for it in answer.warnings[:MOST_WARNINGS]]
    return json.dumps({"apiVersion": API_VERSION, "kind": KIND, "response": response}).encode()


def _short(warning: str) -> str:
    return warning if len(warning) <= MOST_WARNING else f"{warning[: MOST_WARNING - 3]}..."
