"""Prove on a machine that quotas are enforced: start a run with the doctor inside it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import TYPE_CHECKING

from pyvgpu.doctor import inside
from pyvgpu.doctor.check_results import CheckResult, CheckState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VCORE, VMEMORY = "25", "1GiB"  # of one device, for some seconds
_SECONDS = 180
_MAIN = "import sys, pyvgpu.cli; sys.exit(pyvgpu.cli.main())"
_REMEDY = "the rows above say what `pyvgpu run` needs"


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """The device of the trial run."""

    driver_libraries: Path | None = None
    simulate: str | None = None  # a simulated machine, as `pyvgpu run` takes it


def examine(trial: Trial, environment: Mapping[str, str]) -> tuple[CheckResult, ...]:
    """Start a run, and return the proofs of the doctor in it."""
    options = ["--vcore", VCORE, "--vmemory", VMEMORY]
    if trial.simulate is not None:
        options += ["--simulate", trial.simulate]
    elif trial.driver_libraries is not None:
        options += ["--driver-libraries", str(trial.driver_libraries)]
    myself = [sys.executable, "-P", "-c", _MAIN]  # the folder may be a checkout of pyvgpu
    try:
        done = subprocess.run(
            [*myself, "run", *options, "--", *myself, "doctor", "--json"],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _failed(f"the trial run took more than {_SECONDS} s")
    return read(done.stdout, done.stderr)


def read(output: str, complaints: str) -> tuple[CheckResult, ...]:
    """Return the proofs in the *output* of a doctor in a run; missing ones count as failed."""
    try:
        rows = {check["check"]: check for check in json.loads(output)["checks"]}
        proofs = [rows[name] for name in (inside.MEMORY, inside.TIME)]
    except (ValueError, KeyError, TypeError):
        said = (complaints.strip().splitlines() or ["it gave no answer"])[-1]
        return _failed(f"the trial run failed: {said.removeprefix('pyvgpu: ')}")
    return tuple(
        CheckResult(proof["check"], CheckState(proof["state"]), proof["found"], proof["remedy"])
        for proof in proofs
    )


def _failed(found: str) -> tuple[CheckResult, ...]:
    return tuple(
        CheckResult(name, CheckState.LIMITED, found, f"nothing was proven; {_REMEDY}")
        for name in (inside.MEMORY, inside.TIME)
    )
