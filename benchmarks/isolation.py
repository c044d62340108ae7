"""Two tenants of one simulated H100 by each means of sharing it: turns, quotas, MPS, MIG.

    python benchmarks/isolation.py [--quick] [--json]

Each tenant launches the same kernels, all at once, and reads from the device's own clock when
they ran; so a busy host changes little. Printed for the time in which both had work: kernels of
each tenant in percent of what it does alone on the whole device, and how long one kernel took,
relative to alone. The tenants are equal; their kernels use a quarter of the SMs, or all.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyvgpu.replay import environments
from pyvgpu.simulation import simulator

KERNEL_NS = 2_000_000
KERNELS, QUICK_KERNELS = 300, 20
SMS = 132
INSTANCE_SMS = 60  # of a 3g.40gb: a kernel that wants more takes longer, which the simulator
# computes for clients of MPS only
TENANT = """
import ctypes, json, sys
from ctypes import byref
cuda = ctypes.CDLL("libcuda.so.1")
P, U64, SIZE = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
ns, blocks, kernels = map(int, sys.argv[1:])
def check(result):
    if result:
        raise SystemExit(f"CUDA error {result}")
context, module, function, out = P(), P(), P(), U64()
check(cuda.cuInit(0))
check(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
image = (b".version 8.0\\n.target sm_70\\n.address_size 64\\n"
         b".visible .entry sim_work(.param .u64 ns, .param .u64 out) { ret; }\\n")
check(cuda.cuModuleLoadData(byref(module), image))
check(cuda.cuModuleGetFunction(byref(function), module, b"sim_work"))
check(cuda.cuMemAlloc_v2(byref(out), SIZE(16 * kernels)))
print("ready", flush=True)
sys.stdin.readline()
for index in range(kernels):
    values = U64(ns), U64(out.value + 16 * index)
    arguments = (P * 2)(*[ctypes.addressof(value) for value in values])
    check(cuda.cuLaunchKernel(function, blocks, 1, 1, 1024, 1, 1, 0, None, arguments, None))
check(cuda.cuCtxSynchronize())
stamps = (U64 * (2 * kernels))()
check(cuda.cuMemcpyDtoH_v2(stamps, out, SIZE(16 * kernels)))
print(json.dumps(list(stamps)), flush=True)
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Means:
    """A means of sharing: the machine, and what precedes the program of each tenant."""

    name: str
    machine: str
    options: tuple[tuple[str, ...] | None, ...]  # of `pyvgpu run` by tenant; None: without it


ALL = (
    Means("turns of the driver, no limits", "h100", (None, None)),
    Means("quotas, vcore 50 each", "h100", (("--vcore", "50"),) * 2),
    Means("MPS, vcore 50 each", "h100", (("--sharing", "mps", "--vcore", "50"),) * 2),
    Means(
        "MIG, 3g.40gb each",
        "h100:mig=3g.40gb+3g.40gb",
        (("--device", "0:0"), ("--device", "0:1")),
    ),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What one tenant had, relative to alone on the whole device."""

    throughput: float  # 1: as alone
    typical: float  # duration of a kernel, 1: as alone; the median
    slowest: float  # of a hundred


def run(means: Means, sms: int, kernels: int = KERNELS) -> list[Seen]:
    """Run the tenants together, with so many *kernels* each of so many SMs."""
    ns = KERNEL_NS * max(1, sms / INSTANCE_SMS) if "mig" in means.machine else KERNEL_NS
    program = [sys.executable, "-c", TENANT, str(round(ns)), str(2 * sms), str(kernels)]
    with tempfile.TemporaryDirectory(prefix="pyvgpu-isolation-") as place:
        libraries = environments.bare(Path(place))
        started = [_start(means, options, program, libraries) for options in means.options]
        for process in started:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise SystemExit(f"{means.name}: a tenant did not start")
        for process in started:
            if process.stdin is not None:
                process.stdin.write("go\n")
                process.stdin.flush()
        answers = [process.communicate()[0] for process in started]
    stamps = [json.loads(answer) for answer in answers]
    begin = max(found[0] for found in stamps)
    end = min(found[-1] for found in stamps)
    return [_evaluate(found, begin, end) for found in stamps]


def _start(
    means: Means, options: tuple[str, ...] | None, program: list[str], libraries: Path
) -> subprocess.Popen[str]:
    place = libraries.parent
    machine = simulator.open_machine(means.machine, place)
    environment = environments.clean(machine)
    command = program
    if options is not None:
        pyvgpu = [str(Path(sys.executable).parent / "pyvgpu"), "run"]
        command = [*pyvgpu, "--simulate", means.machine, *options, "--", *program]
        environment.update(PYVGPU_SIMULATED_MACHINES=str(place), XDG_CACHE_HOME=str(place))
    else:
        environment["LD_LIBRARY_PATH"] = str(libraries)
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _evaluate(stamps: list[int], begin: int, end: int) -> Seen:
    pairs = list(zip(stamps[::2], stamps[1::2], strict=True))
    # A kernel counts by the part of it in the common time.
    done = sum(
        max(0, min(last, end) - max(first, begin)) / (last - first) for first, last in pairs
    )
    took = sorted(last - first for first, last in pairs if begin <= first and last <= end)
    return Seen(
        done * KERNEL_NS / (end - begin),
        took[len(took) // 2] / KERNEL_NS,
        took[len(took) * 99 // 100] / KERNEL_NS,
    )


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description="Measure means of sharing on the simulator.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help="roughly: fewer kernels")
    options = parser.parse_args()
    kernels = QUICK_KERNELS if options.quick else KERNELS
    rows: list[dict[str, Any]] = []
    for means in ALL:
        for sms in (SMS // 4, SMS):
            seen = run(means, sms, kernels)
            rows.append(
                {
                    "means": means.name,
                    "sms": sms,
                    "tenants": [dataclasses.asdict(one) for one in seen],
                }
            )
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        each = "  ".join(
            f"{100 * one['throughput']:5.1f} % x{one['typical']:.2f} (99th x{one['slowest']:.2f})"
            for one in row["tenants"]
        )
        print(f"{row['means']:32} {row['sms']:4} SMs  {each}")


if __name__ == "__main__":
    main()
