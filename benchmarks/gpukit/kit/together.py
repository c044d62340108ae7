"""Tenants that share the device, and the device time of each by the device's own clock."""

import dataclasses
import os

from kit import binaries, cuda, shimmed
from pyvgpu.calibration import guarantees

AHEAD = 64
NOTED = 60_000  # kernels; the program has room for some more
BATCH_NS, AHEAD_NS = 100_000, 20_000_000  # of work: between events, and under way at most
SHORTEST_TIMED_NS = 100_000  # for shorter kernels the device's clock of 1 us is too coarse


@dataclasses.dataclass(frozen=True, slots=True)
class Tenant:
    vcore: int | None  # percent; None: without the shim
    kernel_ns: int
    sync: bool = False
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def title(self):
        quota = "without a quota" if self.vcore is None else f"{self.vcore} percent"
        return f"{quota}, {self.kernel_ns / 1000:g} us{' sync' if self.sync else ''}"


@dataclasses.dataclass(frozen=True, slots=True)
class Had:
    """What a tenant had of the device while all were at work."""

    percent: float  # of the device's time
    spread: list[float]  # least and most of both halves of the time
    late: float | None  # percent of the time by which a lack of processors delayed its launches


def answers(tenants, seconds):
    """Run *tenants* together; return what each printed. NotHereError without their program."""
    path = binaries.path("tenant")
    started = []
    for tenant in tenants:
        options = None
        if tenant.vcore is not None:
            options = ["--vcore", tenant.vcore, "--vmemory", "2GiB"]
        program = [path, *arguments(tenant, seconds)]
        started.append(shimmed.start(options, program, tenant.environment))
    answered = shimmed.together(started)
    for answer in answered:
        answer["kernels"].sort()  # if there were many, the last are written over the first
    return answered


def arguments(tenant, seconds):
    """Return the arguments of programs/tenant.c; cuda.calibrate_alone must have been called."""
    steps = max(1, round(tenant.kernel_ns * float(os.environ[cuda.STEPS_VARIABLE])))
    batch = 1 if tenant.sync else max(1, min(AHEAD, BATCH_NS // tenant.kernel_ns))
    ahead = 1 if tenant.sync else max(2, min(AHEAD, AHEAD_NS // (batch * tenant.kernel_ns)))
    words = (
        "routed_v2",
        steps,
        seconds,
        batch,
        ahead,
        noted_each(tenant, seconds),
        cuda.HERE / "kernels.ptx",
    )
    return [str(word) for word in words]


def noted_each(tenant, seconds):
    """Return of how many kernels one is noted, so that all of the time is."""
    return 1 + int(seconds * 1e9 / tenant.kernel_ns / NOTED)


def window(answered):
    """Return begin and end of the time in which all were at work, their beginnings left out."""
    begin = max(answer["kernels"][0][0] for answer in answered)
    end = min(answer["kernels"][-1][1] for answer in answered)
    return begin + (end - begin) // 5, end


def done(answer, begin, end, each=1):
    """Return how many kernels ran between *begin* and *end*, of which one of *each* is noted.

    A kernel that ran there in part counts as that part.
    """
    return each * sum(
        (min(b, end) - max(a, begin)) / (b - a) if b > a else 1
        for a, b in answer["kernels"]
        if a < end and b > begin
    )


def play(tenants, seconds):
    """Run *tenants* together; return for each what it Had.

    That is what a kernel takes alone times the kernels done, while all of them were at work: turns
    of others are no time of a tenant.
    """
    answered = answers(tenants, seconds)
    begin, end = window(answered)
    return [
        had(tenant, answer, (begin, end), seconds)
        for tenant, answer in zip(tenants, answered, strict=True)
    ]


def tell(report, name, prefix, had):
    """Report what a tenant Had as *name*; what belongs to it begins with *prefix*."""
    report.figure(name, had.percent, "%", had.spread)
    if had.late is not None:
        report.figure(f"{prefix}: {guarantees.LATE}", had.late, "% of the time")


def evaluate(report, prefix, tenant, had):
    """Report whether *tenant* had no more than its share, None if its halves do not agree."""
    if tenant.vcore is None:
        return
    scatter = had.spread[1] - had.spread[0]
    report.guarantee(
        f"{prefix}: not over its share",
        guarantees.verdict(had.percent, tenant.vcore + guarantees.POINTS, scatter, scatter),
        f"{had.percent:.1f} of {tenant.vcore}, parts of the time differ by {scatter:.1f}",
    )


def had(tenant, answer, whole, seconds):
    """Return what *tenant* Had between the two times *whole*, given its *answer*."""
    (begin, end), middle = whole, sum(whole) // 2
    takes, each = length(tenant, answer), noted_each(tenant, seconds)

    def percent(begin, end):
        return 100 * done(answer, begin, end, each) * takes / max(end - begin, 1)

    late = answer["late_ns"]
    return Had(
        percent(begin, end),
        sorted((percent(begin, middle), percent(middle, end))),
        None if late is None else late / seconds / 1e7,
    )


def length(tenant, answer):
    """Return what a kernel takes alone, ns: as was measured, or less if the clock rose since."""
    if tenant.kernel_ns < SHORTEST_TIMED_NS:
        return tenant.kernel_ns
    return min(tenant.kernel_ns, *(end - begin for begin, end in answer["kernels"]))
