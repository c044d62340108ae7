"""Recorded observations of a successful demonstration; tests introduce single faults."""

import dataclasses

from pyvgpu.demo.observations import (
    GIB,
    MIB,
    SHARERS,
    DemoPlan,
    DemoSample,
    EventKind,
    Observation,
    Observations,
    Role,
    TenantEvent,
)

PLAN = DemoPlan(seconds=10, device="a device", memory=80 * GIB, context=512 * MIB)
LATE_BYTES = PLAN.quota(Role.LATE)
REFUSAL = (
    "has 65.8GiB of 80GiB free, the rest is reserved: steady 2GiB, grower 6GiB, doomed 4GiB, "
    "small 768MiB, large 768MiB, idle 768MiB"
)
TIMED = (*SHARERS, Role.IDLE)
WORK_BEGINS = 0.1
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


def sample(seconds, steady=1 * GIB, grower=6 * GIB, doomed=4 * GIB, **other):
    """Return a sample in which ledgers and driver agree, unless *other* says otherwise."""
    held = {Role.STEADY: steady, Role.GROWER: grower, Role.DOOMED: doomed}
    held |= {role: other.get(role, 512 * MIB if seconds > 1 else 0) for role in TIMED}
    charged = {role: other.get(f"{role}_charged", size) for role, size in held.items()}
    return DemoSample(
        seconds,
        other.get("used", sum(held.values())),
        tuple(
            Observation(
                role,
                charged[role],
                size,
                other.get(f"{role}_busy", busy(role, seconds)),
                int(other.get(f"{role}_kept", 0) * seconds),
            )
            for role, size in held.items()
        ),
    )


def busy(role, seconds):
    """Return the device time (ns) of *role* until then, without faults."""
    return int(SHARERS.get(role, 0) * max(0.0, seconds - WORK_BEGINS) * 10**7)


def spun(role, seconds, ns=None):
    """Return a report of the kernels that *role* has done."""
    done = busy(role, seconds) if ns is None else ns
    return TenantEvent(seconds, role, EventKind.SPUN, done // 10**6, ns=done)


EVENTS = (
    *(TenantEvent(0.5, role, EventKind.START, size=768 * MIB, pid=20) for role in TIMED),
    TenantEvent(0.6, Role.IDLE, EventKind.HELD, size=16 * MIB),
    TenantEvent(0.5, Role.STEADY, EventKind.START, size=2 * GIB, pid=11),
    TenantEvent(0.5, Role.GROWER, EventKind.START, size=6 * GIB, pid=12),
    TenantEvent(0.5, Role.DOOMED, EventKind.START, size=4 * GIB, pid=13),
    TenantEvent(0.6, Role.DOOMED, EventKind.HELD, size=3584 * MIB),
    *(spun(role, 1.0) for role in SHARERS),
    TenantEvent(1.0, Role.STEADY, EventKind.ROUND, size=480 * MIB),
    TenantEvent(2.0, Role.GROWER, EventKind.GROWN, size=5376 * MIB),
    TenantEvent(
        2.5, Role.GROWER, EventKind.REFUSED, 2, 5376 * MIB, free=128 * MIB, text=OUT_OF_MEMORY
    ),
    TenantEvent(4.0, Role.DOOMED, EventKind.KILLED, size=3584 * MIB, pid=13),
    TenantEvent(5.0, Role.STEADY, EventKind.ROUND, size=480 * MIB),
    TenantEvent(5.0, Role.DOOMED, EventKind.START, size=4 * GIB, pid=14),
    TenantEvent(5.1, Role.DOOMED, EventKind.HELD, size=3584 * MIB),
    TenantEvent(
        7.0, Role.LATE, EventKind.START_REFUSED, 69, LATE_BYTES, PLAN.unreserved, text=REFUSAL
    ),
    *(spun(role, 9.0) for role in SHARERS),
    *(spun(role, 10.0) for role in SHARERS),
    TenantEvent(10.1, Role.STEADY, EventKind.ENDED),
    TenantEvent(10.2, Role.GROWER, EventKind.ENDED),
    TenantEvent(10.2, Role.DOOMED, EventKind.ENDED),
    *(TenantEvent(10.2, role, EventKind.ENDED) for role in TIMED),
)
SAMPLES = (
    sample(0.1, 0, 0, 0),
    sample(3.0),
    sample(4.1, doomed=0, doomed_charged=4 * GIB, used=11 * GIB),
    sample(4.5, doomed=0),
    sample(6.0),
)
GOOD = Observations(PLAN, EVENTS, SAMPLES)


def without(*kinds, role=None, since=0.0):
    """Return the good demonstration without events of *kinds* (of *role*, from *since* on)."""
    kept = [
        x
        for x in EVENTS
        if x.kind not in kinds or x.seconds < since or (role is not None and x.role is not role)
    ]
    return dataclasses.replace(GOOD, events=tuple(kept))


def altered(role, kind, **changes):
    """Return the good demonstration with *changes* to the events of *role* and *kind*."""
    events = [
        dataclasses.replace(x, **changes) if (x.role, x.kind) == (role, kind) else x
        for x in EVENTS
    ]
    return dataclasses.replace(GOOD, events=tuple(events))


def having(*more, samples=SAMPLES, **changes):
    """Return the good demonstration with *more* events, in order, and other changes."""
    events = tuple(sorted((*EVENTS, *more), key=lambda event: event.seconds))
    return dataclasses.replace(GOOD, events=events, samples=samples, **changes)


def timed(kept=0, **percent):
    """Return the good demonstration with other shares of time, by kernels and by counts alike.

    For *kept* ns of each second the machine did not run the small tenant.
    """
    rates = {Role(name): rate * 10**7 for name, rate in percent.items()}
    events = tuple(
        spun(x.role, x.seconds, int(rates[x.role] * (x.seconds - WORK_BEGINS)))
        if x.kind is EventKind.SPUN and x.role in rates
        else x
        for x in EVENTS
    )
    samples = tuple(
        sample(
            x.seconds,
            **held_of(x),
            small_kept=kept,
            **{
                f"{role}_busy": int(rate * max(0.0, x.seconds - WORK_BEGINS))
                for role, rate in rates.items()
            },
        )
        for x in SAMPLES
    )
    return dataclasses.replace(GOOD, events=events, samples=samples)


def held_of(seen):
    """Return the arguments of sample() that reproduce *seen*."""
    roles = (Role.STEADY, Role.GROWER, Role.DOOMED)
    charged = {f"{role}_charged": seen.of(role).charged for role in roles}
    return {str(role): seen.of(role).held for role in roles} | charged | {"used": seen.used}
