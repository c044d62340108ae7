"""MIG profiles as partitionable devices: counters, slices, and claims that have them."""

import dataclasses
import random

import mig_profiles
import pytest
from mig_profiles import ALL, partitioned

from pyvgpu.allocator import datatypes, mig_placement
from pyvgpu.controller.claims import dra_objects
from pyvgpu.deviceplugin.dra import claim_grants, claim_status, mig_partitions, resource_slices
from pyvgpu.deviceplugin.grants.placement import RefusedError

NODE = {"name": "node-1", "uid": "n"}
POOL = "node-1/mig"
H100 = mig_profiles.gpu()
SECOND = mig_profiles.gpu(1)
NAMED = claim_grants.Named("team", "u1", "mine")
SEPARATE, JOINED = mig_partitions.Form.SEPARATE, mig_partitions.Form.JOINED


def name(profile, start, gpu=H100):
    return mig_partitions.name_of(gpu.uuid, profile, start)


def by_name(gpu, **more):
    (found,) = partitioned(gpu, **more)
    return {one["name"]: one for one in found.devices}


def test_each_placement_is_a_device_that_consumes_counters_of_its_gpu():
    (found,) = partitioned(H100)
    assert found.counters == {
        "name": "gpu-00000000-0000-0000-0000-000000000000",
        "counters": {
            **{f"memory-slice-{number}": {"value": "1"} for number in range(8)},
            "compute-slices": {"value": "7"},
            "multiprocessors": {"value": "132"},
            "instances-1g-10gb-plus-me": {"value": "1"},
        },
    }
    assert len(found.devices) == 25
    one = by_name(H100)["gpu-00000000-0000-0000-0000-000000000000-3g-40gb-4"]
    assert one == {
        "name": "gpu-00000000-0000-0000-0000-000000000000-3g-40gb-4",
        "attributes": {
            "uuid": {"string": "GPU-00000000-0000-0000-0000-000000000000"},
            "driverReleaseText": {"string": "550.163.01"},
            "cudaVersionText": {"string": "12.4"},
            "driverRelease": {"version": "550.163.1"},
            "cudaVersion": {"version": "12.4.0"},
            "migProfile": {"string": "3g.40gb"},
            "migStart": {"int": 4},
        },
        "capacity": {"vcore": {"value": "45"}, "vmemory": {"value": "40448Mi"}},
        "consumesCounters": [
            {
                "counterSet": "gpu-00000000-0000-0000-0000-000000000000",
                "counters": {
                    **{f"memory-slice-{number}": {"value": "1"} for number in range(4, 8)},
                    "compute-slices": {"value": "3"},
                    "multiprocessors": {"value": "60"},
                },
            }
        ],
    }


def consumed(entry):
    (only,) = entry["consumesCounters"]
    return {counter: int(each["value"]) for counter, each in only["counters"].items()}


@pytest.mark.parametrize("model", ["a100", "a100-80g", "h100", "h200"])
def test_counters_allow_exactly_the_placements_that_fit(model):
    """As kube-scheduler counts: 2 x 1g.20gb and 5 x 1g.10gb are 9 memory slices, for example."""
    gpu = mig_profiles.gpu(model=model)
    (found,) = partitioned(gpu)
    places = mig_partitions.named(gpu)
    limits = {counter: int(each["value"]) for counter, each in found.counters["counters"].items()}
    chance = random.Random(7)
    refused = 0
    for _ in range(300):
        left, occupied = dict(limits), ()
        for entry in chance.sample(found.devices, len(found.devices)):
            needs = consumed(entry)
            profile, start = mig_placement.split(places[entry["name"]])
            fits = all(left[counter] >= amount for counter, amount in needs.items())
            assert fits == (start in mig_placement.starts(gpu.profiles, occupied, profile))
            refused += not fits
            if fits:
                left |= {counter: left[counter] - amount for counter, amount in needs.items()}
                occupied = mig_placement.after(occupied, places[entry["name"]])
    assert refused > 300


def test_names_are_labels_that_tell_profiles_apart():
    profiles = tuple(
        datatypes.MigProfile(text, number, 1 << 30, 1, 1, 1, 1, (0,))
        for number, text in enumerate(("1g.24gb", "1g.24gb+me.all", "1g.24gb-me", "1g.24gb+me"))
    )
    names = mig_partitions.named(dataclasses.replace(H100, profiles=profiles))
    assert len(names) == 4
    assert all(len(each) <= 63 and each.replace("-", "").isalnum() for each in names)


def test_scheduler_tries_the_smallest_profile_first_where_it_leaves_most_room():
    (found,) = partitioned(H100)
    order = [one["name"].removeprefix(f"{found.name}-") for one in found.devices]
    assert order[:2] == ["1g-10gb-6", "1g-10gb-5"]
    assert order.index("3g-40gb-4") < order.index("3g-40gb-0")
    assert order[-1] == "7g-80gb-0"


def test_occupied_places_get_no_claims():
    gpu = dataclasses.replace(H100, taken=("3g.40gb@4",))
    found = by_name(gpu)
    taint = {"key": "pyvgpu.io/occupied", "effect": "NoSchedule"}
    assert found[name("1g.10gb", 6)]["taints"] == [taint]
    assert found[name("7g.80gb", 0)]["taints"] == [taint]
    assert "taints" not in found[name("4g.40gb", 0)]
    without = by_name(gpu, support=resource_slices.ServerSupport(taints=False))
    assert name("1g.10gb", 6) not in without
    assert name("1g.10gb", 0) in without


def test_partitions_of_an_unhealthy_gpu_get_no_claims():
    found = by_name(dataclasses.replace(H100, unhealthy="Xid 79"))
    assert {one["taints"][0]["key"] for one in found.values()} == {"pyvgpu.io/unhealthy"}


def test_without_counters_nothing_is_published():
    assert partitioned(H100, support=resource_slices.ServerSupport(partitions=False)) == ()
    (lacks,) = resource_slices.ServerSupport(partitions=False).lacks
    assert "DRAPartitionableDevices" in lacks


def test_dropped_counters_are_detected():
    counters, devices = mig_partitions.slices_of(NODE, partitioned(H100), SEPARATE)
    assert resource_slices.support_by(counters, counters).partitions
    assert resource_slices.support_by(devices, devices).partitions
    empty = {**counters["spec"], "sharedCounters": None}
    assert not resource_slices.support_by(counters, {**counters, "spec": empty}).partitions
    bare = [
        {key: value for key, value in one.items() if key != "consumesCounters"}
        for one in devices["spec"]["devices"]
    ]
    kept = {**devices, "spec": {**devices["spec"], "devices": bare}}
    assert not resource_slices.support_by(devices, kept).partitions


@pytest.mark.parametrize(
    ("version", "form"),
    [
        ({"major": "1", "minor": "34"}, JOINED),
        ({"major": "1", "minor": "34+"}, JOINED),
        ({"major": "1", "minor": "35"}, SEPARATE),
        ({"major": "1", "minor": "36+"}, SEPARATE),
        ({"major": "2", "minor": "0"}, SEPARATE),
        ({}, SEPARATE),
    ],
)
def test_form_of_slices_is_that_of_the_server(version, form):
    assert mig_partitions.form_of(version) is form


def shape(pool):
    return [
        (
            one["metadata"]["name"],
            len(one["spec"].get("sharedCounters", ())),
            len(one["spec"].get("devices", ())),
        )
        for one in pool
    ]


def test_counters_are_in_slices_of_their_own_since_1_35():
    gpus = partitioned(*(mig_profiles.gpu(number) for number in range(9)))
    pool = mig_partitions.slices_of(NODE, gpus, SEPARATE)
    assert shape(pool) == [
        ("node-1-pyvgpu.io.mig-counters-0", 8, 0),
        ("node-1-pyvgpu.io.mig-counters-1", 1, 0),
        ("node-1-pyvgpu.io.mig-0", 0, 64),
        ("node-1-pyvgpu.io.mig-1", 0, 64),
        ("node-1-pyvgpu.io.mig-2", 0, 64),
        ("node-1-pyvgpu.io.mig-3", 0, 33),
    ]
    assert all(("devices" in one["spec"]) != ("sharedCounters" in one["spec"]) for one in pool)
    assert {tuple(one["spec"]["pool"].items()) for one in pool} == {
        (("name", POOL), ("generation", 1), ("resourceSliceCount", 6))
    }


def test_counters_are_beside_their_devices_before_1_35():
    pool = mig_partitions.slices_of(NODE, partitioned(H100, SECOND), JOINED)
    assert shape(pool) == [("node-1-pyvgpu.io.mig-0", 1, 25), ("node-1-pyvgpu.io.mig-1", 1, 25)]
    for one in pool:
        sets = {each["name"] for each in one["spec"]["sharedCounters"]}
        used = {each["consumesCounters"][0]["counterSet"] for each in one["spec"]["devices"]}
        assert used == sets
        assert sum(len(each["counters"]) for each in one["spec"]["sharedCounters"]) <= 32
    assert mig_partitions.slices_of(NODE, (), JOINED) == []


def test_longest_node_name_has_a_pool_of_its_own():
    pools = {mig_partitions.pool_of("n" * 251 + end) for end in ("aa", "ab")}
    assert len(pools) == 2
    assert all(len(pool) <= 253 for pool in pools)


# --- slices that change while partitions are allocated ---------------------------------------

LATER = dataclasses.replace(
    H100,
    profiles=tuple(dataclasses.replace(one, sms=one.sms - 2) for one in H100.profiles),
)


@pytest.mark.parametrize("form", [SEPARATE, JOINED])
@pytest.mark.parametrize("now", [(LATER,), ()], ids=["another driver", "out of MIG mode"])
def test_devices_in_use_keep_name_and_counters(now, form):
    before = partitioned(H100, SECOND)
    there = mig_partitions.slices_of(NODE, before, form)
    wanted = partitioned(*now, SECOND)
    used = {name("1g.10gb", 6)}
    held = {gpu.name: gpu for gpu in mig_partitions.held_back(wanted, there, lambda: used, ALL)}
    first, second = before
    assert held[second.name] == second, "the other GPU changes not"
    kept = held[first.name]
    assert kept.counters == first.counters
    (entry,) = kept.devices
    (was,) = [one for one in first.devices if one["name"] == entry["name"]]
    assert entry["consumesCounters"] == was["consumesCounters"]
    assert entry["taints"] == [{"key": "pyvgpu.io/unhealthy", "effect": "NoSchedule"}]

    there = mig_partitions.slices_of(NODE, tuple(held.values()), form)
    again = mig_partitions.held_back(wanted, there, lambda: used, ALL)
    assert {gpu.name: gpu for gpu in again} == held
    assert mig_partitions.held_back(wanted, there, set, ALL) == wanted, "once none is in use"


def test_unknown_use_changes_nothing():
    there = mig_partitions.slices_of(NODE, partitioned(H100), SEPARATE)
    (held,) = mig_partitions.held_back(partitioned(LATER), there, lambda: None, ALL)
    assert held.counters == partitioned(H100)[0].counters
    assert len(held.devices) == 25
    (bare,) = mig_partitions.held_back(
        (), there, lambda: None, resource_slices.ServerSupport(taints=False)
    )
    assert all("taints" not in one for one in bare.devices)


def test_taints_alone_need_no_read_of_claims():
    there = mig_partitions.slices_of(NODE, partitioned(H100), SEPARATE)
    wanted = partitioned(dataclasses.replace(H100, cordoned=True, taken=("1g.10gb@6",)))

    def fail():
        raise AssertionError("claims were listed")

    assert mig_partitions.held_back(wanted, there, fail, ALL) == wanted


# --- claims ----------------------------------------------------------------------------------


def result(profile, start, request="vgpu", gpu=H100, **more):
    return {
        "request": request,
        "driver": "pyvgpu.io",
        "pool": POOL,
        "device": name(profile, start, gpu),
        **more,
    }


def given(*results, used=(), held=(), devices=(H100, SECOND)):
    document = {
        "metadata": {"uid": "u1"},
        "status": {
            "allocation": {"devices": {"results": list(results)}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "p1"}],
        },
    }
    claim = claim_grants.read(document, NAMED, "node-1")
    node = datatypes.NodeDevices(tuple(devices), tuple(held))
    around = claim_grants.ClaimContext("node-1", node, lambda _: True, 1.0)
    return claim_grants.grants_of(claim, frozenset(used), around)


def test_claim_of_a_partition_is_a_grant_of_a_mig_instance():
    (grant,) = given(result("3g.40gb", 4))
    (share,) = grant.shares
    assert (share.uuid, share.mig, share.vcore) == (H100.uuid, "3g.40gb@4", 45)
    assert share.vmemory == 40448 << 20
    assert grant.mig == "3g.40gb@4"
    assert grant.claim.shares == grant.shares
    (said,) = claim_status.devices_of([grant], "node-1", [H100])
    assert (said["pool"], said["device"]) == (POOL, name("3g.40gb", 4))
    assert said["data"]["mig"] == "3g.40gb@4"


def test_containers_that_name_requests_get_instances_of_their_own():
    found = given(result("3g.40gb", 4, "a"), result("1g.10gb", 0, "b"), used=("a", "b"))
    assert [grant.mig for grant in found] == ["3g.40gb@4", "1g.10gb@0"]


def held_at(place, gpu=H100):
    return datatypes.Holding(datatypes.NodeShare(gpu.uuid, 10, 1 << 30, place), "team/other")


@pytest.mark.parametrize(
    ("results", "more", "said", "final"),
    [
        pytest.param(
            [result("3g.40gb", 4), result("1g.10gb", 0)],
            {},
            "a process sees one MIG device only",
            True,
            id="two for one container",
        ),
        pytest.param(
            [result("3g.40gb", 4)],
            {"held": [held_at("1g.10gb@6")]},
            "has no place for it beside 1g.10gb@6; held by team/other",
            False,
            id="overlap, whatever the scheduler counted",
        ),
        pytest.param(
            [result("3g.40gb", 4, "a"), result("1g.10gb", 6, "b")],
            {"used": ("a", "b")},
            "has no place for it beside 3g.40gb@4; held by no claim",
            False,
            id="overlap in one claim",
        ),
        pytest.param(
            [result("4g.40gb", 0)],
            {"devices": [dataclasses.replace(H100, taken=("1g.10gb@0",))]},
            "has no place for it beside 1g.10gb@0",
            False,
            id="an instance of the administrator",
        ),
        pytest.param(
            [result("3g.40gb", 4)],
            {"devices": [dataclasses.replace(H100, unhealthy="Xid 79")]},
            "gpu0 is unhealthy: Xid 79",
            False,
            id="unhealthy",
        ),
        pytest.param(
            [result("3g.40gb", 4)],
            {"devices": [dataclasses.replace(H100, profiles=())]},
            "-3g-40gb-4 is not there (any more)",
            False,
            id="out of MIG mode",
        ),
        pytest.param(
            [{**result("3g.40gb", 4), "pool": "node-1", "device": H100.uuid.lower()}],
            {},
            "is not there (any more)",
            False,
            id="the GPU itself",
        ),
        pytest.param(
            [{**result("3g.40gb", 4), "pool": "node-2/mig"}],
            {},
            "pool 'node-2/mig'",
            True,
            id="another node",
        ),
    ],
)
def test_partition_that_cannot_be_given_is_refused(results, more, said, final):
    with pytest.raises(RefusedError) as caught:
        given(*results, **more)
    assert said in str(caught.value)
    assert caught.value.final is final


def test_devices_of_claims_are_those_of_their_gpus():
    claims = [
        {"status": {"allocation": {"devices": {"results": [result("1g.10gb", 6), {
            "driver": "pyvgpu.io", "pool": "node-1", "device": "gpu-x", "request": "a"}]}}}},
        {"status": {"allocation": {"devices": {"results": [
            {**result("1g.10gb", 5), "pool": "node-2/mig"}]}}}},
    ]  # fmt: skip
    found = claim_status.allocated(claims, "node-1")
    assert found == {name("1g.10gb", 6), "gpu-x"}
    devices = [SECOND, H100]
    assert mig_partitions.uuid_of(name("1g.10gb", 6), devices) == H100.uuid
    assert mig_partitions.uuid_of(SECOND.uuid.lower(), devices) == SECOND.uuid
    assert mig_partitions.uuid_of("gpu-x", devices) == ""
    assert dict(mig_partitions.names_of(dataclasses.replace(H100, profiles=()), "node-1")) == {
        "node-1": H100.uuid.lower()
    }
    assert {pool for pool, _ in mig_partitions.names_of(H100, "node-1")} == {POOL}


@pytest.mark.parametrize("form", [SEPARATE, JOINED])
def test_published_partitions_are_read_back_as_the_profiles_of_their_gpus(form):
    taken = ("1g.10gb@6", "3g.40gb@0")
    listed = mig_profiles.slices("node-1", H100, mig_profiles.gpu(1, taken=taken), form=form)
    first, second = dra_objects.nodes(dra_objects.slices(listed))["node-1"].devices
    assert {profile.name: profile for profile in first.profiles} == {
        profile.name: dataclasses.replace(profile, id=0) for profile in H100.profiles
    }
    assert (first.uuid, first.memory_bytes) == (H100.uuid, H100.memory_bytes)
    assert (second.unhealthy, second.cordoned) == ("", False), "an occupied place is no defect"
    for profile in second.profiles:
        free = mig_placement.starts(H100.profiles, taken, profile.name)
        assert profile.starts == free
