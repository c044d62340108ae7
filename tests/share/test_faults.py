"""A share is kept, and nothing hangs, whatever happens to those who share the device.

The scenes are those of `make bench-share` (benchmarks/stage.py): the shim, the simulated driver
and the arbiter as they are, by a clock that other load on this computer does not touch. What each
has had of the device is the simulator's own account.
"""

import random
import signal

import laws
import pytest
import scores
import stage
from stage import ARBITER, Event, Scene, Tenant

US, MS = 1_000, 1_000_000
SECOND = 1000 * MS
POINTS = 5  # percent of the device, by which a share may be off
CROWD_POINTS = 10  # the same for programs with more streams than are followed, beside others


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def play(cache):
    def run(tenants, seconds, *events, **options):
        return stage.play(Scene(tuple(tenants), seconds, events, **options), cache)

    return run


def share(trace, tenant, begin_s, end_s):
    return scores.of(trace, tenant).share(begin_s * SECOND, end_s * SECOND)


def most(trace, tenant, begin_s=0.0, window_s=1.0):
    """Return the most that a tenant has had in any window."""
    had = scores.of(trace, tenant)
    begins = range(round(begin_s * SECOND), trace.at_ns[-1] - round(window_s * SECOND), 50 * MS)
    return max(had.share(begin, begin + window_s * SECOND) for begin in begins)


def near(share, points=POINTS):
    return pytest.approx(share, abs=points)


PAIR = (Tenant(40, "async", 280 * US, processes=2), Tenant(30, "async", MS))


def test_a_process_that_is_stopped_takes_nothing_from_anybody(play):
    trace = play(
        PAIR,
        3,
        Event(1, "signal", 0, signal.SIGSTOP),
        Event(2, "signal", 0, signal.SIGCONT),
    )
    for begin in (0.5, 1.2, 2.2):
        assert share(trace, 0, begin, begin + 0.5) == near(40)
        assert share(trace, 1, begin, begin + 0.5) == near(30)
    assert most(trace, 0) <= 40 + POINTS
    assert most(trace, 1) <= 30 + POINTS


def test_an_arbiter_that_is_stopped_changes_nothing_that_is_certain(play):
    trace = play(
        PAIR,
        4,
        Event(1, "signal", ARBITER, signal.SIGSTOP),
        Event(3, "signal", ARBITER, signal.SIGCONT),
    )
    for begin in (0.5, 3.4):
        assert share(trace, 0, begin, begin + 0.5) == near(40)
        assert share(trace, 1, begin, begin + 0.5) == near(30)
    assert share(trace, 0, 1.5, 3) == near(40)
    assert share(trace, 1, 1.5, 3) == near(30)


@pytest.mark.parametrize("at", [-0.3, 1], ids=["before", "later"])
@pytest.mark.parametrize("length", [300 * US, 3 * MS])
@pytest.mark.parametrize("kind", ["uneven", "turning"])
def test_without_an_arbiter_several_streams_of_any_length_have_no_more(play, kind, length, at):
    """What others had meanwhile is not known then, and counts as their own."""
    stopped = Event(at, "signal", ARBITER, signal.SIGSTOP)
    trace = play((Tenant(40, kind, length),), 3, stopped)
    assert share(trace, 0, 1.5, 3) == near(40)
    trace = play((Tenant(40, kind, length), Tenant(30, "async", MS)), 3, stopped)
    # It pays for all of the time in which it has work, of which it may have half.
    assert 20 - POINTS <= share(trace, 0, 1.5, 3) <= 40 + POINTS
    assert share(trace, 1, 1.5, 3) == near(30)


def lied_to(play, lie, seconds=5):
    """Play two seconds in which every clock is a lie, and then the truth."""
    lies = [
        Event(1 + number / 100, "lie", tenant, lie) for number in range(200) for tenant in (0, 1)
    ]
    return play(PAIR, seconds, Event(1, "kill", ARBITER), *lies, Event(3, "start", ARBITER))


@pytest.mark.parametrize("lie", ["alone", "crowded", "lends", "ahead", "noise"])
def test_an_arbiter_that_lies_gives_nobody_more(play, lie):
    trace = lied_to(play, lie)
    for tenant, vcore in enumerate((40, 30)):
        assert most(trace, tenant) <= vcore + POINTS
        for begin, end in ((1.5, 3), (3.5, 5)):  # what was measured wrong is measured again
            assert vcore / 2 <= share(trace, tenant, begin, end)


def test_whoever_is_killed_shares_are_right_again_in_a_second(play):
    chance = random.Random(5)
    moments = [1 + 2.5 * number for number in range(8)]
    victims = [0, 0, 1, 1, ARBITER, ARBITER, 0, 1]
    chance.shuffle(victims)
    events = [Event(at, "kill", victim, 1) for at, victim in zip(moments, victims, strict=True)]
    trace = play(PAIR, moments[-1] + 2.5, *events)
    for at in moments:
        assert share(trace, 0, at + 1, at + 2.4) == near(40), events
        assert share(trace, 1, at + 1, at + 2.4) == near(30), events
    assert most(trace, 0) <= 40 + POINTS
    assert most(trace, 1) <= 30 + POINTS


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(["cuEventCreate"], id="create"),
        pytest.param(["cuEventRecord", "cuEventRecord_ptsz"], id="record"),
        pytest.param(["cuEventQuery"], id="query"),
        pytest.param(["cuEventElapsedTime", "cuEventElapsedTime_v2"], id="elapsed"),
        pytest.param(["cuEventSynchronize"], id="synchronize"),
    ],
)
@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("since_s", [0, 1], ids=["always", "later"])
def test_a_driver_whose_events_fail_gives_nobody_more(play, calls, kind, since_s):
    faults = "\n".join(f"call {name} * 999" for name in calls)
    trace = play((Tenant(40, kind, MS),), 3, Event(since_s, "faults", value=faults))
    assert 3 <= share(trace, 0, 1.5, 3) <= 40 + POINTS
    assert most(trace, 0, 0.2) <= 40 + POINTS


def test_an_estimate_that_is_wrong_by_a_hundred_is_paid_back(play):
    """One kernel and grid takes 15 us and 1.5 ms in turn: what was too cheap is owed."""
    trace = play((Tenant(40, "changing", 15 * US),), 11)
    assert share(trace, 0, 0, 11) == near(40)
    for turn in range(11):
        assert share(trace, 0, turn, turn + 1) == near(40)
        steps = [share(trace, 0, turn + n / 10, turn + (n + 1) / 10) for n in range(10)]
        # What was given to the device before it changed goes on, for 150 launches at most. While
        # it is learnt again how short launches are, too much is taken for some, and given back.
        assert sum(step > 40 + 3 * POINTS for step in steps) <= 3, steps
        assert sum(step > 40 + POINTS for step in steps) <= 5, steps


@pytest.mark.parametrize("length", [15 * US, 280 * US, MS, 8 * MS])
@pytest.mark.parametrize("beside", [(), (Tenant(30, "async", MS),)], ids=["alone", "beside"])
def test_four_thousand_streams_have_what_one_has(play, beside, length):
    trace = play((Tenant(40, "crowd", length), *beside), 5)
    for begin in range(1, 5):
        assert share(trace, 0, begin, begin + 1) == near(40, CROWD_POINTS if beside else POINTS)
        for number, other in enumerate(beside, 1):
            assert share(trace, number, begin, begin + 1) == near(other.vcore)


@pytest.mark.parametrize("law", [laws.TODAY, laws.EVENTS], ids=lambda law: law.name)
@pytest.mark.parametrize("vcore", [25, 50, 90])
def test_kernels_that_are_as_short_as_a_launch_have_their_share(play, law, vcore):
    """The device waits for each, so marks take about as long to set as to pass."""
    trace = play((Tenant(vcore, "async", 2 * US),), 3, law=law)
    for begin in (1, 2):
        assert share(trace, 0, begin, begin + 1) == near(vcore, 2)


def test_thousands_of_streams_of_what_is_short_have_it_whenever_they_begin(play):
    """They are met beside others, with their turns in what they seem to take: it is another start
    each time."""
    for _ in range(12):
        trace = play((Tenant(40, "crowd", 15 * US), Tenant(30, "async", MS)), 3)
        for begin in (1, 2):
            assert share(trace, 0, begin, begin + 1) == near(40, CROWD_POINTS)
            assert share(trace, 1, begin, begin + 1) == near(30)


@pytest.mark.parametrize("length", [300 * US, 3 * MS])
@pytest.mark.parametrize("kind", ["uneven", "turning"])
def test_one_kernel_of_any_length_in_several_streams_has_its_share(play, kind, length):
    trace = play((Tenant(40, kind, length),), 3)
    for begin in (1, 2):
        assert share(trace, 0, begin, begin + 1) == near(40)


@pytest.mark.parametrize("length", [300 * US, 3 * MS])
def test_one_kernel_of_any_length_in_thousands_of_streams_has_it_over_some_seconds(play, length):
    """Most of its streams are not followed, and what it has in flight may be worth a third of a
    second: it is begun in bursts, and paid off."""
    trace = play((Tenant(40, "unevencrowd", length),), 7)
    assert share(trace, 0, 1, 7) == near(40, 2 * CROWD_POINTS)


@pytest.mark.parametrize("kind", ["invalid", "forking"])
def test_a_program_that_does_odd_things_has_its_share(play, kind):
    trace = play((Tenant(40, kind, 280 * US), Tenant(30, "async", MS)), 2.5)
    assert share(trace, 0, 1, 2.4) == near(40)
    assert share(trace, 1, 1, 2.4) == near(30)
    if kind == "forking":
        assert trace.programs[0][0]["forks"] > 0


@pytest.mark.parametrize("value", [0, 1, 255])
def test_limits_that_are_nonsense_are_not_taken(play, value):
    trace = play((Tenant(40, "async", 280 * US),), 2, Event(1, "nonsense", 0, value))
    assert share(trace, 0, 0.5, 1) == near(40)
    assert share(trace, 0, 1.1, 2) == near(40)


def test_a_vcore_that_changes_a_thousand_times_a_second_is_its_mean_and_then_its_last(play):
    chance = random.Random(5)
    changes = [Event(1 + n / 1000, "vcore", 0, chance.choice((20, 60))) for n in range(1000)]
    trace = play((Tenant(30, "async", 280 * US),), 3, *changes, Event(2, "vcore", 0, 25))
    assert share(trace, 0, 1.1, 2) == near(40)
    assert share(trace, 0, 2.1, 3) == near(25)


def test_nothing_is_made_up_for_after_all_slept(play):
    """As when a whole machine is suspended: CLOCK_MONOTONIC goes on for nobody's work."""
    trace = play(
        PAIR,
        5,
        Event(1, "signal_all", value=signal.SIGSTOP),
        Event(3, "signal_all", value=signal.SIGCONT),
    )
    assert share(trace, 0, 1.1, 2.9) < 1
    assert most(trace, 0, 3) <= 40 + POINTS
    assert most(trace, 1, 3) <= 30 + POINTS
    assert share(trace, 0, 4, 5) == near(40)
    assert share(trace, 1, 4, 5) == near(30)


def test_a_clock_that_leaps_gives_nobody_more(play):
    trace = play(PAIR, 14, Event(1, "leap", value=10))
    assert share(trace, 0, 11.2, 14) == near(40)
    assert share(trace, 1, 11.2, 14) == near(30)
    assert most(trace, 0, 11.0) <= 40 + POINTS


def test_what_time_it_is_does_not_matter(play):
    trace = play(PAIR, 3, Event(1, "step", value=-3600), Event(2, "step", value=7200))
    for begin in (0.5, 1.2, 2.2):
        assert share(trace, 0, begin, begin + 0.5) == near(40)
        assert share(trace, 1, begin, begin + 0.5) == near(30)
