"""The extender counts the MIG instances of pods, and seals their placements."""

import mig_profiles
import pytest
import schedulerpods as pods

from pyvgpu import names
from pyvgpu.allocator import annotations
from pyvgpu.controller.scheduler import cache, extender, index, pod_request

NOTES = {names.MIG_ANNOTATION: "3g.40gb"}


def ask(name, notes=NOTES, vcore=40, size=30):
    return pod_request.read(pods.pod(name, pods.container("main", vcore, size), notes=notes))


@pytest.fixture(name="known")
def fixture_known():
    known = cache.Cache()
    known.see_node("n0", pods.published(devices=(mig_profiles.gpu(),)))
    return known


def test_burst_of_pods_is_counted_before_an_agent_reports_anything(known):
    decider = extender.Decider(known)
    places = []
    for name in "ab":
        one = ask(name, vcore=30, size=20)
        assert list(decider.filter(one, ["n0"], 0).fitting) == ["n0"]
        (share,) = known.reserve(one, "n0", 0.0)["main"]
        places.append(share.mig)
        assert (share.vcore, share.uuid) == (30, mig_profiles.gpu().uuid)
    assert sorted(places) == ["3g.40gb@0", "3g.40gb@4"]
    assert decider.filter(ask("c", vcore=30, size=20), ["n0"], 0).failed == {
        index.RefusalReason.PLACES.value: ["n0"]
    }


def test_bound_pods_are_counted_by_their_sealed_choice(known):
    one = pods.pod("a", pods.container("main", 40, 30), notes=NOTES)
    shares = known.reserve(pod_request.read(one), "n0", 0.0)
    bound = pod_request.read(pods.bind(one, "n0", shares), [pods.KEY])
    assert [holding.share.mig for holding in bound.held] == ["3g.40gb@4"]
    text = one["metadata"]["annotations"][names.DEVICES_ANNOTATION]
    assert annotations.show(text, "uid-a", "n0").containers["main"] == shares["main"]


@pytest.mark.parametrize(
    ("notes", "vcore", "size", "why"),
    [
        pytest.param({}, 10, 1, index.RefusalReason.CLOSED, id="a quota"),
        pytest.param(
            {names.MIG_ANNOTATION: "1g.5gb"}, 1, 1, index.RefusalReason.CLOSED, id="name"
        ),
        pytest.param(
            {names.MIG_ANNOTATION: "1g.10gb"}, 50, 1, index.RefusalReason.CLOSED, id="figures"
        ),
    ],
)
def test_pods_that_the_gpu_never_serves(known, notes, vcore, size, why):
    failed = extender.Decider(known).filter(ask("p", notes, vcore, size), ["n0"], 0).failed
    assert failed == {why.value: ["n0"]}


def test_a_taken_place_is_not_given():
    known = cache.Cache()
    taken = ("3g.40gb@0", "1g.10gb@6")
    known.see_node("n0", pods.published(devices=(mig_profiles.gpu(taken=taken),)))
    assert extender.Decider(known).filter(ask("p"), ["n0"], 0).failed == {
        index.RefusalReason.PLACES.value: ["n0"]
    }
