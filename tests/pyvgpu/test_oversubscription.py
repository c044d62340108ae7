"""Policy of oversubscription, on a model of a device with a clock of its own."""

# ruff: noqa: E501 - rows of a table

import dataclasses
import itertools
import math
import random

import pytest
from oversubscription_model import Model, Program

from pyvgpu import errors, oversubscription, quota
from pyvgpu.oversubscription import MovableTenant, Move, MoveAction, MoveRules, Pool, TenantState

GIB = 1 << 30
POOL = Pool(80 * GIB, 100)
RULES = MoveRules(idle_seconds=10, slice_seconds=100, moves_per_minute=6)
LOW, NORMAL, HIGH = quota.Priority.LOW, quota.Priority.NORMAL, quota.Priority.HIGH


def tenant(key, gib, state, since=0.0, **fields):
    fields = {"vcore": 0, "rules": RULES, **fields}
    return MovableTenant(key=key, memory=gib * GIB, state=state, since=since, **fields)


def running(key, gib=40, **fields):
    return tenant(key, gib, TenantState.RUNNING, **fields)


def waiting(key, gib=40, wanted=0.0, **fields):
    return tenant(key, gib, TenantState.SUSPENDED, wanted=wanted, **fields)


def new(key, gib=40, wanted=0.0, **fields):
    return waiting(key, gib, wanted, is_new=True, **fields)


def decided(*tenants, now, pool=POOL):
    moves = {
        oversubscription.decide(pool, order, now) for order in itertools.permutations(tenants)
    }
    assert len(moves) == 1, "the order of the tenants matters"
    return moves.pop()


@pytest.mark.parametrize(
    ("tenants", "now", "move"),
    [
        pytest.param([running("a"), new("n")], 0, ("resume", "n"), id="there is room"),
        pytest.param([running("a", worked=99), running("b"), new("n")], 100, ("suspend", "b"), id="an idle one makes room"),
        pytest.param([running("a", worked=95), running("b", worked=99), new("n")], 100, None, id="a start displaces none that works"),
        pytest.param([running("a", since=95), running("b", since=95), new("n")], 100, None, id="one that was just resumed is not idle"),
        pytest.param([running("a", worked=80), running("b", worked=70), new("n")], 100, ("suspend", "b"), id="longest idle first"),
        pytest.param([running("a", worked=80, priority=LOW), running("b", worked=70), new("n")], 100, ("suspend", "a"), id="low priority first"),
        pytest.param([running("a", worked=99), running("b", 30), new("n", 50)], 100, None, id="none is suspended in vain"),
        pytest.param([running("a", worked=99), running("b", worked=99), waiting("w")], 99, None, id="a slice is not over"),
        pytest.param([running("a", worked=100), running("b", 40, since=1, worked=100), waiting("w")], 100, ("suspend", "a"), id="a slice is over"),
        pytest.param([running("a", worked=99), running("b", 40, worked=85), waiting("w")], 100, ("suspend", "b"), id="idle ones before the end of slices"),
        pytest.param([running("a", 80, worked=199, priority=HIGH), waiting("w", 40)], 199, None, id="a higher level has two slices"),
        pytest.param([running("a", 80, worked=200, priority=HIGH), waiting("w", 40)], 200, ("suspend", "a"), id="a higher level has an end"),
        pytest.param([running("a", 80, worked=149, weight=3), waiting("w", 40, weight=1)], 149, None, id="a slice grows with the weight"),
        pytest.param([running("a", 80, worked=150, weight=3), waiting("w", 40, weight=1)], 150, ("suspend", "a"), id="a slice of this weight is over"),
        pytest.param([running("a", 80, worked=499, move_seconds=50), waiting("w")], 499, None, id="a slice is long beside its moves"),
        pytest.param([waiting("x", 60, wanted=5), waiting("w", 60, wanted=4)], 10, ("resume", "w"), id="first come"),
        pytest.param([waiting("x", 60, wanted=90, priority=HIGH), waiting("w", 60, wanted=0)], 91, ("resume", "x"), id="a level is a slice of waiting"),
        pytest.param([waiting("x", 60, wanted=101, priority=HIGH), waiting("w", 60, wanted=0)], 102, ("resume", "w"), id="and no more than that"),
        pytest.param([running("a", 40, worked=50), waiting("w", 60, wanted=1), waiting("x", 10, wanted=2)], 55, ("resume", "x"), id="a small one passes"),
        pytest.param([running("a", 40, worked=199, since=120), waiting("w", 60, wanted=1), waiting("x", 10, wanted=2)], 200, None, id="but not for ever"),
        pytest.param([running("a", refused_until=101), running("b", worked=99), new("n")], 100, None, id="one that was refused is left alone"),
        pytest.param([running("a"), tenant("m", 40, TenantState.MOVING, since=90), new("n", 10)], 100, None, id="one move at a time"),
        pytest.param([running("a"), tenant("m", 40, TenantState.MOVING, since=-201), new("n", 10)], 100, ("suspend", "a"), id="a hanging move holds up none"),
        pytest.param([running("a", moves=(50.0,) * 6), running("b", worked=99), new("n")], 100, None, id="the bound of moves"),
        pytest.param([running("a", moves=(39.0,) * 6), running("b", worked=99), new("n")], 100, ("suspend", "a"), id="moves of a minute ago"),
        pytest.param([running("a"), running("b", worked=99), waiting("w", moves=(50.0,) * 5)], 95, None, id="both moves must be allowed"),
        pytest.param([tenant("s", 40, TenantState.SUSPENDED, since=91)], 100, None, id="not wanted and just suspended"),
        pytest.param([tenant("s", 40, TenantState.SUSPENDED, since=90)], 100, ("resume", "s"), id="its room is not needed"),
        pytest.param([running("a", 80, worked=1000), tenant("s", 40, TenantState.SUSPENDED)], 1001, None, id="presumed demand displaces no work"),
        pytest.param([running("a", 80, worked=980), tenant("s", 40, TenantState.SUSPENDED)], 999, None, id="no demand is presumed yet"),
        pytest.param([running("a", 80, worked=980), tenant("s", 40, TenantState.SUSPENDED)], 1000, ("suspend", "a"), id="demand is presumed"),
        pytest.param([running("a", 10, vcore=60), waiting("w", 10, vcore=50)], 50, ("suspend", "a"), id="time is reserved, too"),
        pytest.param([running("a", 10, vcore=0), running("b", 10, vcore=60, worked=1), waiting("w", 10, vcore=50)], 50, ("suspend", "b"), id="a tenant without time frees none"),
    ],
)  # fmt: skip
def test_decide(tenants, now, move):
    found = decided(*tenants, now=now)
    assert (found and (found.action.value, found.key)) == move


def test_a_change_of_more_moves_than_the_bound_waits_for_a_quiet_minute():
    rules = MoveRules(10, 100, moves_per_minute=2)
    idle = [running(name, 20, rules=rules) for name in "abcd"]
    big = waiting("w", 80, wanted=50, rules=rules)
    assert decided(*idle, big, now=100).action is MoveAction.SUSPEND
    idle[0] = dataclasses.replace(idle[0], moves=(60.0,))
    assert decided(*idle, big, now=100) is None
    assert decided(*idle, big, now=120) == Move(MoveAction.SUSPEND, "a", "w")


@pytest.mark.parametrize(
    ("memory", "vcore", "ratio", "fits"),
    [
        pytest.param(80, 0, 2.0, True, id="up to the ratio"),
        pytest.param(81, 0, 3.0, False, id="more than the device"),
        pytest.param(80, 0, 1.9, False, id="memory above the ratio"),
        pytest.param(10, 50, 1.4, True, id="time up to the ratio"),
        pytest.param(10, 51, 1.4, False, id="time above the ratio"),
    ],
)
def test_admission(memory, vcore, ratio, fits):
    others = [running("a", 40, vcore=50), waiting("b", 40, vcore=40)]
    assert oversubscription.admits(POOL, others, memory * GIB, vcore, ratio) is fits


@pytest.mark.parametrize(
    "fields",
    [
        {"idle_seconds": 0.5},
        {"slice_seconds": math.nan},
        {"slice_seconds": math.inf},
        {"moves_per_minute": 0},
    ],
)
def test_rules_out_of_range_are_refused(fields):
    with pytest.raises(errors.UsageError, match="must be"):
        MoveRules(**fields)


# --- on the model -------------------------------------------------------------------------------


def most_in_a_minute(times):
    return max((sum(at <= x < at + 60 for x in times) for at in times), default=0)


@pytest.mark.parametrize("seed", range(24))
def test_invariants_hold_for_random_programs(seed):
    pick = random.Random(seed)
    rules = MoveRules(pick.choice([5, 20]), pick.choice([30, 100]), pick.choice([4, 6, 20]))
    programs = [
        Program(
            new(
                f"t{i}",
                pick.choice([10, 20, 40, 80]),
                priority=pick.choice([LOW, NORMAL, HIGH]),
                weight=pick.choice([1.0, 2.0, 5.0]),
                vcore=pick.choice([0, 10, 50]),
                rules=rules,
            ),
            pick.choice([1, 10, 1000000]),
            pick.choice([1, 50, 500]),
        )
        for i in range(pick.randint(2, 9))
    ]
    model = Model(POOL, programs)
    for _ in range(1500):
        model.step()
    # A change may need more moves than the bound: then it began in a quiet minute.
    assert most_in_a_minute(model.log) <= max(rules.moves_per_minute, len(programs) + 1)


@pytest.mark.slow
def test_every_set_of_three_tenants_that_always_work_takes_turns_without_starving():
    sizes, priorities = (30, 50, 80), (LOW, NORMAL, HIGH)
    for held in itertools.combinations_with_replacement(sizes, 3):
        for levels in itertools.product(priorities, repeat=3):
            programs = [
                Program(running(f"t{i}", gib) if not i else waiting(f"t{i}", gib), 1e9, 1)
                for i, gib in enumerate(held)
            ]
            for program, level in zip(programs, levels, strict=True):
                program.tenant = dataclasses.replace(program.tenant, priority=level)
            model = Model(POOL, programs)
            for _ in range(900):
                model.step()
            for program in programs:
                assert program.had > 60, (held, levels, [x.had for x in programs])


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 3.0)])
def test_turns_are_fair_by_share(weights):
    programs = [
        Program(waiting(f"t{i}", 60, weight=weight), 1e9, 1) for i, weight in enumerate(weights)
    ]
    model = Model(POOL, programs)
    for _ in range(5000):
        model.step()
    assert programs[1].had / programs[0].had == pytest.approx(weights[1] / weights[0], rel=0.1)


def test_two_tenants_larger_than_half_the_device_lose_a_tenth_at_most():
    programs = [Program(waiting(f"t{i}", 60, move_seconds=30), 1e9, 1) for i in range(2)]
    for program in programs:
        program.tenant = dataclasses.replace(program.tenant, rules=MoveRules(5, 20, 1000))
    model = Model(POOL, programs, suspend_seconds=15, resume_seconds=15)
    for _ in range(5000):
        model.step()
    assert sum(x.had for x in programs) > 0.89 * 5000


def test_idle_notebooks_do_not_move_without_need():
    programs = [Program(running(f"t{i}", 20), 1, 300) for i in range(4)]
    model = Model(POOL, programs)
    for _ in range(5000):
        model.step()
    assert model.log == []
