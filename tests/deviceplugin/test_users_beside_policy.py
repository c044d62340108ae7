"""The policy of oversubscription and the users of pods want different things, in any order."""

import dataclasses

import pytest
from held_grants import UNIT, UUID, grant

from pyvgpu import names, region
from pyvgpu.allocator import datatypes, suspensions
from pyvgpu.deviceplugin import agent_settings, grants
from pyvgpu.deviceplugin.grants import placement
from pyvgpu.deviceplugin.suspension import pod_oversubscriber
from pyvgpu.oversubscription import MoveAction, MoveRules

RUNNING, KEPT = region.Suspension(), region.Suspension(True, True, True)
RELEASED = region.Suspension(True, True)
SLICE = 100.0


def id_of(uid):
    """Return the id of a pod's only grant."""
    return uid.encode().hex().rjust(16, "0")


class Quotas:
    """The quotas of grants, whose programs always work."""

    def __init__(self):
        self.marks = {}
        self.used = set()  # by processes

    def suspension(self, grant_id):
        return self.marks.get(grant_id, RUNNING)

    def mark(self, grant_id, mark):
        self.marks[grant_id] = mark

    def opened(self, *_):
        raise FileNotFoundError("usage")

    def renew(self, grant_id):
        """Nothing notes calls."""

    def is_used(self, grant_id):
        return grant_id in self.used


class Node:
    """A device for one of its pods at a time, and the policy of an agent."""

    def __init__(self, folder, reservable=200, wait_seconds=0.0):
        self.folder, self.wait_seconds = folder, wait_seconds
        self.device = datatypes.NodeDevice(UUID.format(0), 0, 320 * UNIT, reservable=reservable)
        self.now, self.quotas, self.grants, self.metadata = 1000.0, Quotas(), {}, {}
        self.agent()
        self.policy.poll()

    def agent(self):
        """Start the policy of an agent."""
        rules = MoveRules(slice_seconds=SLICE)
        self.policy = pod_oversubscriber.PodOversubscriber(
            pod_oversubscriber.Node(
                self.quotas,
                lambda: self.grants,
                lambda: (self.device,),
                self.metadata.get,
                self.folder / "tenants",
                UNIT,
            ),
            agent_settings.Oversubscription(2.0, rules, self.wait_seconds),
            clock=lambda: self.now,
        )

    def place(self, uid, **metadata):
        """Let kubelet admit a pod."""
        self.grants[uid] = dataclasses.replace(
            grant(60, 200), id=id_of(uid), owner=grants.Owner(uid, "team", uid, "main")
        )
        self.metadata[uid] = {"annotations": {}, **metadata}

    def starts(self, uid):
        """Let kubelet start its container; return whether it may start now."""
        try:
            self.policy.admit([self.grants[uid]])
        except placement.WaitsError:
            return False
        self.quotas.used.add(id_of(uid))
        return True

    def annotate(self, uid, value):
        """Set the annotation of its user, or remove it (None)."""
        notes = {} if value is None else {names.SUSPEND_ANNOTATION: value}
        self.metadata[uid] = {**self.metadata[uid], "annotations": notes}

    def moved(self, uid, mark, *, by_user=False):
        """End a move of it, as the pod suspender does."""
        self.quotas.mark(id_of(uid), mark)
        action = MoveAction.SUSPEND if mark.gated else MoveAction.RESUME
        self.policy.ended(uid, action, "", by_user=by_user)

    def after(self, seconds):
        """Decide so many seconds later."""
        self.now += seconds
        self.policy.poll()


@pytest.fixture(name="node")
def fixture_node(tmp_path):
    made = Node(tmp_path)
    for uid in ("a", "b"):
        made.place(uid)
    return made


@pytest.fixture(name="turns")
def fixture_turns(node):
    """*a* wants to go on after its user suspended it, and *b* has its room."""
    assert node.starts("a")
    node.annotate("a", suspensions.RELEASE)
    node.moved("a", RELEASED, by_user=True)
    assert node.starts("b")
    node.annotate("a", None)
    node.after(SLICE / 2)
    assert not node.policy.wants_suspended("b")
    return node


def test_user_suspends_a_pod_that_the_policy_has_just_chosen(turns):
    turns.after(SLICE)
    assert turns.policy.wants_suspended("b")
    turns.annotate("b", suspensions.KEEP)
    turns.moved("b", KEPT, by_user=True)
    turns.after(1)
    assert turns.policy.wants_suspended("a")  # the room is kept
    turns.annotate("b", None)
    assert not turns.policy.wants_suspended("b")
    turns.moved("b", RUNNING)
    turns.after(SLICE + 1)
    assert turns.policy.wants_suspended("b")  # and now its slice is over


def test_user_suspends_a_pod_again_that_the_policy_just_resumes(turns):
    turns.after(SLICE)
    turns.moved("b", RELEASED)
    turns.after(1)
    assert not turns.policy.wants_suspended("a")
    turns.annotate("a", suspensions.RELEASE)  # before the move began
    turns.policy.held("a")
    turns.annotate("b", suspensions.NEVER)
    turns.after(1)
    assert not turns.policy.wants_suspended("b")
    turns.moved("b", RUNNING)
    turns.annotate("a", None)
    turns.after(1)
    assert turns.policy.wants_suspended("a")  # until there is room
    del turns.grants["b"]
    turns.after(1)
    assert not turns.policy.wants_suspended("a")


def test_pod_that_its_user_suspends_and_resumes_goes_on_although_the_policy_had_suspended_it(
    turns,
):
    turns.after(SLICE)
    turns.moved("b", RELEASED)
    turns.after(1)
    turns.moved("a", RUNNING)
    turns.after(1)
    assert turns.policy.wants_suspended("b")  # it has no known demand
    turns.annotate("b", suspensions.RELEASE)
    turns.policy.held("b")
    turns.after(SLICE)
    turns.annotate("b", None)
    turns.after(1)
    assert turns.policy.wants_suspended("a")
    turns.moved("a", RELEASED)
    turns.after(1)
    assert not turns.policy.wants_suspended("b")


@pytest.mark.parametrize("value", [suspensions.KEEP, suspensions.RELEASE])
def test_pod_that_shall_be_suspended_from_the_beginning_needs_room_first(node, value):
    reported = []
    node.policy.changed.add(reported.append)
    for uid in ("a", "b"):
        node.annotate(uid, value)
        assert node.policy.is_waiting(uid)
    assert node.starts("a")
    assert reported == ["a"]  # so that it is suspended before its program begins
    assert not node.policy.is_waiting("a")
    assert not node.starts("b")
    assert node.policy.is_waiting("b")
    node.moved("a", KEPT, by_user=True)
    assert not node.starts("b")
    del node.grants["a"]
    node.policy.poll()
    assert node.starts("b")
    assert not node.policy.is_waiting("b")
    assert not node.policy.is_waiting("c")  # unknown


def test_pod_with_an_owner_waits_for_a_bounded_time(tmp_path):
    node = Node(tmp_path, wait_seconds=600.0)
    node.place("a")
    node.place("bare")
    node.place("owned", ownerReferences=[{"kind": "ReplicaSet", "name": "r"}])
    assert node.starts("a")
    assert [node.starts(uid) for uid in ("bare", "owned")] == [False, False]
    node.now += 599
    assert not node.starts("owned")
    node.now += 1
    assert not node.starts("bare")
    with pytest.raises(
        placement.RefusedError, match=r"within 600 s \(--oversubscribe-wait\)"
    ) as x:
        node.policy.admit([node.grants["owned"]])
    assert x.value.final


def test_device_stays_in_the_policys_hands_after_its_ratio_was_lowered(turns):
    turns.place("late")
    assert not turns.starts("late")
    turns.device = dataclasses.replace(turns.device, reservable=100)
    turns.agent()
    assert turns.policy.wants_suspended("a")
    assert not turns.starts("late")
    assert not turns.starts("a")  # a container of it that starts again
    for uid in ("a", "b", "late"):
        del turns.grants[uid]
    turns.policy.poll()
    turns.place("new")
    assert turns.starts("new")
    assert not turns.policy.oversubscribes([turns.grants["new"]])


def test_records_for_which_there_is_no_room_are_kept_in_memory(node, caplog):
    (node.folder / "tenants").rmdir()
    assert node.starts("a")
    assert not node.starts("b")
    assert "could not write the record of pod a" in caplog.text
    node.annotate("a", suspensions.RELEASE)
    node.moved("a", RELEASED, by_user=True)
    assert node.starts("b")


def test_device_that_was_never_oversubscribed_is_left_alone(tmp_path):
    node = Node(tmp_path, reservable=100)
    for uid in ("a", "b"):
        node.place(uid)
    assert node.starts("a")
    assert node.starts("b")  # kubelet's ids alone decide
    node.policy.poll()
    assert not node.policy.wants_suspended("a")
    assert list((tmp_path / "tenants").iterdir()) == []
