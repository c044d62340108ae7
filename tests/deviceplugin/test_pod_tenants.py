"""Pods as tenants of the policy of oversubscription."""

import dataclasses
import math

import pytest
from held_grants import UNIT, UUID, grant

from pyvgpu import oversubscription, region
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin.suspension import pod_tenants
from pyvgpu.machine import tenant_record
from pyvgpu.oversubscription import Move, MoveAction, MoveRules, TenantState

DEVICE = datatypes.NodeDevice(UUID.format(0), 0, 320 * UNIT, reservable=200)
RUNNING, KEPT = region.Suspension(), region.Suspension(True, True, True)
RELEASED, GATED = region.Suspension(True, True), region.Suspension(True)
RULES = MoveRules(idle_seconds=10, slice_seconds=100)
NOW = 1000.0


def pod(uid, mark=RUNNING, made=None, since=0.0, worked=0.0, wanted=0.0, **fields):
    """A pod with 60 vcore and 200 units; *fields* are those of its record or of the pod."""
    names = {field.name for field in dataclasses.fields(tenant_record.TenantRecord)}
    names -= {"is_manual"}
    record = {name: value for name, value in fields.items() if name in names}
    rest = {name: value for name, value in fields.items() if name not in names}
    made = made or grant(60, 200)
    return pod_tenants.ObservedPod(
        uid,
        (made,),
        (mark,),
        tenant_record.TenantRecord(RULES, since, **record),
        region.Activity(worked, wanted, waits=False),
        **rest,
    )


def tenants(*pods):
    return {x.key: x for x in pod_tenants.tenants_of(DEVICE.uuid, pods, UNIT)}


def decided(*pods):
    pool = pod_tenants.pool_of(DEVICE, pods, UNIT)
    return oversubscription.decide(pool, tuple(tenants(*pods).values()), NOW)


def test_a_pod_is_a_tenant_with_what_its_ids_reserve():
    found = tenants(pod("a", worked=900.0))["a"]
    assert (found.memory, found.vcore, found.state) == (200 * UNIT, 60, TenantState.RUNNING)
    assert oversubscription.idle_seconds(found, NOW) == 100.0


def test_memory_held_beyond_a_lowered_quota_is_reserved():
    assert tenants(pod("a", held=250 * UNIT))["a"].memory == 250 * UNIT


@pytest.mark.parametrize(
    ("pods", "move"),
    [
        pytest.param(
            [pod("a"), pod("n", is_new=True)], Move(MoveAction.SUSPEND, "a", "n"), id="idle"
        ),
        pytest.param([pod("a", worked=995.0), pod("n", is_new=True)], None, id="it works"),
        pytest.param(
            [pod("a", worked=math.inf), pod("n", is_new=True)], None, id="it claims a time to come"
        ),
        pytest.param(
            [pod("a", is_manual=True), pod("n", is_new=True)], None, id="its user suspends it"
        ),
        pytest.param([pod("a", is_ending=True), pod("n", is_new=True)], None, id="it ends"),
        pytest.param(
            [pod("a", is_never=True), pod("n", is_new=True)], None, id="it is never suspended"
        ),
        pytest.param(
            [pod("a", RELEASED, is_never=True, suspended_at=900.0, asked=950.0), pod("b")],
            Move(MoveAction.SUSPEND, "b", "a"),
            id="it was suspended before its user forbade it",
        ),
        pytest.param([pod("a", GATED), pod("n", is_new=True)], None, id="it is being suspended"),
        pytest.param(
            [pod("a", refused_until=NOW + 1), pod("n", is_new=True)], None, id="it was refused"
        ),
        pytest.param([pod("a", KEPT), pod("n", is_new=True)], None, id="it keeps its reservation"),
        pytest.param(
            [pod("a", RELEASED, is_manual=True), pod("n", is_new=True)],
            Move(MoveAction.RESUME, "n", "n"),
            id="its user has released it",
        ),
        pytest.param(
            [pod("a", RELEASED, suspended_at=900.0, asked=950.0), pod("b", worked=970.0)],
            Move(MoveAction.SUSPEND, "b", "a"),
            id="a container of it starts again",
        ),
        pytest.param(
            [
                pod("a", RELEASED, since=980.0, suspended_at=980.0, asked=950.0),
                pod("b", worked=970.0),
            ],
            None,
            id="it was suspended since it asked",
        ),
        pytest.param(
            [
                pod("a", RELEASED, suspended_at=900.0, wanted=950.0),
                pod("b", since=890, worked=999),
            ],
            Move(MoveAction.SUSPEND, "b", "a"),
            id="the slice of one that works is over",
        ),
        pytest.param(
            [pod("a", made=grant(100)), pod("n", is_new=True)], None, id="whole devices stay"
        ),
    ],
)
def test_next_move(pods, move):
    assert decided(*pods) == move


def test_pods_of_several_devices_start_but_are_never_suspended():
    several = grant(30, 100, count=2)
    assert decided(pod("n", made=several, is_new=True)) == Move(MoveAction.RESUME, "n", "n")
    assert decided(pod("a", made=several), pod("n", made=grant(80), is_new=True)) is None


def test_pod_that_was_never_admitted_reserves_nothing():
    unknown = dataclasses.replace(pod("a"), record=None)
    assert decided(unknown, pod("n", is_new=True)) == Move(MoveAction.RESUME, "n", "n")


def test_activity_of_containers_is_the_latest():
    found = pod_tenants.activity_of(
        [region.Activity(1.0, 5.0, False), region.Activity(2.0, 4.0, True)]
    )
    assert found == region.Activity(2.0, 5.0, True)
    assert pod_tenants.activity_of([]) is None
