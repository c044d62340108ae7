"""Limit the steps of searches for a pod's devices."""

from __future__ import annotations

import dataclasses

MOST_STEPS = 5000  # of a backtracking search; beyond it a pod is refused that might fit
LEAST_STEPS = 50  # of each, however many searches there are: enough for pods of a few containers
ALL_STEPS = 10_000  # of all searches for one pod together


@dataclasses.dataclass(slots=True)
class SearchBudget:
    """Budget of search steps for one pod, over all nodes.

    It limits pods with expensive placements. Steps before the first backtracking are free.
    """

    left: int = ALL_STEPS  # steps

    @property
    def steps(self) -> int:
        """The number of steps of the next search."""
        return min(max(self.left, LEAST_STEPS), MOST_STEPS)
