"""The documents of the status page, as the agent of a node and the cluster's page both make them.

What is used is None where nobody can say it.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import pyvgpu

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_PROMISED = ("promised", "memoryBytes", "promisedBytes")
_USED = ("used", "usedBytes")


def when(seconds: float) -> str:
    """Return a time, in seconds since the epoch, as the page takes it; an empty text for none."""
    if not seconds:
        return ""
    moment = datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def problem(who: str, text: str) -> dict[str, str]:
    """Return something that somebody should look at."""
    return {"who": who, "text": text}


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
    """Return the document of a node as it was *at* a time, and is looked at every *seconds*.

    *unbound* grants are nobody's yet.
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
    """Return the sums of *devices*, which are as in a document."""
    sums: dict[str, Any] = {
        "devices": len(devices),
        "sick": sum(it["state"] == "sick" for it in devices),
        "cordoned": sum(it["state"] == "cordoned" for it in devices),
        "containers": sum(len(it["containers"]) for it in devices),
    }
    for name in (*_PROMISED, *_USED):
        values = [it[name] for it in devices]
        sums[name] = None if None in values else round(sum(values), 4)
    return sums
