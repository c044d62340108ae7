"""What a demonstration observes. Seconds are since its start, sizes are bytes."""

from __future__ import annotations

import dataclasses
import enum

MIB = 1 << 20
GIB = 1 << 30
STEP = 256 * MIB  # what the grower asks for at a time
KERNEL_US = 200  # what a kernel of those takes that want all the time they can get


def gib(size: int) -> str:
    """Write *size* so that sizes below each other compare."""
    return f"{size / GIB:.2f} GiB"


class Role(enum.StrEnum):
    """Who takes part."""

    STEADY = "steady"  # stays within its quota and checks what it computes
    GROWER = "grower"  # takes more until it is refused, and goes on asking
    DOOMED = "doomed"  # dies by kill -9 holding memory
    LATE = "late"  # asks for more than is free, and never starts
    SMALL = "small"  # wants all the time it can get, and has the lesser share
    LARGE = "large"  # the same, with the greater share
    IDLE = "idle"  # has a context and some memory, and does nothing


SHARERS = {Role.SMALL: 30, Role.LARGE: 70}  # the vcore of those who divide the time
TENANTS = (Role.STEADY, Role.GROWER, Role.DOOMED, *SHARERS, Role.IDLE)


class Kind(enum.StrEnum):
    """What can happen. The first seven are the tenant program's own words."""

    START = "start"
    ROUND = "round"
    GROWN = "grown"
    REFUSED = "refused"
    HELD = "held"
    SPUN = "spun"
    FAILED = "failed"
    KILLED = "killed"  # we sent SIGKILL to the tenant's process
    ENDED = "ended"  # the run ended; number: its exit code, as subprocess has it
    TURNED_AWAY = "turned away"  # the late run ended; number: its exit code, text: what it said


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a tenant; which fields mean something depends on the kind."""

    seconds: float
    role: Role
    kind: Kind
    number: int = 0  # CUresult, exit code, bytes that are not as computed, kernels done
    size: int = 0  # bytes held, worked on or asked for
    free: int = 0  # bytes the tenant was told are free, or that the book has
    pid: int = 0
    text: str = ""
    ns: int = 0  # of the device's time, in the kernels that are done


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """What one tenant has at one moment, from two sources that do not know each other."""

    role: Role
    charged: int  # by its region's ledger
    held: int  # by the driver's own NVML, over its processes
    busy_ns: int = 0  # of the device's time, by its region's count
    kept_ns: int = 0  # that its processes could have run and the machine ran others


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One look at the device."""

    seconds: float
    used: int  # of the device, by the driver's own NVML
    holdings: tuple[Holding, ...]

    def of(self, role: Role) -> Holding:
        """Return what *role* has; nothing if it is not there."""
        for holding in self.holdings:
            if holding.role is role:
                return holding
        return Holding(role, 0, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """How much of which device each takes, and when things happen."""

    seconds: int  # when the tenants are told to end
    device: str
    memory: int  # of the device
    context: int  # that a CUDA context takes
    working: int = 120 * MIB  # what the steady tenant computes in
    suffix: str = ""  # makes the names of the runs unique

    def quota(self, role: Role) -> int:
        """Return what the run of *role* asks for."""
        if role is Role.LATE:
            return self.unpromised + GIB
        quotas = {Role.STEADY: 2 * GIB, Role.GROWER: 6 * GIB, Role.DOOMED: 4 * GIB}
        return quotas.get(role, self.context + 256 * MIB)

    def name(self, role: Role) -> str:
        """Return what the run of *role* is called."""
        return f"{role}-{self.suffix}" if self.suffix else str(role)

    @property
    def unpromised(self) -> int:
        """Return what the tenants leave of the device."""
        return self.memory - sum(self.quota(role) for role in TENANTS)

    @property
    def doomed_bytes(self) -> int:
        """Return what the doomed tenant holds: all that its quota leaves beside a context."""
        return (self.quota(Role.DOOMED) - self.context) // (2 * MIB) * 2 * MIB

    @property
    def pause_ms(self) -> int:
        """Return how long the grower waits between steps, to be refused after a quarter."""
        steps = (self.quota(Role.GROWER) - self.context) // STEP
        return max(1, 250 * self.seconds // steps)


@dataclasses.dataclass(frozen=True, slots=True)
class Observations:
    """All that was seen."""

    plan: Plan
    events: tuple[Event, ...] = ()
    samples: tuple[Sample, ...] = ()
    remarks: tuple[tuple[Role, str], ...] = ()  # what the runs said on standard error
    left: tuple[str, ...] = ()  # what was still there after the end, in words

    def of(self, role: Role, *kinds: Kind) -> tuple[Event, ...]:
        """Return the events of *role* that are of *kinds*, in order."""
        return tuple(x for x in self.events if x.role is role and x.kind in kinds)

    def first(self, role: Role, kind: Kind, since: float = 0.0) -> Event | None:
        """Return the first event of *role* of that *kind* from *since* on."""
        found = (x for x in self.of(role, kind) if x.seconds >= since)
        return next(found, None)
