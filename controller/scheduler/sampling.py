"""Whether kube-scheduler has asked about some nodes alone, though another one would do.

By itself it looks for so many nodes that fit by everything that it knows, and then asks us about
those and no others: of 5,000 nodes 500. Where we refuse them all the pod waits, though there is
room on the next. ``percentageOfNodesToScore: 100`` lets it ask about all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST = 100  # of which it asks at least, see numFeasibleNodesToFind in kube-scheduler
REMEDY = "percentageOfNodesToScore: 100"
_SHOWN = 3


def hint(asked: int, known: int, others: Sequence[str]) -> str:
    """Say that *others* would do though only *asked* of the *known* nodes were asked about.

    Empty where it was not for this that the pod has no place: nobody else would do, or so few
    were asked about that something else has kept the others from it.
    """
    if not others or not LEAST <= asked < known:
        return ""
    shown = ", ".join(sorted(others)[:_SHOWN])
    return (
        f"kube-scheduler has asked about {asked} of {known} nodes; {shown} would do: if nothing "
        f"else keeps it from there, its configuration lacks {REMEDY}"
    )
