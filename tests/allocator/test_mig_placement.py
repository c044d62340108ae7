"""Placements of MIG instances, compared with an exhaustive search."""

import functools
import itertools
import random
import re

import mig_profiles
import pytest

from pyvgpu import errors
from pyvgpu.allocator import (
    datatypes,
    free_capacity,
    mig_placement,
    mig_search,
    pod_placement,
    search_budget,
)

GIB = 1 << 30


H100 = mig_profiles.of_model("h100")
A30 = (  # four memory slices; the same ids mean other profiles
    datatypes.MigProfile("1g.6gb", 14, 5 * GIB, 14, 1, 1, 4, (0, 1, 2, 3)),
    datatypes.MigProfile("2g.12gb", 5, 11 * GIB, 28, 2, 2, 2, (0, 2)),
    datatypes.MigProfile("4g.24gb", 0, 23 * GIB, 56, 4, 4, 1, (0,)),
)


def gpu(number=0, profiles=H100, **more):
    uuid = f"GPU-00000000-0000-0000-0000-{number:012}"
    most = max(profile.memory_bytes for profile in profiles)
    return datatypes.NodeDevice(uuid, number, most, profiles=profiles, **more)


def pod(*needs, wanted="*", packing=datatypes.Packing.BINPACK):
    containers = tuple(
        datatypes.Container(f"c{at}", datatypes.ContainerNeed(*need))
        for at, need in enumerate(needs)
    )
    return datatypes.Pod(containers, packing, selector=datatypes.Selector(mig=wanted))


def found(devices, asked, held=()):
    node = datatypes.NodeDevices(tuple(devices), tuple(held))
    return pod_placement.find(free_capacity.of(node), asked)


def holding(device, place):
    return datatypes.Holding(datatypes.NodeShare(device.uuid, 1, 1, place), "other")


def shapes(profiles, place):
    name, start = mig_placement.split(place)
    return next(one for one in profiles if one.name == name), start


def is_valid(profiles, places):
    """Evaluate a layout slice by slice, without the module's own functions."""
    own = [shapes(profiles, place) for place in places]
    slices = [slot for one, start in own for slot in range(start, start + one.size)]
    counts = {
        name: sum(one.name == name for one, _ in own) for name in {one.name for one, _ in own}
    }
    return (
        len(slices) == len(set(slices))
        and all(start in one.starts for one, start in own)
        and sum(one.slices for one, _ in own) <= max(one.slices for one in profiles)
        and sum(one.sms for one, _ in own) <= max(one.sms for one in profiles)
        and all(counts[one.name] <= one.most for one, _ in own)
    )


@functools.cache
def layouts(profiles):
    """All layouts of a GPU."""
    every = [mig_placement.place(one.name, start) for one in profiles for start in one.starts]
    known = {()}
    edge = {()}
    while edge:
        edge = {
            tuple(sorted((*layout, place)))
            for layout in edge
            for place in every
            if is_valid(profiles, (*layout, place))
        }
        known |= edge
    return known


@pytest.mark.parametrize("profiles", [H100, A30], ids=["h100", "a30"])
def test_starts_are_exactly_the_valid_ones_for_every_layout(profiles):
    chosen = sorted(layouts(profiles))
    assert len(chosen) > 20
    for layout in random.Random(1).sample(chosen, min(len(chosen), 100)):
        for one in profiles:
            valid = tuple(
                start
                for start in one.starts
                if is_valid(profiles, (*layout, mig_placement.place(one.name, start)))
            )
            assert mig_placement.starts(profiles, layout, one.name) == valid, (layout, one.name)


def fits_together(profiles, occupied, names):
    """Whether instances of all these profiles can be added to a layout, by trying everything."""
    if not names:
        return True
    one = next(profile for profile in profiles if profile.name == names[0])
    return any(
        fits_together(profiles, (*occupied, mig_placement.place(one.name, start)), names[1:])
        for start in one.starts
        if is_valid(profiles, (*occupied, mig_placement.place(one.name, start)))
    )


def test_several_containers_are_placed_whenever_an_exhaustive_search_places_them():
    draw = random.Random(7)
    sizes = {one.name: (mig_placement.vcore(H100, one), one.memory_bytes) for one in H100}
    wholes = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb")
    placed = refused = 0
    few = sorted(layout for layout in layouts(H100) if len(layout) < 4)
    for _ in range(120):
        layout = draw.choice(few)
        names = draw.choices(wholes, k=draw.randint(1, 3))
        device = gpu(taken=layout)
        got = found([device], pod(*(sizes[name] for name in names)))
        # The smallest profile with the figures of a profile is that profile.
        assert (got is not None) == fits_together(H100, layout, sorted(names)), (layout, names)
        if got:
            own = tuple(share.mig for (share,) in got.values())
            assert is_valid(H100, (*layout, *own))
            placed += 1
        else:
            refused += 1
    assert placed > 20
    assert refused > 20


def accepted(seed, choose):
    """Place a random sequence of instances that end, on three GPUs; return how many fit."""
    draw, count = random.Random(seed), 0
    kinds = ["1g.10gb"] * 4 + ["2g.20gb"] * 2 + ["3g.40gb", "4g.40gb"]
    sequence = [(draw.choice(kinds), draw.randint(2, 20)) for _ in range(150)]
    held = []  # until, GPU, placement
    for now, (name, steps) in enumerate(sequence):
        held = [one for one in held if one[0] > now]
        now_there = [tuple(sorted(place for _, at, place in held if at == n)) for n in range(3)]
        chosen = choose(now_there, name)
        if chosen:
            held.append((now + steps, chosen[0], mig_placement.place(name, chosen[1])))
            count += 1
    return count


def ours(layouts_now, name):
    one = next(profile for profile in H100 if profile.name == name)
    devices = [gpu(at, taken=layout) for at, layout in enumerate(layouts_now)]
    got = found(devices, pod((1, 1), wanted=name))
    if got is None:
        return None
    (share,) = got["c0"]
    at = next(at for at, device in enumerate(devices) if device.uuid == share.uuid)
    assert one.name == mig_placement.split(share.mig)[0]
    return at, mig_placement.split(share.mig)[1]


def first_fit(layouts_now, name):
    for at, layout in enumerate(layouts_now):
        for start in mig_placement.starts(H100, layout, name):
            return at, start
    return None


def test_random_sequences_place_more_than_first_fit():
    best = sum(accepted(seed, ours) for seed in range(6))
    first = sum(accepted(seed, first_fit) for seed in range(6))
    assert best > first


def test_small_instance_leaves_the_places_of_large_ones():
    (share,) = found([gpu()], pod((1, GIB), wanted="1g.10gb"))["c0"]
    assert share.mig == "1g.10gb@6"
    device = gpu(taken=("1g.10gb@6",))
    assert found([device], pod((1, GIB), wanted="4g.40gb"))["c0"][0].mig == "4g.40gb@0"


def test_cut_gpu_is_preferred_and_spread_prefers_an_empty_one():
    devices = [gpu(0), gpu(1, taken=("1g.10gb@6",))]
    assert found(devices, pod((1, GIB)))["c0"][0].uuid == devices[1].uuid
    spread = pod((1, GIB), packing=datatypes.Packing.SPREAD)
    assert found(devices, spread)["c0"][0].uuid == devices[0].uuid


@pytest.mark.parametrize(
    ("need", "name"),
    [
        pytest.param((12, 9 * GIB), "1g.10gb", id="one slice"),
        pytest.param((13, 9 * GIB), "1g.20gb", id="more multiprocessors: the larger single slice"),
        pytest.param((20, 9 * GIB), "2g.20gb", id="two slices"),
        pytest.param((12, 30 * GIB), "3g.40gb", id="memory decides"),
        pytest.param((46, 30 * GIB), "4g.40gb", id="four slices"),
        pytest.param((100, 0), "7g.80gb", id="the whole GPU"),
    ],
)
def test_smallest_profile_with_the_requested_vcore_and_vmemory(need, name):
    assert mig_placement.split(found([gpu()], pod(need))["c0"][0].mig)[0] == name


def test_instances_that_exceed_the_memory_slices_are_refused():
    held = [holding(gpu(), f"1g.20gb@{start}") for start in (0, 2)]
    held += [holding(gpu(), f"1g.10gb@{start}") for start in (4, 5, 6)]
    assert found([gpu()], pod((1, GIB), wanted="1g.10gb"), held) is None


def test_ids_are_those_of_the_gpu_not_of_a_table():
    share = found([gpu(profiles=A30)], pod((1, GIB), wanted="2g.12gb"))["c0"][0]
    assert share.mig == "2g.12gb@2"
    assert {one.id for one in A30 if one.name == "1g.6gb"} == {14}
    assert {one.id for one in H100 if one.name == "2g.20gb"} == {14}


def test_name_is_the_drivers_own_where_memory_would_round_otherwise():
    names = {one.name: one.memory_bytes for one in mig_profiles.of_model("h200")}
    assert names["3g.71gb"] == 71168 << 20


@pytest.mark.parametrize(
    ("wanted", "need", "said"),
    [
        ("5g.50gb", (1, 1), "has no MIG profile 5g.50gb; it has 1g.10gb"),
        ("1g.10gb", (50, 1), "50 vcore .* requested, it has 12 vcore and"),
        ("1g.10gb", (1, 20 * GIB), "has too little in 1g.10gb: .*20GiB are requested"),
        ("*", (1, 200 * GIB), "no MIG profile for this: .*200GiB .*7g.80gb"),
    ],
)
def test_requests_that_no_profile_serves_name_the_valid_ones(wanted, need, said):
    text = mig_placement.mismatch(H100, wanted, datatypes.ContainerNeed(*need))
    assert re.search(said, text), text
    node = datatypes.NodeDevices((gpu(),))
    with pytest.raises(pod_placement.placement_explanation.Refused, match="profile|too little"):
        pod_placement.place(node, pod(need, wanted=wanted))


def test_shares_and_instances_never_meet_on_a_gpu():
    plain = datatypes.Pod((datatypes.Container("c", datatypes.ContainerNeed(10, GIB)),))
    assert pod_placement.find(free_capacity.of(datatypes.NodeDevices((gpu(),))), plain) is None
    assert not pod_placement.fits(free_capacity.of(datatypes.NodeDevices((gpu(),))), plain)
    whole = datatypes.NodeDevice("GPU-00000000-0000-0000-0000-000000000009", 9, 80 * GIB)
    assert found([whole], pod((1, GIB))) is None
    with pytest.raises(pod_placement.placement_explanation.Refused, match="--dynamic-mig"):
        pod_placement.place(datatypes.NodeDevices((whole,)), pod((1, GIB)))


def test_fits_agrees_with_the_search():
    for layout in random.Random(3).sample(sorted(layouts(H100)), 100):
        for name in ("1g.10gb", "3g.40gb", "7g.80gb"):
            asked = pod((1, GIB), wanted=name)
            free = free_capacity.of(datatypes.NodeDevices((gpu(taken=layout),)))
            assert pod_placement.fits(free, asked) == bool(
                mig_placement.starts(H100, layout, name)
            )


def test_choice_of_another_component_is_checked():
    node = datatypes.NodeDevices((gpu(taken=("1g.10gb@6",)),))
    asked = pod((12, 9 * GIB))

    def problem(place, own=asked):
        share = datatypes.NodeShare(gpu().uuid, 12, 9 * GIB, place)
        return pod_placement.problem(node, own, {"c0": (share,)})

    assert problem("1g.10gb@5") == ""
    assert "no free place for 1g.10gb@6" in problem("1g.10gb@6")
    assert "no free place" in problem("2g.20gb@1")
    assert "no MIG profile 9g.90gb" in problem("9g.90gb@0")
    assert "must be a profile and a memory slice" in problem("")
    # The scheduler's choice comes without the pod's selector.
    assert problem("1g.10gb@5", datatypes.Pod(asked.containers)) == ""
    assert "too little" in problem("1g.10gb@5", datatypes.Pod(pod((50, 9 * GIB)).containers))


@pytest.mark.parametrize(
    "text",
    ["", "1g", "1g.10", "g.gb", "ag.10gb", "1g.10gb.x", "*", "²g.1gb", "1g.10gb+", "1g.10gb "],
)
def test_annotation_that_is_no_profile_is_refused(text):
    with pytest.raises(errors.UsageError, match=r"pyvgpu.io/mig .*such as 1g.10gb"):
        mig_placement.check_name(text)


@pytest.mark.parametrize(
    "text", ["1g.10gb", "1g.10gb+me", "7g.141gb", "1g.24gb+me.all", "1g.24gb-me"]
)
def test_names_of_profiles_are_accepted(text):
    assert mig_placement.check_name(text) == text


def test_order_of_gpus_of_one_kind_does_not_cost_search_steps():
    budget = search_budget.SearchBudget()
    devices = tuple(gpu(number) for number in range(8))
    free = free_capacity.of(datatypes.NodeDevices(devices))
    asked = pod(*itertools.repeat((100, 0), 9))
    assert mig_search.find(free, asked, budget) is None
    assert budget.left > 0


@pytest.mark.parametrize(
    ("model", "occupied", "wanted", "obstacle"),
    [
        pytest.param(
            "h100", ("1g.10gb@6", "2g.20gb@2"), "4g.40gb",
            "it takes 4 memory slices from 0, free are 0-1 4-5 7 in pieces; it has a place for "
            "2g.20gb, 1g.20gb, 1g.10gb, 1g.10gb+me",
            id="fragmented",
        ),
        pytest.param(
            "h100", ("3g.40gb@0", "3g.40gb@4"), "1g.10gb",
            "it takes 1 memory slice from 0 or 1 or 2 or 3 or 4 or 5 or 6, free are none; it has "
            "a place for no other profile",
            id="memory slices",
        ),
        pytest.param(
            "h100", tuple(f"1g.10gb@{at}" for at in range(7)), "1g.20gb",
            "it takes 2 memory slices from 0 or 2 or 4 or 6, free are 7;",
            id="the last one",
        ),
        pytest.param(
            "h100", ("1g.10gb+me@0",), "1g.10gb+me", "a GPU has at most 1 of it;", id="most"
        ),
        pytest.param(
            "h100", ("2g.20gb@0", "4g.40gb@4"), "2g.20gb", "it takes 2 compute slices, of 7 6 are",
            id="compute slices",
        ),
        pytest.param(
            "h100", ("9g.90gb@0",), "1g.10gb", "instances of profiles that it does not list",
            id="unknown",
        ),
    ],
)  # fmt: skip
def test_obstacle_to_an_instance_is_named(model, occupied, wanted, obstacle):
    need = datatypes.ContainerNeed(1, 1)
    profiles = mig_profiles.of_model(model)
    said = mig_placement.short(profiles, occupied, wanted, need)
    assert said.startswith(f"has no place for {wanted} beside {', '.join(occupied)}: ")
    assert obstacle in said
    assert 0 < mig_placement.lacking(profiles, occupied, wanted, need) <= 1
