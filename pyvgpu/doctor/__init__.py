"""Checks of prerequisites, and proofs that quotas are enforced.

``machine`` checks the requirements of `pyvgpu run`, ``node`` those of a node's agent, ``inside``
the surroundings of a process in a container or a run; ``proof`` tests that its quota is enforced.
``cli/doctor.py`` prints the results.
"""

from pyvgpu.doctor.facts import Finding, Row, State
from pyvgpu.doctor.machine import CHECKS, Need, Scene, Verdict, examine, judge

__all__ = [
    "CHECKS",
    "Finding",
    "Need",
    "Row",
    "Scene",
    "State",
    "Verdict",
    "examine",
    "judge",
]
