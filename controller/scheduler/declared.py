"""What a node says of itself: the annotation of its agent, as it stands on the Node; pure."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.allocator import annotations as notes
from pyvgpu.controller import objects

if TYPE_CHECKING:
    from pyvgpu.controller.objects import Object


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """What a node says of itself."""

    digest: bytes  # of the text
    published: notes.Published | None
    trouble: str = ""  # why the text cannot be believed


NOTHING = Told(b"", None)


def read(node: Object, before: Told | None = None) -> Told:
    """Return what a node says; *before* is what it said, and is kept if that is the same."""
    noted = objects.section(node, "metadata", "annotations")
    text = str(noted.get(names.NODE_DEVICES_ANNOTATION) or "")
    if not text:
        return NOTHING
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    if before is not None and before.digest == digest:
        return before
    try:
        return Told(digest, notes.read_node(text))
    except errors.DataError as exc:
        return Told(digest, None, str(exc))
