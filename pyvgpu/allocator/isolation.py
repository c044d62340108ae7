"""The isolation that a pod requests by its annotation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import names, quota

if TYPE_CHECKING:
    from collections.abc import Mapping


def read(annotations: Mapping[str, str]) -> quota.Isolation:
    """Return the isolation of a pod's *annotations*, by default QUOTA; UsageError."""
    text = annotations.get(names.ISOLATION_ANNOTATION)
    if text is None:
        return quota.Isolation.QUOTA
    return quota.Isolation.parse(text, names.ISOLATION_ANNOTATION)
