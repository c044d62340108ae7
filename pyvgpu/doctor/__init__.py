"""Say what works here, what is missing and how to get it; and prove that a quota is held.

``machine`` looks at what `pyvgpu run` needs, ``node`` at what the agent of a node needs,
``inside`` at what a process in a container or in a run has; ``proof`` tries whether that is held.
How it is shown is left to ``cli/doctor.py``.
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
