"""A grant ends only when its pod is certainly over, not because kubelet has lost its state."""

import dataclasses

import pytest
from held_grants import grant

from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.grants import lifecycle
from pyvgpu.deviceplugin.kubelet import checkpoint_file, device_ids, pod_resources

ONE = grant()
NAME = (ONE.owner.namespace, ONE.owner.pod)
BEGUN = 1000  # when each kubelet started


class Listed:
    namespace, name = NAME


def said(*, listed, written=True, life=1, at=BEGUN):
    """A kubelet's state of the only grant; its checkpoint was written *at*."""
    listing = pod_resources.Listing(
        pod_resources.Life(0, life, BEGUN), (Listed,) if listed else ()
    )
    entry = checkpoint_file.CheckpointEntry(
        ONE.owner.uid, "c", device_ids.ResourceKind.VCORE, ONE.vcore_ids, ONE.id
    )
    entries = checkpoint_file.Entries([entry] if written else [])
    entries.written = at
    return lifecycle.KubeletState(listing, entries)


@pytest.fixture
def now():
    return [1000.0]


@pytest.fixture
def used():
    """The grants in use by processes."""
    return set()


@pytest.fixture
def fresh(now, used):
    """The endings of an agent that has just started."""
    return lifecycle.Endings(lambda: now[0], used.__contains__)


@pytest.fixture
def asking(now, used):
    """Returns the endings of an agent that asks the API server by this function."""
    return lambda is_over: lifecycle.Endings(lambda: now[0], used.__contains__, is_over)


def listed_once(fresh):
    """The endings after a kubelet has listed the pod."""
    assert fresh.over([ONE], said(listed=True)) == []
    return fresh


@pytest.fixture
def known(fresh):
    return listed_once(fresh)


def test_pod_no_longer_listed_by_its_kubelet_is_over(known):
    assert known.over([ONE], said(listed=False)) == [ONE]


def test_restarted_kubelet_with_an_empty_list_ends_nothing(known):
    for _ in range(3):
        assert known.over([ONE], said(listed=False, life=2)) == []
    assert known.over([ONE], said(listed=True, life=2)) == []
    assert known.over([ONE], said(listed=False, life=2)) == [ONE]


def test_api_server_decides_on_pods_a_new_kubelet_does_not_list(asking):
    asked = []
    known = listed_once(asking(lambda owner: asked.append(owner.uid) or len(asked) > 1))
    assert known.over([ONE], said(listed=False, life=2)) == []
    assert known.over([ONE], said(listed=False, life=2)) == [ONE]
    assert asked == [ONE.owner.uid] * 2


def test_grant_removed_from_kubelets_checkpoint_is_over(known):
    assert known.over([ONE], said(listed=True, written=False)) == [ONE]


def lost(**more):
    """The state of a kubelet that has lost its checkpoint."""
    return said(written=False, life=2, **more)


@pytest.mark.parametrize("listed", [False, True])
def test_grant_never_known_to_a_new_kubelet_is_not_over(asking, now, listed):
    known = listed_once(asking(lambda owner: False))
    for _ in range(3):
        assert known.over([ONE], lost(listed=listed)) == []
        now[0] += 100


def test_checkpoint_older_than_kubelet_does_not_count(known):
    """It may be damaged, so that kubelet could not read it although the agent could."""
    assert known.over([ONE], said(listed=True, life=2, at=BEGUN - 1)) == []
    assert known.over([ONE], lost(listed=True)) == []


def test_new_agent_after_a_lost_checkpoint_ends_nothing(asking):
    fresh = asking(lambda owner: False)
    for listed in (False, True, True):
        assert fresh.over([ONE], lost(listed=listed)) == []
    assert fresh.over([ONE], lost(listed=False)) == [ONE]


def test_listed_pod_with_lost_devices_is_queried_periodically(asking, now):
    """The pod may have ended without being deleted, or be another of its name."""
    answers, asked = [False, True], []
    known = listed_once(asking(lambda owner: asked.append(now[0]) or answers.pop(0)))
    found = []
    while not found:
        now[0] += 1
        found = known.over([ONE], lost(listed=True))
    assert found == [ONE]
    assert asked == [1001, 1031]


def test_unused_grant_ends_after_a_while_without_api_server(known, now, used):
    used.add(ONE.id)
    assert known.over([ONE], lost(listed=False)) == []
    now[0] += 61
    assert known.over([ONE], lost(listed=True)) == []
    again = lifecycle.Endings(lambda: now[0], used.__contains__)
    assert again.over([ONE], lost(listed=False)) == []
    now[0] += 61
    assert again.over([ONE], lost(listed=False)) == []
    used.clear()
    assert again.over([ONE], said(listed=False, written=False, life=3)) == []  # a new deadline
    now[0] += 61
    assert again.over([ONE], said(listed=False, written=False, life=3)) == [ONE]


STATIC = grants.Owner("b2f1" * 8, ONE.owner.namespace, ONE.owner.pod, ONE.owner.container)


def test_static_pod_without_mirror_ends_after_a_while(asking, now):
    static = dataclasses.replace(ONE, owner=STATIC)
    known = listed_once(asking(lambda owner: False))
    assert known.over([static], lost(listed=False)) == []
    now[0] += 61
    assert known.over([static], lost(listed=False)) == [static]
    assert known.over([ONE], lost(listed=False)) == []


def test_pods_listed_at_a_start_are_recorded(fresh):
    fresh.note(said(listed=True))
    assert fresh.over([ONE], said(listed=False)) == [ONE]


def test_pod_bound_during_the_listing_is_kept(fresh):
    unbound = grants.Grant(ONE.id, ONE.vcore_ids, 1.0)
    before = said(listed=False)
    fresh.note(said(listed=True))  # a start, which then binds it
    assert fresh.over([unbound], before) == []
    fresh.keep([ONE])
    assert fresh.over([ONE], said(listed=False)) == [ONE]
    fresh.note(said(listed=True))
    fresh.keep([])
    assert fresh.over([ONE], said(listed=False)) == []


def test_late_list_of_an_old_kubelet_does_not_count_for_a_new_one(asking):
    """A start is bound with the old kubelet's list during a request to the API server."""

    def is_over(owner):
        fresh.note(said(listed=True))
        return False

    other = dataclasses.replace(ONE, id=f"{7:016x}")
    fresh = asking(is_over)
    assert fresh.over([ONE, other], said(listed=False, life=2)) == []
    assert fresh.dropped([ONE], said(listed=False, life=2)) == []


def test_unbound_grant_unknown_to_kubelet_ends_after_a_minute(fresh, now):
    free = grants.Grant(ONE.id, ONE.vcore_ids, 1.0)
    for seconds, written, found in ((0, False, []), (60, False, []), (1, True, [])):
        now[0] += seconds
        assert fresh.over([free], said(listed=False, written=written)) == found
    for seconds, found in ((0, []), (61, [free])):
        now[0] += seconds
        assert fresh.over([free], said(listed=False, written=False)) == found


def test_revoked_grant_ends_with_its_processes(fresh):
    assert fresh.over([ONE.ended()], said(listed=True)) == [ONE.ended()]
