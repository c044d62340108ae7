"""Annotations that record a component's decisions, which users may not write.

The webhook removes them from every new pod. Later changes are refused by the API server through
the ValidatingAdmissionPolicy in the chart, which lists the same names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from pyvgpu.controller.webhook import drafts
    from pyvgpu.kube.objects import Object

KEYS = (
    names.DEVICES_ANNOTATION,
    names.STOP_ANNOTATION,
    names.SWAPPED_ANNOTATION,
    names.GAIA_ASSIGNED_ANNOTATION,
)
PREFIX = names.GAIA_PREDICATE


def found(pod: Object) -> tuple[str, ...]:
    """Return those annotations of a pod."""
    noted = objects.section(pod, "metadata", "annotations")
    return tuple(key for key in noted if key in KEYS or str(key).startswith(PREFIX))


def strip(draft: drafts.Draft) -> tuple[str, ...]:
    """Remove them; return the removed keys."""
    forged = found(draft.document)
    for key in forged:
        draft.remove("metadata", "annotations", key)
    return forged
