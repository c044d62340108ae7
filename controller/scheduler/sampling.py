"""Detect that kube-scheduler sampled only some nodes although another one fits.

By default it stops once it has found a number of nodes that fit as far as it knows, and asks us
about those alone: of 5,000 nodes 500. If we refuse them all the pod waits, though another node
has room. With ``percentageOfNodesToScore: 100`` it asks about all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST = 100  # its least sample, see numFeasibleNodesToFind in kube-scheduler
REMEDY = "percentageOfNodesToScore: 100"
_SHOWN = 3


def hint(asked: int, known: int, others: Sequence[str]) -> str:
    """Say that *others* fit though kube-scheduler asked about *asked* of *known* nodes alone.

    Empty if sampling is not the cause: no other node fits, or it asked about so few that another
    of its filters has excluded the rest.
    """
    if not others or not LEAST <= asked < known:
        return ""
    shown = ", ".join(sorted(others)[:_SHOWN])
    return (
        f"kube-scheduler asked about only {asked} of {known} nodes; {shown} would fit: unless "
        f"another of its filters excludes them, its configuration lacks {REMEDY}"
    )
