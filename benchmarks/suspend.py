"""`make bench-suspend`: what oversubscription gains and costs, and how long a move takes.

- The model (oversubscription_model.py): 20 tenants of 8 GiB on a device of 80 GiB, beside 10 that
  need no moves. Each works 6 s of device time, then rests for 54 s on average. Moves take the
  published rates of the driver. No GPU, and no clock of the machine.
- The simulated driver: `pyvgpu suspend` and `resume` of a run that holds 1 and 12 GiB, and the
  time of each GiB more. Of simulated devices the copies have set rates; the rest is what our
  commands and the calls of the driver take.
- The share of a neighbour with vcore 50 that always works, before, while and after such a run is
  moved.

The record goes to benchmarks/results/suspend.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import checkpoints  # noqa: E402
import host  # noqa: E402
from oversubscription_model import Model, Program  # noqa: E402

from pyvgpu.oversubscription import MovableTenant, MoveRules, Pool, TenantState  # noqa: E402

GIB = 1 << 30
TENANT_BYTES = 8 * GIB
POOL = Pool(80 * GIB, 100)
OUT_RATE, BACK_RATE = 4e9, 7e9  # bytes per second, as measured on PCIe 4 (docs/suspend.md)
WORK_SECONDS, REST_SECONDS = 6.0, 54.0
STEP_SECONDS = 0.5
HOURS, QUICK_HOURS = 2, 0.2
SIZES = (1, 12)  # of the runs that move, GiB
REPEATS = 3  # of their moves; the shortest counts, since others may use the machine
BOUNDS = (6, 20, 60)  # moves per minute
KERNEL_SECONDS = 0.001  # of the neighbour
BESIDE_SECONDS = 3.0  # of the neighbour's work before and after the moves
COUNTED = (
    "image = b'.version 8.0\\n.target sm_70\\n.address_size 64\\n"
    ".visible .entry sim_spin(.param .u64 ns) { ret; }\\n'",
    "def work(module=P(), function=P(), value=U64(1_000_000)): context(); "
    "check(cuda.cuModuleLoadData(byref(module), image)); "
    "check(cuda.cuModuleGetFunction(byref(function), module, b'sim_spin')); "
    "given = (P * 1)(ctypes.addressof(value)); "
    "[(check(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, given, None)), "
    "check(cuda.cuCtxSynchronize()), done.append(1)) for _ in iter(int, 1)]",
    "done = []; threading.Thread(target=work, daemon=True).start(); answer(True)",
)
PYVGPU = str(Path(sys.executable).parent / "pyvgpu")


def percentile(values: list[float], percent: int) -> float:
    """Return the nearest-rank percentile; 0 without values."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)] if values else 0.0


def model(count: int, bound: int, hours: float = HOURS) -> dict[str, object]:
    """Return the figures of *count* tenants with at most *bound* moves per minute."""
    pick = random.Random(1)
    rules = MoveRules(idle_seconds=5, slice_seconds=60, moves_per_minute=bound)
    programs = [
        Program(
            MovableTenant(
                f"t{index:02}", TENANT_BYTES, 0, TenantState.SUSPENDED, 0.0, wanted=0.0,
                is_new=True, rules=rules,
                move_seconds=TENANT_BYTES / OUT_RATE + TENANT_BYTES / BACK_RATE,
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
    while made.now < hours * 3600:
        made.step()
    waits = [x for program in programs for x in program.waits]
    jobs = [x for program in programs for x in program.jobs]
    had = [program.had for program in programs]
    return {
        "tenants": count,
        "moves_per_minute": bound,
        "jobs_per_minute": round(len(jobs) / hours / 60, 2),
        "device_busy": round(sum(had) / made.now, 3),
        "wait_p50_s": round(percentile(waits, 50), 2),
        "wait_p99_s": round(percentile(waits, 99), 2),
        "job_p99_s": round(percentile(jobs, 99), 2),
        "moves_made_per_minute": round(len(made.log) / hours / 60, 2),
        "least_of_mean": round(min(had) / (sum(had) / count), 2),
    }


@contextlib.contextmanager
def started(name: str, environment: dict[str, str], *options: str) -> Iterator[checkpoints.Lines]:
    """Run a program that executes lines in a run called *name*."""
    source = checkpoints.SERVER + checkpoints.TARGET + checkpoints.LOOP
    command = [PYVGPU, "run", "--simulate", "h100", "--name", name, *options]
    with subprocess.Popen(
        [*command, "--", sys.executable, "-c", source],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield checkpoints.Lines(process)
        finally:
            process.kill()


def hold(lines: checkpoints.Lines, gib: int) -> None:
    """Let a program hold so much device memory."""
    lines.send(f"context(); answer(alloc({gib} << 30) is not None)")
    if lines.answer() is not True:
        raise SystemExit("the allocation failed")


def moved(command: str, name: str, environment: dict[str, str]) -> float:
    """Suspend or resume a run; return the seconds that it took."""
    begun = time.perf_counter()
    subprocess.run([PYVGPU, command, name], env=environment, check=True)
    return time.perf_counter() - begun


def measured(gib: int, environment: dict[str, str]) -> dict[str, float]:
    """Return how long the commands take at least for a run that holds *gib* GiB."""
    seconds: dict[str, list[float]] = {"suspend": [], "resume": []}
    with started("bench-suspend", environment, "--vmemory", "14GiB") as lines:
        hold(lines, gib)
        for _ in range(REPEATS):
            for name, found in seconds.items():
                found.append(moved(name, "bench-suspend", environment))
    return {"gib": gib, **{f"{name}_s": round(min(found), 2) for name, found in seconds.items()}}


def per_gib(rows: list[dict[str, float]]) -> dict[str, float]:
    """Return the seconds that each GiB more takes, from the smallest and the largest of *rows*."""
    first, last = rows[0], rows[-1]
    return {
        f"{name}_s_per_gib": round(
            (last[f"{name}_s"] - first[f"{name}_s"]) / (last["gib"] - first["gib"]), 3
        )
        for name in ("suspend", "resume")
    }


def neighbour(environment: dict[str, str]) -> dict[str, float]:
    """Return the share of a run with vcore 50 before, while and after another run is moved."""
    half = ("--vmemory", "14GiB", "--vcore", "50")
    with (
        started("bench-neighbour", environment, *half) as working,
        started("bench-suspend", environment, *half) as lines,
    ):
        hold(lines, SIZES[-1])
        for line in COUNTED:
            working.send(line)
        working.answer()

        @contextlib.contextmanager
        def share_of(phase: str) -> Iterator[None]:
            begun, before = time.perf_counter(), int(str(working.ask("len(done)")))
            yield
            kernels = int(str(working.ask("len(done)"))) - before
            shares[phase] = round(kernels * KERNEL_SECONDS / (time.perf_counter() - begun), 3)

        shares: dict[str, float] = {}
        time.sleep(BESIDE_SECONDS)  # its launches have been measured
        with share_of("before"):
            time.sleep(BESIDE_SECONDS)
        for command in ("suspend", "resume"):
            with share_of(command):
                moved(command, "bench-suspend", environment)
        with share_of("after"):
            time.sleep(BESIDE_SECONDS)
    return shares


def main() -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-only", action="store_true", help="no run of the simulated driver")
    parser.add_argument("--quick", action="store_true", help="roughly, nothing recorded")
    options = parser.parse_args()
    hours, sizes = (QUICK_HOURS, SIZES[:1]) if options.quick else (HOURS, SIZES)
    rows = [model(10, BOUNDS[-1], hours), *(model(20, bound, hours) for bound in BOUNDS)]
    for row in rows:
        print(json.dumps(row), flush=True)
    moves: list[dict[str, float]] = []
    more: dict[str, object] = {}
    if not options.model_only:
        with tempfile.TemporaryDirectory(prefix="pyvgpu-bench-") as folder:
            environment = {**os.environ, "PYVGPU_SIMULATED_MACHINES": folder}
            moves = [measured(gib, environment) for gib in sizes]
            if len(moves) > 1:
                more = {"per_gib": per_gib(moves), "neighbour": neighbour(environment)}
        for row in (*moves, more):
            print(json.dumps(row), flush=True)
    if not options.quick:
        host.keep(host.stamped({"model": rows, "moves": moves, **more}), "suspend")
    return 0


if __name__ == "__main__":
    sys.exit(main())
