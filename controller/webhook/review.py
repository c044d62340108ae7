"""AdmissionReview v1: parsing of requests and encoding of answers.

A mutation returns the changes to an object, or why it is refused; a server has one at each path.
If a mutation fails, the object is admitted unchanged: a bug of ours must not block pods. A
mutation that must not fail open is wrapped by ``closed``: then the request is refused, and the
client may retry.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from pyvgpu.kube.objects import Object, Operation

log = logging.getLogger(__name__)

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
MOST_WARNING = 250  # characters; the API server truncates at 256
MOST_WARNINGS = 12
FORBIDDEN, FAILED = 403, 500
NODE_USER, NODE_GROUP = "system:node:", "system:nodes"
_REASONS = {FORBIDDEN: "Forbidden", FAILED: "InternalError"}


@dataclasses.dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A request to the API server, as the webhook receives it."""

    uid: str  # of the request
    operation: str  # CREATE, UPDATE...
    resource: str  # such as pods or pods/status
    namespace: str
    thing: Object  # the new object
    former: Object = dataclasses.field(default_factory=dict)  # the old object, if any
    user: str = ""  # username of the requester
    groups: tuple[str, ...] = ()  # the requester's groups
    dry_run: bool = False  # the webhook must have no side effects

    @property
    def by_a_node(self) -> bool:
        """Whether a kubelet sent it, which only ever creates mirrors of its own static pods."""
        return self.user.startswith(NODE_USER) and NODE_GROUP in self.groups


@dataclasses.dataclass(frozen=True, slots=True)
class Review:
    """The changes to the object, and the messages to the client."""

    operations: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    refusal: str = ""  # why it is not admitted; empty: admitted
    code: int = FORBIDDEN  # HTTP status of a refusal
    failed: bool = False  # an error of ours: admitted unchanged, or refused for now


Mutation = Callable[[AdmissionRequest], Review]


def read(content: bytes) -> AdmissionRequest:
    """Parse an AdmissionReview; DataError if it is not one."""
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
    parts = (resource.get("resource"), request.get("subResource"))
    kind = "/".join(str(part) for part in parts if part)
    group = resource.get("group")
    user = objects.section(request, "userInfo")
    return AdmissionRequest(
        uid=uid,
        operation=str(request.get("operation") or ""),
        resource=f"{kind}.{group}" if group else kind,
        namespace=str(request.get("namespace") or ""),
        thing=thing if isinstance(thing, Mapping) else {},
        former=former if isinstance(former, Mapping) else {},
        user=str(user.get("username") or ""),
        groups=objects.words(user, "groups"),
        dry_run=request.get("dryRun") is True,
    )


def ask(mutation: Mutation, request: AdmissionRequest) -> Review:
    """Return the answer of *mutation*, or an unchanged object if it fails."""
    try:
        return mutation(request)
    except Exception:
        log.exception("failed on %s in namespace %s", request.resource, request.namespace)
        message = (
            "pyvgpu could not process this object and left it unchanged; see the webhook's log"
        )
        return Review(warnings=(message,), failed=True)


def closed(mutation: Mutation) -> Mutation:
    """Return *mutation* such that it fails closed: an error refuses the object for now."""

    def strict(request: AdmissionRequest) -> Review:
        try:
            return mutation(request)
        except Exception:
            log.exception("failed on %s in namespace %s", request.resource, request.namespace)
            message = (
                "pyvgpu could not process this object and refuses it for now; see the "
                "webhook's log"
            )
            return Review(refusal=message, code=FAILED, failed=True)

    return strict


def write(request: AdmissionRequest, answer: Review) -> bytes:
    """Encode the response."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": not answer.refusal}
    if answer.refusal:
        reason = _REASONS[answer.code]
        response["status"] = {"code": answer.code, "reason": reason, "message": answer.refusal}
    elif answer.operations:
        patch = json.dumps(answer.operations).encode()
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    if answer.warnings:
        response["warnings"] = [_short(warning) for warning in answer.warnings[:MOST_WARNINGS]]
    return json.dumps({"apiVersion": API_VERSION, "kind": KIND, "response": response}).encode()


def _short(warning: str) -> str:
    return warning if len(warning) <= MOST_WARNING else f"{warning[: MOST_WARNING - 3]}..."
