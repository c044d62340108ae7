"""Checks of prerequisites, and proofs that quotas are enforced.

``machine`` checks the requirements of `pyvgpu run`, ``node`` those of a node's agent, ``inside``
the surroundings of a process in a container or a run; ``proof`` tests that its quota is enforced.
``cli/doctor.py`` prints the results.
"""

from pyvgpu.doctor.check_results import CheckResult, CheckState, Finding
from pyvgpu.doctor.machine_checks import CHECKS, PossibleRuns, Requirement, Scene, examine, judge

__all__ = [
    "CHECKS",
    "CheckResult",
    "CheckState",
    "Finding",
    "PossibleRuns",
    "Requirement",
    "Scene",
    "examine",
    "judge",
]
