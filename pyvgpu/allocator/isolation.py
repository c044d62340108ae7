"""The isolation that a pod requests by its annotation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import errors, names, quota

if TYPE_CHECKING:
    from collections.abc import Mapping


def read(annotations: Mapping[str, str]) -> quota.Isolation:
    """Return the isolation of a pod's *annotations*, by default QUOTA; UsageError.

    MPS is refused: agents run no MPS daemons, and a pod must not run without what it asks for.
    """
    text = annotations.get(names.ISOLATION_ANNOTATION)
    if text is None:
        return quota.Isolation.QUOTA
    wanted = quota.Isolation.parse(text, names.ISOLATION_ANNOTATION)
    if wanted is quota.Isolation.MPS:
        raise errors.UsageError(
            f"{names.ISOLATION_ANNOTATION} mps: must be quota or hardware in a cluster, such as "
            "quota; MPS is for `pyvgpu run --sharing mps`"
        )
    return wanted
