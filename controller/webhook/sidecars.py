"""The mutation of new pods with marked sidecars."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu.controller.webhook import review, transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.controller.sidecar.nodes import Release


def mutation(
    admission: transform.Admission, oldest_kubelet: Callable[[], Release | None]
) -> review.Mutation:
    """Return the mutation; it calls *oldest_kubelet* for each request."""

    def mutate(request: review.Request) -> review.Review:
        if (request.resource, request.operation) != ("pods", "CREATE"):
            return review.Review()
        now = dataclasses.replace(admission, oldest_kubelet=oldest_kubelet())
        done = transform.transform(request.thing, request.namespace, now)
        return review.Review(done.operations, done.warnings)

    return mutate
