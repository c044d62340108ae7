"""Read the device annotation that the node agent publishes on its Node; pure."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.allocator import annotations as notes
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from pyvgpu.kube.objects import Object


@dataclasses.dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node publishes of itself."""

    digest: bytes  # of the text
    published: notes.Published | None
    trouble: str = ""  # why the text is invalid


NOTHING = NodeReport(b"", None)


def read(node: Object, before: NodeReport | None = None) -> NodeReport:
    """Return what a node publishes; *before* is returned if the text has not changed since."""
    noted = objects.section(node, "metadata", "annotations")
    text = str(noted.get(names.NODE_DEVICES_ANNOTATION) or "")
    if not text:
        return NOTHING
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    if before is not None and before.digest == digest:
        return before
    try:
        return NodeReport(digest, notes.read_node(text))
    except errors.DataError as exc:
        return NodeReport(digest, None, str(exc))
