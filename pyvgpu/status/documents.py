"""JSON documents of the status page, shared by the node agent and the cluster's page.

Usage is None if it is unknown.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import pyvgpu

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_ALLOCATED = ("allocated", "memoryBytes", "allocatedBytes")
_USED = ("used", "usedBytes")


def when(seconds: float) -> str:
    """Format a time, in seconds since the epoch, for the page; an empty text for none."""
    if not seconds:
        return ""
    moment = datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def problem(subject: str, text: str) -> dict[str, str]:
    """Return an entry of the list of problems."""
    return {"object": subject, "text": text}


def node(
    name: str,
    at: float,
    seconds: float,
    devices: Sequence[Mapping[str, Any]],
    *,
    problems: Iterable[Mapping[str, str]],
    events: Iterable[Mapping[str, str]] = (),
    unbound: int = 0,
) -> dict[str, Any]:
    """Return the document of a node, sampled *at* a time, and updated every *seconds*.

    *unbound* is the number of grants that are not matched to a pod yet.
    """
    return {
        "kind": "node",
        "node": name,
        "version": pyvgpu.__version__,
        "at": when(at),
        "seconds": seconds,
        "totals": totals(devices),
        "devices": list(devices),
        "unbound": unbound,
        "problems": list(problems),
        "events": list(events),
    }


def totals(devices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums over *devices*, in the format of a document."""
    sums: dict[str, Any] = {
        "devices": len(devices),
        "unhealthy": sum(device["state"] == "unhealthy" for device in devices),
        "cordoned": sum(device["state"] == "cordoned" for device in devices),
        "containers": sum(len(device["containers"]) for device in devices),
    }
    for name in (*_ALLOCATED, *_USED):
        values = [device[name] for device in devices]
        sums[name] = None if None in values else round(sum(values), 4)
    return sums
