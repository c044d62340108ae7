"""Data types of the demonstration's observations; seconds since its start, sizes in bytes."""

from __future__ import annotations

import dataclasses
import enum

MIB = 1 << 20
GIB = 1 << 30
STEP = 256 * MIB  # the grower's allocation size
KERNEL_US = 200  # duration of the sharers' kernels


def gib(size: int) -> str:
    """Format *size* with a fixed unit, so that the numbers of a column compare."""
    return f"{size / GIB:.2f} GiB"


class Role(enum.StrEnum):
    """The roles of the tenants."""

    STEADY = "steady"  # stays within its quota and verifies its results
    GROWER = "grower"  # allocates more until it is refused, and keeps trying
    DOOMED = "doomed"  # is killed by kill -9 while it holds memory
    LATE = "late"  # requests more than is free, and never starts
    SMALL = "small"  # wants all the time it can get, and has the smaller share
    LARGE = "large"  # the same, with the larger share
    IDLE = "idle"  # has a context and some memory, and does nothing
    FIRST = "first"  # a notebook of the scenario oversubscribe
    SECOND = "second"  # another
    THIRD = "third"  # another


SHARERS = {Role.SMALL: 30, Role.LARGE: 70}  # vcore of the tenants that compete for time
TENANTS = (Role.STEADY, Role.GROWER, Role.DOOMED, *SHARERS, Role.IDLE)


class EventKind(enum.StrEnum):
    """Kinds of events. The first eight are those that the tenant program reports."""

    START = "start"
    ROUND = "round"
    GROWN = "grown"
    REFUSED = "refused"
    HELD = "held"
    SPUN = "spun"
    CELL = "cell"
    FAILED = "failed"
    KILLED = "killed"  # we sent SIGKILL to the tenant's process
    ENDED = "ended"  # the run ended; number: its exit code, as of subprocess
    START_REFUSED = "turned away"  # the late run ended; number: its exit code, text: its message
    ASKED = "asked"  # a notebook was asked to work; number: milliseconds
    SUSPENDED = "suspended"  # the run was; size: bytes in host memory
    RESUMED = "resumed"


@dataclasses.dataclass(frozen=True, slots=True)
class TenantEvent:
    """An event of a tenant; the kind determines which fields are used."""

    seconds: float
    role: Role
    kind: EventKind
    number: int = 0  # CUresult, exit code, wrong bytes, completed kernels
    size: int = 0  # bytes held, worked on or requested
    free: int = 0  # bytes reported to the tenant as free, or not reserved
    pid: int = 0
    text: str = ""
    ns: int = 0  # device time of the completed kernels


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
    """The state of one tenant at one moment, from two independent sources."""

    role: Role
    charged: int  # by its region's ledger
    held: int  # by the driver's own NVML, over its processes
    busy_ns: int = 0  # device time, by its region's count
    kept_ns: int = 0  # for which its processes were runnable but not scheduled


@dataclasses.dataclass(frozen=True, slots=True)
class DemoSample:
    """One sample of the device."""

    seconds: float
    used: int  # of the device, by the driver's own NVML
    holdings: tuple[Observation, ...]

    def of(self, role: Role) -> Observation:
        """Return the state of *role*; zeros if it is not running."""
        for holding in self.holdings:
            if holding.role is role:
                return holding
        return Observation(role, 0, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class DemoPlan:
    """The device, the quotas and the duration of a demonstration."""

    seconds: int  # after which the tenants are asked to end
    device: str
    memory: int  # of the device
    context: int  # of one CUDA context
    working: int = 120 * MIB  # the steady tenant's buffer
    suffix: str = ""  # makes the names of the runs unique

    def quota(self, role: Role) -> int:
        """Return the vmemory of the run of *role*."""
        if role is Role.LATE:
            return self.unreserved + GIB
        quotas = {Role.STEADY: 2 * GIB, Role.GROWER: 6 * GIB, Role.DOOMED: 4 * GIB}
        return quotas.get(role, self.context + 256 * MIB)

    def name(self, role: Role) -> str:
        """Return the name of the run of *role*."""
        return f"{role}-{self.suffix}" if self.suffix else str(role)

    @property
    def unreserved(self) -> int:
        """Return the memory of the device that the tenants leave."""
        return self.memory - sum(self.quota(role) for role in TENANTS)

    @property
    def doomed_bytes(self) -> int:
        """Return the doomed tenant's allocation: all of its quota except the context."""
        return (self.quota(Role.DOOMED) - self.context) // (2 * MIB) * 2 * MIB

    @property
    def pause_ms(self) -> int:
        """Return the grower's pause between steps, so that it is refused after a quarter."""
        steps = (self.quota(Role.GROWER) - self.context) // STEP
        return max(1, 250 * self.seconds // steps)


class EventLog:
    """Finds events."""

    __slots__ = ()
    events: tuple[TenantEvent, ...]

    def of(self, role: Role, *kinds: EventKind) -> tuple[TenantEvent, ...]:
        """Return the events of *role* that are of *kinds*, in order."""
        return tuple(x for x in self.events if x.role is role and x.kind in kinds)

    def first(self, role: Role, kind: EventKind, since: float = 0.0) -> TenantEvent | None:
        """Return the first event of *role* of that *kind* from *since* on."""
        found = (x for x in self.of(role, kind) if x.seconds >= since)
        return next(found, None)


@dataclasses.dataclass(frozen=True, slots=True)
class Observations(EventLog):
    """All observations."""

    plan: DemoPlan
    events: tuple[TenantEvent, ...] = ()
    samples: tuple[DemoSample, ...] = ()
    remarks: tuple[tuple[Role, str], ...] = ()  # standard error of the runs
    left: tuple[str, ...] = ()  # descriptions of left-overs after the end
