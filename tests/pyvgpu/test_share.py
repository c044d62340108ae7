import dataclasses

import pytest

from pyvgpu import device, errors, quota, share
from pyvgpu.device import Device, select, uuid_bytes, uuid_text

GIB = 1 << 30
UUID = "GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
H100 = Device(UUID, 0, "H100", 80 * GIB, 512 << 20)
OTHER = dataclasses.replace(H100, uuid=UUID.replace("0f1e", "1f1e"), index=1)


@pytest.mark.parametrize(
    ("asked", "vcore", "vmemory"),
    [
        pytest.param(quota.Quota(), 100, 80 * GIB, id="nothing: the whole device"),
        pytest.param(quota.Quota(vcore=25), 25, 20 * GIB, id="vcore alone: as much memory"),
        pytest.param(quota.Quota(vmemory=GIB), 100, GIB, id="vmemory alone: all the time"),
        pytest.param(quota.Quota(vcore=30, vmemory=GIB), 30, GIB, id="both"),
    ],
)
def test_defaults_follow_the_given_options(asked, vcore, vmemory):
    fitted = share.fit(asked, H100)
    assert (fitted.vcore, fitted.vmemory) == (vcore, vmemory)


def test_quota_below_context_and_64_mib_names_the_smallest_valid_size():
    least = (512 + 64) << 20
    assert share.fit(quota.Quota(vmemory=least), H100).vmemory == least
    with pytest.raises(errors.UsageError, match="must be at least 576MiB"):
        share.fit(quota.Quota(vmemory=least - 1), H100)


def test_quota_above_the_device_names_its_memory():
    with pytest.raises(errors.UsageError, match="has 80GiB; valid would be 80GiB"):
        share.fit(quota.Quota(vmemory=80 * GIB + 1), H100)


def test_small_percentage_is_refused_as_too_little_memory():
    small = dataclasses.replace(H100, memory_bytes=16 * GIB)
    with pytest.raises(errors.UsageError) as caught:
        share.fit(quota.Quota(vcore=1, isolation=quota.Isolation.MPS), small)
    said = str(caught.value)
    assert said.startswith("vcore 1 without a vmemory: 1 percent of "), "none was given"
    assert said.endswith("valid would be --vmemory 576MiB")
    assert share.fit(quota.Quota(vcore=1, vmemory=576 << 20), small).vcore == 1


def test_elastic_may_reach_the_whole_device():
    assert share.fit(quota.Quota(20, GIB, quota.TimePolicy.ELASTIC), H100).vcore_limit == 100
    assert share.fit(quota.Quota(20, GIB), H100).vcore_limit == 20


ELASTIC, HARD = quota.TimePolicy.ELASTIC, quota.TimePolicy.HARD


@pytest.mark.parametrize(
    ("held", "wanted", "reach"),
    [
        pytest.param((20, ELASTIC, None), {"vcore": 30}, (30, 100), id="vcore alone"),
        pytest.param((20, ELASTIC, 50), {"vcore": 30}, (30, 50), id="the limit stays"),
        pytest.param((20, ELASTIC, 50), {"vcore_limit": 60}, (20, 60), id="limit alone"),
        pytest.param((20, ELASTIC, 50), {"policy": HARD}, (20, 20), id="hard has no limit"),
        pytest.param((20, HARD, None), {"policy": ELASTIC}, (20, 100), id="elastic to the whole"),
        pytest.param(
            (20, HARD, None), {"policy": ELASTIC, "vcore_limit": 20}, (20, 20), id="both"
        ),
    ],
)
def test_change_keeps_unnamed_fields(held, wanted, reach):
    vcore, policy, limit = held
    before = share.fit(quota.Quota(vcore, GIB, policy, limit), H100)
    after = share.change(before, quota.QuotaChange(**wanted))
    assert (after.vcore, after.vcore_limit, after.vmemory) == (*reach, GIB)


@pytest.mark.parametrize(
    ("held", "wanted", "problem"),
    [
        pytest.param((20, HARD, None), {"vcore_limit": 50}, "such as --policy elastic", id="hard"),
        pytest.param(
            (20, ELASTIC, 50), {"vcore": 60}, "limit 50: must be from the vcore, 60", id="above"
        ),
        pytest.param((20, ELASTIC, None), {"vcore_limit": 101}, "to 100, such as", id="beyond"),
    ],
)
def test_invalid_change_names_a_valid_one(held, wanted, problem):
    vcore, policy, limit = held
    before = share.fit(quota.Quota(vcore, GIB, policy, limit), H100)
    with pytest.raises(errors.UsageError, match=problem):
        share.change(before, quota.QuotaChange(**wanted))


def test_limit_without_the_vcore_below_it_is_refused():
    with pytest.raises(errors.UsageError, match="--vcore 25 --vcore-limit 50 --policy elastic"):
        quota.Quota(vmemory=GIB, policy=ELASTIC, vcore_limit=50)


@pytest.mark.parametrize("wrong", [{"vcore": 0}, {"vcore": 101}, {"vmemory": 0}])
def test_invalid_quota_cannot_be_created(wrong):
    with pytest.raises(errors.UsageError, match="must be from 1 to"):
        quota.Quota(**wrong)


@pytest.mark.parametrize("text", ["soft", "HARD", "", "1"])
def test_unknown_policy_is_refused(text):
    with pytest.raises(errors.UsageError, match="must be hard or elastic"):
        quota.TimePolicy.parse(text, "--policy")


def test_device_is_chosen_by_index_or_uuid():
    assert select((H100, OTHER), None) == (H100, OTHER)
    assert select((H100, OTHER), "1") == (OTHER,)
    assert select((H100, OTHER), H100.uuid) == (H100,)


def test_a_device_in_mig_mode_is_skipped_and_refused_by_name():
    mig = dataclasses.replace(H100, mig=True)
    assert select((mig, OTHER), None) == (OTHER,)
    for wanted in ("0", H100.uuid):
        with pytest.raises(errors.UnavailableError, match=r"nvidia-smi -i 0 -mig 0") as caught:
            select((mig, OTHER), wanted)
        assert "is in MIG mode, usable devices: 1" in str(caught.value)
    with pytest.raises(errors.UnavailableError, match="is in MIG mode, and so is every other"):
        select((mig,), None)


@pytest.mark.parametrize("wanted", ["2", "-1", "GPU-", "", "gpu0"])
def test_unknown_device_names_the_known_ones(wanted):
    with pytest.raises(errors.UsageError, match=r"there is no such device; valid: 0 \(GPU-0f1e"):
        select((H100, OTHER), wanted)


def test_uuid_survives_its_binary_form():
    assert uuid_text(uuid_bytes(UUID)) == UUID
    instance = f"MIG-{UUID[4:]}"
    assert uuid_text(uuid_bytes(instance), instance=True) == instance


def test_mig_device_is_chosen_by_its_gpu_and_number_or_uuid():
    part = dataclasses.replace(
        H100,
        uuid=f"MIG-{UUID[4:]}",
        index=101,
        instance=device.MigInstance(H100.uuid, 0, 1, 2, 0, 45),
    )
    for wanted in ("0:1", part.uuid):
        assert select((part, OTHER), wanted) == (part,)
    assert select((part, OTHER), None) == (part, OTHER)
    for wanted in ("0", H100.uuid):
        with pytest.raises(errors.UsageError, match="name one of its MIG devices: 0:1, or"):
            select((part, OTHER), wanted)


@pytest.mark.parametrize("text", ["", "GPU-", "GPU-12", "MIG-", UUID[4:], f"CPU-{UUID[4:]}"])
def test_bad_uuid_is_refused(text):
    with pytest.raises(errors.DataError, match="must read GPU-xxxx"):
        uuid_bytes(text)
