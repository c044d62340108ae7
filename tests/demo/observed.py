"""A demonstration in which everything went well, for tests to spoil in one point."""

import dataclasses

from pyvgpu.demo.facts import (
    GIB,
    MIB,
    TENANTS,
    Event,
    Holding,
    Kind,
    Observations,
    Plan,
    Role,
    Sample,
)

PLAN = Plan(seconds=10, device="a device", memory=80 * GIB, context=512 * MIB)
REFUSAL = "has 68GiB of 80GiB free, the rest is promised: steady 2GiB, grower 6GiB, doomed 4GiB"
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


def sample(seconds, steady=1 * GIB, grower=6 * GIB, doomed=4 * GIB, **other):
    """Return a sample in which ledgers and driver agree, unless *other* says otherwise."""
    held = {Role.STEADY: steady, Role.GROWER: grower, Role.DOOMED: doomed}
    charged = {role: other.get(f"{role}_charged", size) for role, size in held.items()}
    return Sample(
        seconds,
        other.get("used", sum(held.values())),
        tuple(Holding(role, charged[role], held[role]) for role in TENANTS),
    )


EVENTS = (
    Event(0.5, Role.STEADY, Kind.START, size=2 * GIB, pid=11),
    Event(0.5, Role.GROWER, Kind.START, size=6 * GIB, pid=12),
    Event(0.5, Role.DOOMED, Kind.START, size=4 * GIB, pid=13),
    Event(0.6, Role.DOOMED, Kind.HELD, size=3584 * MIB),
    Event(1.0, Role.STEADY, Kind.ROUND, size=480 * MIB),
    Event(2.0, Role.GROWER, Kind.GROWN, size=5376 * MIB),
    Event(2.5, Role.GROWER, Kind.REFUSED, 2, 5376 * MIB, free=128 * MIB, text=OUT_OF_MEMORY),
    Event(4.0, Role.DOOMED, Kind.KILLED, size=3584 * MIB, pid=13),
    Event(5.0, Role.STEADY, Kind.ROUND, size=480 * MIB),
    Event(5.0, Role.DOOMED, Kind.START, size=4 * GIB, pid=14),
    Event(5.1, Role.DOOMED, Kind.HELD, size=3584 * MIB),
    Event(7.0, Role.LATE, Kind.TURNED_AWAY, 69, 69 * GIB, 68 * GIB, text=REFUSAL),
    Event(10.1, Role.STEADY, Kind.ENDED),
    Event(10.2, Role.GROWER, Kind.ENDED),
    Event(10.2, Role.DOOMED, Kind.ENDED),
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
