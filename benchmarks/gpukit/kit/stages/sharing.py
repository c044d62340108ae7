"""Two tenants on one device: driver time slicing, MPS and pyvgpu, as ratios in one run.

Each way plays the same scenes, and each ratio is against the same program alone in this run.
"""

from kit import binaries, cuda, mps, together
from kit import report as reports
from kit.stages import slices
from kit.together import Tenant

US, MS = 1_000, 1_000_000
SECONDS, SIMULATED_SECONDS = 3, 1.5
HALF = 50
HEAVY = Tenant(None, 5 * MS)
SMALL = Tenant(None, 100 * US, sync=True)
ALIKE = Tenant(None, 1 * MS)
LEAST_SECONDS = 40  # for the part under MPS, so that its daemon is not killed with the stage


def run(report):
    try:
        compare(report)
    except binaries.NotHereError as exc:
        report.missing("tenant", exc)


def compare(report):
    cuda.calibrate_alone()
    alone = {tenant: play([tenant])[0] for tenant in (HEAVY, SMALL, ALIKE)}
    for tenant, seen in alone.items():
        tell(report, f"alone: {tenant.kernel_ns / 1000:g} us", seen)
    scenes(report, "turns of the driver", alone, {})
    scenes(report, "pyvgpu", alone, {}, vcore=HALF)
    if reports.seconds_left() < LEAST_SECONDS:
        report.missing("MPS", f"less than {LEAST_SECONDS} s were left")
        return
    try:
        with mps.daemon() as variables:
            slices.turns(report, 2, "under MPS, 2 processes", variables)
            scenes(report, "MPS", alone, variables)
            half = {**variables, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(HALF)}
            scenes(report, f"MPS with {HALF} percent of the threads", alone, half)
    except mps.UnavailableError as exc:
        report.missing("MPS", exc)


def scenes(report, way, alone, variables, vcore=None):
    for title, tenants in (("two alike", (ALIKE, ALIKE)), ("small beside heavy", (HEAVY, SMALL))):
        name = f"{way}, {title}"
        environment = tuple(variables.items())
        seen = play([Tenant(vcore, one.kernel_ns, one.sync, environment) for one in tenants])
        rates = [
            one["rate"] / alone[tenant]["rate"] for one, tenant in zip(seen, tenants, strict=True)
        ]
        report.figure(f"{name}: throughput of both to that of one alone", sum(rates), "ratio")
        for number, (tenant, one, rate) in enumerate(zip(tenants, seen, rates, strict=True), 1):
            whose = f"{name}: tenant {number} of {tenant.kernel_ns / 1000:g} us"
            tell(report, whose, one)
            report.figure(f"{whose}: throughput to alone", rate, "ratio")
            if tenant.sync:
                for part in ("p50", "p99"):
                    report.figure(
                        f"{name}: {part} of launch to done, to alone",
                        one[part] / alone[tenant][part], "ratio",
                    )  # fmt: skip


def tell(report, name, seen):
    report.figure(f"{name}: kernels", seen["rate"], "1/s")
    report.figure(f"{name}: launch to done, median", seen["p50"], "us")
    report.figure(f"{name}: launch to done, 99th percentile", seen["p99"], "us")


def play(tenants):
    """Return for each tenant its kernels a second while all were at work, and its latencies."""
    seconds = SIMULATED_SECONDS if cuda.simulated() else SECONDS
    answers = together.answers(tenants, seconds)
    begin, end = together.window(answers)
    return [
        {
            "rate": 1e9
            * together.done(answer, begin, end, together.noted_each(tenant, seconds))
            / max(end - begin, 1),
            "p50": answer["p50"],
            "p99": answer["p99"],
        }
        for tenant, answer in zip(tenants, answers, strict=True)
    ]
