"""Annotations of pods that say what a component has decided: nobody else may write them.

When a pod is created they are taken away, whoever creates it. Later changes are refused by the
API server itself, by the policy in the chart, which has the same names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller import objects

if TYPE_CHECKING:
    from pyvgpu.controller.objects import Object
    from pyvgpu.controller.webhook import drafts

KEYS = (
    names.DEVICES_ANNOTATION,
    names.STOP_ANNOTATION,
    names.SWAPPED_ANNOTATION,
    names.GAIA_ASSIGNED_ANNOTATION,
)
PREFIX = names.GAIA_PREDICATE


def found(pod: Object) -> tuple[str, ...]:
    """Return which of them a pod has."""
    noted = objects.section(pod, "metadata", "annotations")
    return tuple(key for key in noted if key in KEYS or str(key).startswith(PREFIX))


def strip(draft: drafts.Draft) -> tuple[str, ...]:
    """Take them away; return which there were."""
    forged = found(draft.document)
    for key in forged:
        draft.remove("metadata", "annotations", key)
    return forged
