"""Allowed and refused changes of a running container's quota."""

import pytest
from held_grants import DEVICES, ELASTIC, GIB, UNIT, grant

from pyvgpu import errors, quota
from pyvgpu.allocator import elastic
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.grants import resize

LOW = quota.Priority.LOW


def test_policy_follows_the_annotations():
    before = grant()
    after = resize.with_time_sharing(before, elastic.TimeSharing(ELASTIC, 80))
    assert (after.policy, after.ceiling, after.shares) == (ELASTIC, 80, before.shares)
    assert resize.with_time_sharing(after, None) == before


def test_administrators_policy_stays_without_annotations():
    ordered = resize.changed(grant(), quota.QuotaChange(policy=ELASTIC), DEVICES, UNIT)
    assert resize.with_time_sharing(ordered, None) == ordered
    assert resize.with_time_sharing(ordered, elastic.TimeSharing()).policy is quota.TimePolicy.HARD


def test_priority_follows_the_annotations():
    before = grant()
    after = resize.with_time_sharing(before, None, LOW)
    assert (after.priority, after.policy, after.annotated) == (LOW, before.policy, False)
    assert grants.load(grants.dump(after)) == after
    assert resize.with_time_sharing(after, None) == before
    ordered = resize.changed(before, quota.QuotaChange(priority=LOW), DEVICES, UNIT)
    assert resize.with_time_sharing(ordered, None) == ordered, "an administrator's stays"
    assert "priority low" in resize.describe(ordered)


def test_ceiling_below_the_containers_vcore_is_refused():
    with pytest.raises(errors.UsageError, match="from the container's own 50 vcore to 100"):
        resize.with_time_sharing(grant(), elastic.TimeSharing(ELASTIC, 49))
    assert resize.with_time_sharing(grant(), elastic.TimeSharing(ELASTIC, 50)).ceiling == 50


def test_whole_device_has_no_policy():
    whole = grant(vcore=100)
    assert resize.with_time_sharing(whole, elastic.TimeSharing(ELASTIC, 30)) == whole


@pytest.mark.parametrize(
    ("before", "change", "vcore", "vmemory", "policy", "ceiling"),
    [
        (grant(), quota.QuotaChange(vcore=20), 20, 8 * GIB, quota.TimePolicy.HARD, None),
        (grant(), quota.QuotaChange(vmemory=2 * GIB), 50, 2 * GIB, quota.TimePolicy.HARD, None),
        (grant(now=20), quota.QuotaChange(vcore=50), 50, 8 * GIB, quota.TimePolicy.HARD, None),
        (grant(), quota.QuotaChange(policy=ELASTIC), 50, 8 * GIB, ELASTIC, None),
        (
            grant(policy=ELASTIC),
            quota.QuotaChange(vcore=10, vcore_limit=30),
            10,
            8 * GIB,
            ELASTIC,
            30,
        ),
        (
            grant(policy=ELASTIC, ceiling=80),
            quota.QuotaChange(policy=quota.TimePolicy.HARD),
            50,
            8 * GIB,
            quota.TimePolicy.HARD,
            None,
        ),
        (grant(count=2), quota.QuotaChange(vcore=30), 30, 8 * GIB, quota.TimePolicy.HARD, None),
    ],
)
def test_allowed_changes_of_a_quota(before, change, vcore, vmemory, policy, ceiling):
    after = resize.changed(before, change, DEVICES, UNIT)
    assert [(one.vcore, one.vmemory) for one in after.shares] == [(vcore, vmemory)] * len(
        before.shares
    )
    assert (after.policy, after.ceiling) == (policy, ceiling)
    assert (after.vcore_ids, after.vmemory_ids) == (before.vcore_ids, before.vmemory_ids)


@pytest.mark.parametrize(
    ("before", "change", "said"),
    [
        (
            grant(),
            quota.QuotaChange(vcore=51),
            "vcore 51: team/pod/main was created with 50.*--vcore 50, or --policy elastic",
        ),
        (
            grant(),
            quota.QuotaChange(vmemory=8 * GIB + 1),
            "was created with 8GiB.*valid would be --vmemory 8GiB",
        ),
        (grant(), quota.QuotaChange(vmemory=GIB // 4), "must be at least 576MiB"),
        (grant(), quota.QuotaChange(vcore_limit=80), "needs the policy elastic"),
        (grant(policy=ELASTIC), quota.QuotaChange(vcore_limit=40), "must be from the vcore, 50"),
        (grant(vcore=100), quota.QuotaChange(vcore=50), "has whole devices"),
        (
            grants.Grant(f"{7:016x}", frozenset({"c1"}), 1.0),
            quota.QuotaChange(vcore=1),
            "not bound to a container yet",
        ),
    ],
)
def test_changes_above_the_allocation_or_against_rules_are_refused(before, change, said):
    with pytest.raises(errors.UsageError, match=said):
        resize.changed(before, change, DEVICES, UNIT)


def test_change_on_a_missing_device_is_refused():
    with pytest.raises(errors.UnavailableError, match="is missing"):
        resize.changed(grant(), quota.QuotaChange(vcore=1), {}, UNIT)
