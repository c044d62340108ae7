"""Validation of new claims against the total of their namespace."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.controller.webhook import review
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.kube.objects import Object

    # (namespace, claim, uid, dry run) -> why the claim may not be created; empty if it may.
    WhyNot = Callable[[str, Object, str, bool], str]

log = logging.getLogger(__name__)

_CREATED = ("resourceclaims.resource.k8s.io", "CREATE")


def validation(why_not: WhyNot) -> review.Mutation:
    """Return the validation that refuses a claim for the reason that *why_not* returns."""

    def evaluate(request: review.AdmissionRequest) -> review.Review:
        if (request.resource, request.operation) != _CREATED:
            return review.Review()
        uid = str(objects.section(request.thing, "metadata").get("uid") or request.uid)
        try:
            why = why_not(request.namespace, request.thing, uid, request.dry_run)
        except errors.UsageError as exc:
            return review.Review(refusal=str(exc))
        except errors.UnavailableError as exc:
            log.warning("refused a claim in namespace %s for now: %s", request.namespace, exc)
            return review.Review(refusal=str(exc), code=review.FAILED, failed=True)
        return review.Review(refusal=why)

    return review.closed(evaluate)
