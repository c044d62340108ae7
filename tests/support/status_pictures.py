"""Documents and sizes of the status page's pictures in docs/, from fixed numbers."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import status_cluster
import status_node

from pyvgpu.status import site

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
OF = "pyvgpu-of"  # metadata key of a picture's source digest
NOW = "2026-11-22T10:32:00Z"
VERSION = "0.1.0"
DESKTOP, PHONE = (1280, 800), (390, 844)
# By name: the document, the colour scheme, and the size of the window.
PICTURES: Mapping[str, tuple[str, str, tuple[int, int]]] = {
    "status-node": ("node", "light", (1280, 1120)),
    "status-node-dark": ("node", "dark", (1280, 1120)),
    "status-cluster": ("cluster", "light", (1280, 1250)),
    "status-phone": ("node", "dark", (390, 1180)),
}


@functools.cache
def node() -> dict[str, Any]:
    """Return the document of the node."""
    return {**status_node.Node().document(), "version": VERSION}


@functools.cache
def cluster() -> dict[str, Any]:
    """Return the document of the cluster."""
    api = status_cluster.StatusApi()
    status_cluster.fill(api)
    with status_cluster.running(api) as shown:
        found = shown.document({})
    return {
        **found,
        "version": VERSION,
        "lines": status_cluster.lines(),
        "day": status_cluster.day(),
        "seconds": 5.0,
    }


def document(name: str) -> dict[str, Any]:
    """Return the document that a picture shows."""
    return node() if name == "node" else cluster()


def digest(name: str) -> str:
    """Return a digest of a picture's sources: the page's files, its document and its size."""
    of, colours, size = PICTURES[name]
    made = hashlib.blake2b(digest_size=16)
    for file, _ in site.FILES.values():
        made.update(site.content(file))
    made.update(json.dumps([document(of), colours, size], sort_keys=True).encode())
    return made.hexdigest()
