"""Checks of prerequisites, and proofs that quotas are enforced.

``machine_checks`` has the requirements of `pyvgpu run`, ``node_checks`` those of a node's agent;
``inside`` checks the surroundings of a process in a container or a run, and ``proof`` that its
quota is enforced. ``cli/doctor.py`` prints the results, and starts a run to get the last.
"""

from pyvgpu.doctor.check_results import CheckResult, CheckState, Finding
from pyvgpu.doctor.machine_checks import (
    CHECKS,
    CheckedMachine,
    PossibleRuns,
    Requirement,
    evaluate,
    examine,
)

__all__ = [
    "CHECKS",
    "CheckResult",
    "CheckState",
    "CheckedMachine",
    "Finding",
    "PossibleRuns",
    "Requirement",
    "evaluate",
    "examine",
]
