"""The extender counts the MIG instances of pods, and seals their placements."""

import gpu_pods
import mig_profiles
import pytest
import schedulerpods as pods

from pyvgpu import names
from pyvgpu.allocator import annotations
from pyvgpu.controller.scheduler import cache, extender, index, pod_request, wait_reasons

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


def running(known, name, profile, vcore):
    one = pods.pod(name, pods.container("main", vcore, 4), notes={names.MIG_ANNOTATION: profile})
    shares = known.reserve(pod_request.read(one), "n0", 0.0)
    known.see_pod(f"team/{name}", pod_request.read(pods.bind(one, "n0", shares), [pods.KEY]))


def test_explanation_names_profile_instances_free_slices_and_what_would_fit(known):
    known.see_node("n1", pods.published())
    running(known, "a", "3g.40gb", 40)
    running(known, "b", "1g.20gb", 10)
    found = wait_reasons.find(known, ask("p", vcore=40, size=4), every_device=True)
    why = (
        "has no place for 3g.40gb beside 1g.20gb@2, 3g.40gb@4: it takes 4 memory slices from 0 or "
        "4, free are 0-1; it has a place for 2g.20gb, 1g.20gb, 1g.10gb, 1g.10gb+me "
        "(team/a 3g.40gb@4, team/b 1g.20gb@2)"
    )
    assert found.text() == (
        "team/p asks for a MIG instance 3g.40gb with 40 vcore and 4GiB\n"
        "  no device for a MIG instance 3g.40gb with 40 vcore and 4GiB: "
        "1 node: no place for the MIG instances; "
        "1 node: no healthy device that this pod may use\n"
        f"  nearest: n0 gpu0 {why}; it would fit if team/a ended, or if it asked for 2g.20gb, "
        "which has 24 vcore and 19968MiB\n"
        "  GPUs for MIG instances: n0 gpu0"
    )
    rows = {(node, device): text for node, device, _, text in found.rows()}
    assert rows["n0", "gpu0"] == why
    assert "is not one on which pods get MIG instances (--dynamic-mig" in rows["n1", "gpu0"]
    assert found.document()["migGpus"] == ["n0 gpu0"]


def test_explanation_suggests_amounts_if_no_profile_is_named(known):
    running(known, "a", "4g.40gb", 40)
    running(known, "b", "2g.20gb", 10)
    notes = {names.ISOLATION_ANNOTATION: "hardware"}
    found = wait_reasons.find(known, ask("p", notes, vcore=40, size=4))
    assert found.near.remedies[-1] == "it asked for 19 vcore and 19968MiB"
    best = pods.pod("q", gpu_pods.container("main", 19, 19968 // 256), notes=notes)
    best = pod_request.read(best)
    assert wait_reasons.find(known, best).fitting == ("n0",)


def test_explanation_without_gpus_for_instances_says_so():
    known = cache.Cache()
    known.see_node("n0", pods.published())
    found = wait_reasons.find(known, ask("p"))
    assert "GPUs for MIG instances: none; agent.dynamicMig (--dynamic-mig)" in found.text()
    assert wait_reasons.find(known, ask("q", {}, vcore=100, size=None)).divided is None
