"""Tenants that share the device, and the device time of each by the device's own clock."""

import dataclasses
import os

from kit import binaries, cuda, shimmed

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
    """Return how many kernels ran between *begin* and *end*, of which one of *each* is noted."""
    return each * sum(a >= begin and b <= end for a, b in answer["kernels"])


def play(tenants, seconds):
    """Run *tenants* together; return for each the percentage of the device's time it had.

    That is what a kernel takes alone times the kernels done, while all of them were at work: turns
    of others are no time of a tenant.
    """
    answered = answers(tenants, seconds)
    begin, end = window(answered)
    return [
        100
        * done(answer, begin, end, noted_each(tenant, seconds))
        * length(tenant, answer)
        / max(end - begin, 1)
        for tenant, answer in zip(tenants, answered, strict=True)
    ]


def length(tenant, answer):
    """Return what a kernel takes alone, ns: as was measured, or less if the clock rose since."""
    if tenant.kernel_ns < SHORTEST_TIMED_NS:
        return tenant.kernel_ns
    return min(tenant.kernel_ns, *(end - begin for begin, end in answer["kernels"]))
