"""A grant ends when its pod is surely over, and not because kubelet does not know better yet."""

import dataclasses

import pytest
from held_grants import grant

from pyvgpu.deviceplugin import endings, grants, ids, podresources, state

ONE = grant()
NAME = (ONE.owner.namespace, ONE.owner.pod)
BEGUN = 1000  # when each kubelet started


class Listed:
    namespace, name = NAME


def said(*, listed, written=True, life=1, at=BEGUN):
    """What a kubelet says of the one grant that there is; its checkpoint was written *at*."""
    listing = podresources.Listing(podresources.Life(0, life, BEGUN), (Listed,) if listed else ())
    entry = state.Entry(ONE.owner.uid, "c", ids.Kind.VCORE, ONE.vcore_ids, ONE.id)
    entries = state.Entries([entry] if written else [])
    entries.written = at
    return endings.Said(listing, entries)


@pytest.fixture
def now():
    return [1000.0]


@pytest.fixture
def used():
    """The grants that processes use."""
    return set()


@pytest.fixture
def fresh(now, used):
    """The endings of an agent that has just started."""
    return endings.Endings(lambda: now[0], used.__contains__)


@pytest.fixture
def known(fresh):
    """The endings as they are when a kubelet has listed the pod."""
    assert fresh.over([ONE], said(listed=True)) == []
    return fresh


def test_a_pod_that_its_kubelet_lists_no_more_is_over(known):
    assert known.over([ONE], said(listed=False)) == [ONE]


def test_a_new_kubelet_that_lists_nobody_yet_ends_nothing(known):
    for _ in range(3):
        assert known.over([ONE], said(listed=False, life=2)) == []
    assert known.over([ONE], said(listed=True, life=2)) == []
    assert known.over([ONE], said(listed=False, life=2)) == [ONE]


def test_whom_a_new_kubelet_does_not_list_the_api_server_is_asked_for(known):
    asked = []
    known.ask = lambda owner: asked.append(owner.uid) or len(asked) > 1
    assert known.over([ONE], said(listed=False, life=2)) == []
    assert known.over([ONE], said(listed=False, life=2)) == [ONE]
    assert asked == [ONE.owner.uid] * 2


def test_what_a_kubelet_had_written_and_has_not_any_more_is_over(known):
    assert known.over([ONE], said(listed=True, written=False)) == [ONE]


def lost(**more):
    """What a kubelet says that has lost its checkpoint."""
    return said(written=False, life=2, **more)


@pytest.mark.parametrize("listed", [False, True])
def test_what_a_new_kubelet_has_never_known_is_not_over(known, now, listed):
    known.ask = lambda owner: False
    for _ in range(3):
        assert known.over([ONE], lost(listed=listed)) == []
        now[0] += 100


def test_a_file_that_was_there_before_kubelet_is_not_what_it_knows(known):
    """It may be damaged: we could read it, and kubelet could not."""
    assert known.over([ONE], said(listed=True, life=2, at=BEGUN - 1)) == []
    assert known.over([ONE], lost(listed=True)) == []


def test_an_agent_that_starts_after_the_loss_ends_nothing(fresh):
    fresh.ask = lambda owner: False
    for listed in (False, True, True):
        assert fresh.over([ONE], lost(listed=listed)) == []
    assert fresh.over([ONE], lost(listed=False)) == [ONE]


def test_of_a_listed_pod_of_lost_devices_the_api_server_is_asked_now_and_then(known, now):
    """As of one that has ended and is not deleted, or another of its name."""
    answers, asked = [False, True], []
    known.ask = lambda owner: asked.append(now[0]) or answers.pop(0)
    found = []
    while not found:
        now[0] += 1
        found = known.over([ONE], lost(listed=True))
    assert found == [ONE]
    assert asked == [1001, 1031]


def test_where_nothing_else_can_say_so_a_grant_is_forgotten_when_unused(known, now, used):
    used.add(ONE.id)
    assert known.over([ONE], lost(listed=False)) == []
    now[0] += 61
    assert known.over([ONE], lost(listed=True)) == []
    again = endings.Endings(lambda: now[0], used.__contains__)
    assert again.over([ONE], lost(listed=False)) == []
    now[0] += 61
    assert again.over([ONE], lost(listed=False)) == []
    used.clear()
    assert again.over([ONE], said(listed=False, written=False, life=3)) == []  # anew
    now[0] += 61
    assert again.over([ONE], said(listed=False, written=False, life=3)) == [ONE]


STATIC = grants.Owner("b2f1" * 8, ONE.owner.namespace, ONE.owner.pod, ONE.owner.container)


def test_a_static_pod_of_which_the_api_server_has_no_mirror_is_forgotten(known, now):
    static = dataclasses.replace(ONE, owner=STATIC)
    known.ask = lambda owner: False
    assert known.over([static], lost(listed=False)) == []
    now[0] += 61
    assert known.over([static], lost(listed=False)) == [static]
    assert known.over([ONE], lost(listed=False)) == []


def test_whom_a_start_has_met_in_the_list_is_known_to_it(fresh):
    fresh.note(said(listed=True))
    assert fresh.over([ONE], said(listed=False)) == [ONE]


def test_who_was_bound_while_the_list_was_asked_for_is_not_forgotten(fresh):
    unbound = grants.Grant(ONE.id, ONE.vcore_ids, 1.0)
    before = said(listed=False)
    fresh.note(said(listed=True))  # a start, which binds it then
    assert fresh.over([unbound], before) == []
    fresh.keep([ONE])
    assert fresh.over([ONE], said(listed=False)) == [ONE]
    fresh.note(said(listed=True))
    fresh.keep([])
    assert fresh.over([ONE], said(listed=False)) == []


def test_what_an_old_kubelet_lists_late_is_not_taken_for_the_word_of_a_new_one(fresh):
    """A start is bound by the old kubelet's list while the API server is asked."""

    def ask(owner):
        fresh.note(said(listed=True))
        return False

    other = dataclasses.replace(ONE, id=f"{7:016x}")
    fresh.ask = ask
    assert fresh.over([ONE, other], said(listed=False, life=2)) == []
    assert fresh.dropped([ONE], said(listed=False, life=2)) == []


def test_a_grant_of_nobody_is_over_when_kubelet_has_not_written_it_for_a_minute(fresh, now):
    free = grants.Grant(ONE.id, ONE.vcore_ids, 1.0)
    for seconds, written, found in ((0, False, []), (60, False, []), (1, True, [])):
        now[0] += seconds
        assert fresh.over([free], said(listed=False, written=written)) == found
    for seconds, found in ((0, []), (61, [free])):
        now[0] += seconds
        assert fresh.over([free], said(listed=False, written=False)) == found


def test_what_processes_keep_waits_for_nothing_else(fresh):
    assert fresh.over([ONE.ended()], said(listed=True)) == [ONE.ended()]
