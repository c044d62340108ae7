"""`make bench-suspend`: what oversubscription gains and costs, and how long a move takes.

- The model (oversubscription_model.py): 20 tenants of 8 GiB on a device of 80 GiB, beside 10 that
  need no moves. Each works 6 s of device time, then rests for 54 s on average. Moves take the
  published rates of the driver. No GPU, and no clock of the machine.
- The simulated driver: `pyvgpu suspend` and `resume` of a run that holds 1 and 4 GiB. Of simulated
  devices the copies have set rates; the rest is what our commands and the driver's calls take.

The record goes to benchmarks/results/suspend.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import checkpoints  # noqa: E402
import host  # noqa: E402
from oversubscription_model import Model, Program  # noqa: E402

from pyvgpu.oversubscription import Pool, Rules, State, Tenant  # noqa: E402

GIB = 1 << 30
TENANT_BYTES = 8 * GIB
POOL = Pool(80 * GIB, 100)
OUT_RATE, BACK_RATE = 4e9, 7e9  # bytes per second, as measured on PCIe 4 (docs/suspend.md)
WORK_SECONDS, REST_SECONDS = 6.0, 54.0
STEP_SECONDS = 0.5
HOURS = 2
BOUNDS = (6, 20, 60)  # moves per minute
PYVGPU = str(Path(sys.executable).parent / "pyvgpu")


def percentile(values: list[float], percent: int) -> float:
    """Return the nearest-rank percentile; 0 without values."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)] if values else 0.0


def model(count: int, bound: int) -> dict[str, object]:
    """Return the figures of *count* tenants with at most *bound* moves per minute."""
    pick = random.Random(1)
    rules = Rules(idle_seconds=5, slice_seconds=60, moves_per_minute=bound)
    programs = [
        Program(
            Tenant(
                f"t{index:02}", TENANT_BYTES, 0, State.SUSPENDED, 0.0, wanted=0.0, is_new=True,
                rules=rules, move_seconds=TENANT_BYTES / OUT_RATE + TENANT_BYTES / BACK_RATE,
            ),
            WORK_SECONDS,
            REST_SECONDS,
            lambda mean: pick.expovariate(1 / mean),
            left=pick.expovariate(1 / REST_SECONDS),
        )
        for index in range(count)
    ]  # fmt: skip
    made = Model(
        POOL,
        programs,
        suspend_seconds=TENANT_BYTES / OUT_RATE,
        resume_seconds=TENANT_BYTES / BACK_RATE,
        step_seconds=STEP_SECONDS,
        shared=True,
    )
    while made.now < HOURS * 3600:
        made.step()
    waits = [x for program in programs for x in program.waits]
    jobs = [x for program in programs for x in program.jobs]
    had = [program.had for program in programs]
    return {
        "tenants": count,
        "moves_per_minute": bound,
        "jobs_per_minute": round(len(jobs) / HOURS / 60, 2),
        "device_busy": round(sum(had) / made.now, 3),
        "wait_p50_s": round(percentile(waits, 50), 2),
        "wait_p99_s": round(percentile(waits, 99), 2),
        "job_p99_s": round(percentile(jobs, 99), 2),
        "moves_made_per_minute": round(len(made.log) / HOURS / 60, 2),
        "least_of_mean": round(min(had) / (sum(had) / count), 2),
    }


def measured(gib: int, environment: dict[str, str]) -> dict[str, object]:
    """Return how long the commands take for a run that holds *gib* GiB."""
    source = checkpoints.SERVER + checkpoints.TARGET + checkpoints.LOOP
    command = [PYVGPU, "run", "--simulate", "h100", "--name", "bench-suspend", "--vmemory", "9GiB"]
    with subprocess.Popen(
        [*command, "--", sys.executable, "-c", source],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            lines = checkpoints.Lines(process)
            lines.send(f"context(); answer(alloc({gib} << 30) is not None)")
            if lines.answer() is not True:
                raise SystemExit("the allocation failed")
            seconds = {}
            for name in ("suspend", "resume"):
                begun = time.perf_counter()
                subprocess.run([PYVGPU, name, "bench-suspend"], env=environment, check=True)
                seconds[f"{name}_s"] = round(time.perf_counter() - begun, 2)
        finally:
            process.kill()
    return {"gib": gib, **seconds}


def main() -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-only", action="store_true", help="no run of the simulated driver")
    options = parser.parse_args()
    rows = [model(10, BOUNDS[-1]), *(model(20, bound) for bound in BOUNDS)]
    for row in rows:
        print(json.dumps(row), flush=True)
    moves = []
    if not options.model_only:
        with tempfile.TemporaryDirectory(prefix="pyvgpu-bench-") as folder:
            environment = {**os.environ, "PYVGPU_SIMULATED_MACHINES": folder}
            moves = [measured(gib, environment) for gib in (1, 4)]
        for row in moves:
            print(json.dumps(row), flush=True)
    host.keep(host.stamped({"model": rows, "moves": moves}), "suspend")
    return 0


if __name__ == "__main__":
    sys.exit(main())
