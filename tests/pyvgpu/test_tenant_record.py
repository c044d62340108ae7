"""Oversubscribed runs as tenants of their device."""

import dataclasses
from pathlib import Path

import pytest

from pyvgpu import oversubscription, region, share
from pyvgpu._region import ffi
from pyvgpu.device import Device
from pyvgpu.machine import holders, run_tenants, tenant_record

GIB = 1 << 30
DEVICE = Device(
    "GPU-11111111-1111-1111-1111-111111111111", 0, "pyvgpu simulated H100", 80 * GIB, 0
)
GATED = ffi.integer_const("QUOTA_GATED")
SUSPENDED = GATED | ffi.integer_const("QUOTA_SUSPENDED")
RECORD = tenant_record.TenantRecord(oversubscription.MoveRules(), 1.0, host_memory=32 * GIB)


def run(run_id, flags=0, record=RECORD):
    limits = region.limits_of(1, 0, "999.1", [share.Share(DEVICE, 10, 10 * GIB)])
    return holders.LiveReservation(
        run_id,
        Path("/"),
        0,
        holders.Holder(run_id, "train"),
        dataclasses.replace(limits, flags=flags),
        (10 * GIB,),
        record,
    )


@pytest.mark.parametrize(
    ("others", "left"),
    [
        pytest.param([], 32, id="alone"),
        pytest.param([run("b")], 32, id="one that runs"),
        pytest.param([run("b", SUSPENDED), run("c", SUSPENDED, None)], 12, id="suspended"),
        pytest.param([run("b", GATED)], 22, id="being suspended"),
        pytest.param(
            [run("b", record=dataclasses.replace(RECORD, moving_since=2.0))], 22, id="about to be"
        ),
        pytest.param([run(x, SUSPENDED) for x in "bcde"], 0, id="more than the bound"),
    ],
)
def test_host_memory_of_runs_that_are_being_moved_counts(others, left):
    own = run("a", GATED)
    assert run_tenants.left_host_memory(own, [own, *others]) == left * GIB


def test_without_a_bound_any_host_memory_is_left():
    own = run("a", record=dataclasses.replace(RECORD, host_memory=None))
    assert run_tenants.left_host_memory(own, [own]) is None


@pytest.mark.parametrize(
    ("seen", "move"),
    [
        pytest.param(100.0, None, id="attended"),
        pytest.param(80.0, ("suspend", "c"), id="its supervisor is stopped"),
    ],
)
def test_a_move_that_no_supervisor_attends_to_holds_up_no_other(seen, move):
    moving = dataclasses.replace(RECORD, moving_since=75.0, seen=seen)
    waits = dataclasses.replace(RECORD, since=90.0, is_new=True, seen=100.0)
    live = [run("a", GATED, moving), run("b", SUSPENDED, waits), run("c")]
    idle = {x.run_id: region.Activity(0.0, 0.0, False) for x in live}
    tenants = run_tenants.attended(
        run_tenants.tenants_of(DEVICE.uuid, live, idle), "b", live, 100.0
    )
    found = oversubscription.decide(oversubscription.Pool(25 * GIB, 100), tenants, 100.0)
    assert (None if found is None else (found.action.value, found.key)) == move
