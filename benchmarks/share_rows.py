"""Rows of `make bench-share`: scenes, and the claims about them.

The bounds are in one place, here; L is the longest indivisible piece of a tenant's work (a whole
graph is one).

- *kept*: in windows of 1 s (of 50 L, where L is over 25 ms) the mean error of the share is at
  most 1 point (3 under a drawn law), or 60 % of L in a window; the worst at most 2 points more, or
  120 % of L; and the work done is at least 97 % of the vcore times what the same program does
  alone on a bare device. A program that could not use its vcore alone is held to the last, and to
  no more than its vcore.
- *settled*: within 100 ms of a change (150 L, where L is over 1 ms) every mean of 100 ms (of 50 L)
  is within 3 points; never above by more than 5 points and one L. What was lent is given back
  within the same time.
"""

from __future__ import annotations

import dataclasses

import laws
import scores
from scene_runs import SECOND_NS, Event, Scene, Tenant

US, MS = 1_000, 1_000_000
CAPS = (5, 10, 25, 50, 75, 90, 95)
LENGTHS = (15 * US, 280 * US, MS, 8 * MS, 20 * MS)
GRAPH_NODES = 100
WARM_S = 1.0
WINDOWS = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """A tenant has its share all the time."""

    tenant: int
    expected: float  # percent


@dataclasses.dataclass(frozen=True, slots=True)
class Settled:
    """A tenant reaches its share soon after a moment, and stays there."""

    tenant: int
    expected: float
    at_s: float
    until_s: float
    gives_back: bool = False  # what was lent: it has the bound in time alone


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One scene, and what is claimed of it."""

    name: str
    group: str
    scene: Scene
    claims: tuple[Kept | Settled, ...]
    quick: bool = False  # also tried in the short form: those that any change may break first
    evaluated: bool = True  # else it is only shown: its claims cannot be met
    laws: tuple[str, ...] = (laws.TODAY.name,)  # under which it is tried unless all are asked for
    everywhere: bool = False  # also in the short form under all of its laws, not the first alone


def piece_ns(tenant: Tenant) -> int:
    """Return L: the longest indivisible work of the tenant."""
    return tenant.length_ns * (GRAPH_NODES if tenant.kind == "graph" else 1)


def window_ns(tenant: Tenant) -> int:
    """Return the window in which a kept share is evaluated."""
    piece = piece_ns(tenant)
    return SECOND_NS if piece <= 25 * MS else 50 * piece


def mean_bound(tenant: Tenant, law: laws.Law) -> float:
    """Return how far off windows may be on average, points."""
    return max(law.points, 60.0 * piece_ns(tenant) / window_ns(tenant))


def worst_bound(tenant: Tenant, law: laws.Law) -> float:
    """Return how far off any window may be, points."""
    return max(2.0 + law.points, 120.0 * piece_ns(tenant) / window_ns(tenant))


def dues(row: Row, law: laws.Law) -> list[scores.Due]:
    """Return what is due of each claim, beside those that hold at the same time."""
    capacity = law.capacity(sum(tenant.processes for tenant in row.scene.tenants))
    found = []
    for claim in row.claims:
        beside = [other for other in row.claims if other is not claim and _meet(claim, other)]
        wanted = [each.expected for each in (claim, *beside)]
        found.append(scores.due(0, wanted, capacity))
    return found


def _meet(one: Kept | Settled, other: Kept | Settled) -> bool:
    if one.tenant == other.tenant or isinstance(one, Kept) or isinstance(other, Kept):
        return one.tenant != other.tenant
    return one.at_s < other.until_s and other.at_s < one.until_s


def settling_window_ns(tenant: Tenant) -> int:
    """Return the window in which settling is evaluated."""
    return 100 * MS if piece_ns(tenant) <= MS else max(100 * MS, 50 * piece_ns(tenant))


def settling_bound_ns(tenant: Tenant) -> int:
    """Return how long a tenant may take to settle."""
    return 100 * MS if piece_ns(tenant) <= MS else 150 * piece_ns(tenant)


def overshoot_bound(tenant: Tenant) -> float:
    """Return how far above a share may be while it settles, points."""
    return 5.0 + 100.0 * piece_ns(tenant) / settling_window_ns(tenant)


def length(ns: int) -> str:
    """Return a length as people say it."""
    return f"{ns // MS} ms" if ns >= MS else f"{ns // US} us"


def describe(tenant: Tenant) -> str:
    """Return a tenant in a few words."""
    crowd = f"{tenant.processes} processes, " if tenant.processes > 1 else ""
    nodes = f"{GRAPH_NODES} x " if tenant.kind == "graph" else ""
    return f"{crowd}{tenant.kind} {nodes}{length(tenant.length_ns)}"


_ASYNC_280 = Tenant(None, "async", 280 * US)
PROGRAMS = (
    *(Tenant(None, "async", each) for each in LENGTHS),
    *(Tenant(None, "sync", each) for each in LENGTHS),
    Tenant(None, "graph", 15 * US),
    Tenant(None, "graph", 280 * US),
    Tenant(None, "streams", 280 * US),
    Tenant(None, "async", 280 * US, processes=4),
    Tenant(None, "bursty", 280 * US),
    Tenant(None, "mixed", 8 * MS),
)


def warm_s(tenants: tuple[Tenant, ...]) -> float:
    """Return from when on shares are evaluated: programs may settle before."""
    return max(WARM_S, max(map(settling_bound_ns, tenants)) / SECOND_NS)


def _seconds(tenants: tuple[Tenant, ...], windows: int) -> float:
    return warm_s(tenants) + windows * max(map(window_ns, tenants)) / SECOND_NS


def _solo(program: Tenant, cap: int) -> Row:
    tenant = dataclasses.replace(program, vcore=cap)
    name = f"{cap} alone: {describe(tenant)}"
    quick = piece_ns(program) <= 2 * MS and (
        cap == 50 or (cap in (5, 95) and program == _ASYNC_280)
    )
    scene = Scene((tenant,), _seconds((tenant,), WINDOWS))
    return Row(
        name,
        "alone",
        scene,
        (Kept(0, cap),),
        quick,
        laws=_laws(tenant, quick=quick),
        everywhere=cap == 50 and program == _ASYNC_280,
    )


def _laws(*tenants: Tenant, quick: bool) -> tuple[str, ...]:
    """Return all laws for programs whose figures hang on nothing else; the rest is for --full."""
    plain = all(each.kind == "async" and each.length_ns in (280 * US, MS) for each in tenants)
    return laws.NAMES if quick and plain else (laws.TODAY.name,)


def _together(
    name: str,
    *tenants: Tenant,
    quick: bool = False,
    evaluated: bool = True,
    everywhere: bool = False,
) -> Row:
    claims = tuple(
        Kept(number, tenant.vcore)
        for number, tenant in enumerate(tenants)
        if tenant.vcore is not None and tenant.vcore < 100 and tenant.kind != "idle"
    )
    scene = Scene(tenants, _seconds(tenants, WINDOWS))
    tried = _laws(*tenants, quick=quick)
    return Row(name, "neighbours", scene, claims, quick, evaluated, tried, everywhere)


def _pair(left: int, right: int, each: int) -> Row:
    tenants = (Tenant(left, "async", each), Tenant(right, "async", each))
    name = f"{left}/{right}: both async {length(each)}"
    return _together(name, *tenants, quick=each <= MS)


def _capped(program: Tenant, vcore: int) -> Tenant:
    return dataclasses.replace(program, vcore=vcore)


TOGETHER = (
    *(_pair(30, 70, each) for each in LENGTHS),
    _together(
        "50/50: async 280 us in 4 processes and in 1",
        Tenant(50, "async", 280 * US, processes=4),
        Tenant(50, "async", 280 * US),
        quick=True,
    ),
    _together(
        "30/70: sync 1 ms, graph 100 x 15 us",
        Tenant(30, "sync", MS),
        Tenant(70, "graph", 15 * US),
        quick=True,
    ),
    _together(
        "25/60: async 15 us, async 20 ms",
        Tenant(25, "async", 15 * US),
        Tenant(60, "async", 20 * MS),
    ),
    _together(
        "10/20/30/40: all async 280 us",
        *(_capped(_ASYNC_280, each) for each in (10, 20, 30, 40)),
        quick=True,
        everywhere=True,
    ),
    _together(
        "10/20/30/40: sync 280 us, streams 280 us, async 8 ms, graph 100 x 15 us",
        Tenant(10, "sync", 280 * US),
        Tenant(20, "streams", 280 * US),
        Tenant(30, "async", 8 * MS),
        Tenant(40, "graph", 15 * US),
    ),
    _together(
        "8 x 12: async 280 us, one of them in 4 processes",
        Tenant(12, "async", 280 * US, processes=4),
        *[_capped(_ASYNC_280, 12)] * 7,
        quick=True,
    ),
    _together(
        "8 x 12: all kinds",
        Tenant(12, "async", 15 * US, processes=3),
        Tenant(12, "async", MS),
        Tenant(12, "async", 8 * MS),
        Tenant(12, "sync", 280 * US),
        Tenant(12, "sync", 8 * MS),
        Tenant(12, "graph", 15 * US),
        Tenant(12, "streams", 280 * US),
        Tenant(12, "mixed", 8 * MS),
    ),
    _together(
        "30 and 40, and one that idles with 30",
        _capped(_ASYNC_280, 30),
        Tenant(40, "async", 8 * MS),
        Tenant(30, "idle", MS),
    ),
    _together("30 beside a greedy 100", _capped(_ASYNC_280, 30), Tenant(100, "async", 280 * US)),
    _together(
        "30 of 8 ms beside a greedy 100", Tenant(30, "async", 8 * MS), Tenant(100, "async", MS)
    ),
    _together(
        "30 beside a greedy program without the shim",
        _capped(_ASYNC_280, 30),
        Tenant(None, "async", 20 * MS),
        quick=True,
    ),
    _together(
        "30 of 8 ms beside a greedy program without the shim",
        Tenant(30, "async", 8 * MS),
        Tenant(None, "async", 280 * US),
        evaluated=False,  # longer than turns: 2 or 3 points too many at first
    ),
)


def _settling(program: Tenant, *, quick: bool = False) -> Row:
    """Start, two changes of the vcore, a neighbour that comes and goes."""
    step = max(1.0, 3 * settling_bound_ns(program) / SECOND_NS)
    moments = [step * number for number in range(6)]
    tenant = dataclasses.replace(program, vcore=40)
    events = (Event(moments[1], "vcore", 0, 15), Event(moments[2], "vcore", 0, 45))
    neighbour = Tenant(50, "async", 280 * US, begin_s=moments[3], end_s=moments[4])
    expected = (40, 15, 45, 45, 45)
    claims = tuple(
        Settled(0, share, *moments[number : number + 2]) for number, share in enumerate(expected)
    )
    arrival = Settled(1, 50, moments[3], moments[4])
    return Row(
        f"40, then 15, then 45, then a neighbour of 50, then none: {describe(program)}",
        "settling",
        Scene((tenant, neighbour), moments[5], events),
        (*claims, arrival),
        quick,
        laws=_laws(program, quick=quick),
        everywhere=program == _ASYNC_280,
    )


SETTLING = (
    _settling(Tenant(None, "async", 15 * US), quick=True),
    _settling(_ASYNC_280, quick=True),
    _settling(Tenant(None, "sync", 280 * US), quick=True),
    _settling(Tenant(None, "async", MS)),
    _settling(Tenant(None, "async", 8 * MS)),
    _settling(Tenant(None, "graph", 15 * US)),
)


def _elastic(program: Tenant, *, quick: bool = False) -> Row:
    """Lend unused time up to the limit, and reclaim it when its owner has work."""
    step = max(1.0, 3 * settling_bound_ns(program) / SECOND_NS)
    tenant = dataclasses.replace(program, vcore=30, limit=80)
    owner = Tenant(60, "async", 280 * US, begin_s=step, end_s=2 * step)
    claims = (
        Settled(0, 80, 0, step),
        Settled(1, 60, step, 2 * step),
        Settled(0, 40, step, 2 * step, gives_back=True),
        Settled(0, 80, 2 * step, 3 * step),
    )
    name = f"30 that may have 80, then beside 60, then alone: {describe(program)}"
    scene = Scene((tenant, owner), 3 * step)
    return Row(name, "elastic", scene, claims, quick, laws=_laws(program, quick=quick))


ELASTIC = (
    _elastic(Tenant(None, "async", 15 * US)),
    _elastic(_ASYNC_280, quick=True),
    _elastic(Tenant(None, "sync", 280 * US), quick=True),
    _elastic(Tenant(None, "async", 8 * MS)),
)


def _of_laws(row: Row, *under: laws.Law) -> Row:
    """Try it where a governor that has today's law built in is wrong."""
    return dataclasses.replace(row, laws=tuple(law.name for law in under), quick=True)


OTHER_LAWS = (
    *(
        _of_laws(
            _together(f"30/60: {words}", Tenant(30, *left), Tenant(60, *right)),
            laws.SLICES,
            laws.H100,
        )
        for words, left, right in (
            ("both async 300 us", ("async", 300 * US), ("async", 300 * US)),
            ("async 3 ms, async 100 us", ("async", 3 * MS), ("async", 100 * US)),
            ("both async 1500 us", ("async", 1500 * US), ("async", 1500 * US)),
        )
    ),
    *(
        _of_laws(_solo(Tenant(None, "async", each * US), 50), laws.EVENTS, laws.H100)
        for each in (2, 5, 20)
    ),
)

ROWS = (
    *(_solo(program, cap) for program in PROGRAMS for cap in CAPS),
    *TOGETHER,
    *SETTLING,
    *ELASTIC,
    *OTHER_LAWS,
)
