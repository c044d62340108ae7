"""The scheduler cache: reservations and their ends."""

import pytest
import schedulerpods as pods
from allocator_nodes import GIB, device

from pyvgpu import errors
from pyvgpu.allocator import placement_explanation
from pyvgpu.controller.scheduler import cache, node_info, pod_request

SECONDS = cache.SchedulerSettings().bind_seconds


@pytest.fixture
def known():
    """A cache with two nodes of two devices each."""
    made = cache.Cache()
    for name in ("n1", "n2"):
        made.see_node(name, pods.published())
    return made


def ask(name="one", *containers, **more):
    return pod_request.read(pods.pod(name, *containers, **more), (pods.KEY,))


def bound(name, node, number=0, vcore=50, size=8, **more):
    """A pod that the API server has bound, with its device."""
    thing = pods.pod(name, pods.container(vcore=vcore, size=size), **more)
    shares = {"main": (pods.share(number, vcore, size),)}
    return pod_request.read(pods.bind(thing, node, shares), (pods.KEY,))


def free(known, node="n1"):
    """The free vcore of each device."""
    return [room.vcore for room in known.nodes[node].free]


def see(known, pod):
    known.see_pod(pod.key, pod)


def test_a_reserved_share_goes_to_no_other_pod(known):
    shares = known.reserve(ask("one", pods.container(vcore=60)), "n1", 0)
    assert shares == {"main": (pods.share(0, 60),)}
    assert known.reserve(ask("two", pods.container(vcore=60)), "n1", 0) == {
        "main": (pods.share(1, 60),)
    }
    with pytest.raises(
        placement_explanation.Refused, match=r"gpu0 needs 60 vcore, has 40 free \(team/one 60"
    ):
        known.reserve(ask("three", pods.container(vcore=60)), "n1", 0)
    assert free(known) == [40, 40]
    assert free(known, "n2") == [100, 100]


def test_reserve_is_idempotent(known):
    one = ask()
    assert known.reserve(one, "n1", 0) == known.reserve(one, "n1", 5)
    assert free(known) == [50, 100]
    with pytest.raises(errors.UnavailableError, match="team/one is binding on n1 already"):
        known.reserve(one, "n2", 0)


def test_release_frees_a_pod_that_was_not_bound(known):
    one = ask()
    known.reserve(one, "n1", 0)
    known.release(one.uid)
    assert free(known) == [100, 100]
    assert known.reserve(one, "n2", 0)


def test_an_unanswered_bind_stays_reserved_and_is_in_doubt(known):
    one = ask()
    known.reserve(one, "n1", 0)
    assert known.doubtful(SECONDS - 1) == []
    assert known.expire(10 * SECONDS) == []
    assert [reservation.pod.uid for reservation in known.doubtful(SECONDS)] == [one.uid]
    assert free(known) == [50, 100]
    see(known, bound("one", "n1"))
    assert known.doubtful(10 * SECONDS) == []
    assert free(known) == [50, 100]


def test_updates_from_before_the_bind_undo_nothing(known):
    one = ask()
    known.reserve(one, "n1", 0)
    see(known, one)
    assert free(known) == [50, 100]
    see(known, bound("one", "n1"))
    known.release(one.uid)
    assert free(known) == [50, 100]


def test_a_bound_pod_that_becomes_unbound_is_in_doubt_and_then_free(known):
    """As after a restore of the API server from a backup."""
    one = ask()
    see(known, bound("one", "n1"))
    assert known.doubtful(0) == []
    see(known, one)
    assert free(known) == [50, 100]
    assert [reservation.pod for reservation in known.doubtful(0)] == [one]
    known.release(one.uid)
    assert free(known) == [100, 100]
    assert known.reserve(one, "n2", 0)


def test_the_api_servers_node_overrides_our_reservation(known):
    known.reserve(ask(), "n1", 0)
    see(known, bound("one", "n2", 1))
    assert free(known, "n1") == [100, 100]
    assert free(known, "n2") == [100, 50]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda known: known.see_pod("team/one", None), id="gone"),
        pytest.param(
            lambda known: see(known, bound("one", "n2", 1, uid="another")), id="re-created"
        ),
        *(
            pytest.param(
                lambda known, phase=phase: see(
                    known, pod_request.read({**pods.pod("one"), "status": {"phase": phase}})
                ),
                id=phase,
            )
            for phase in sorted(pod_request.OVER)
        ),
    ],
)
@pytest.mark.parametrize("state", ["reserved", "bound"])
def test_a_reservation_ends_with_its_pod(known, end, state):
    if state == "reserved":
        see(known, ask())
        known.reserve(ask(), "n1", 0)
    else:
        see(known, bound("one", "n1"))
    assert free(known) == [50, 100]
    end(known)
    assert free(known) == [100, 100]


def test_a_terminating_pod_holds_its_device_until_it_is_gone(known):
    thing = pods.bind(pods.pod(), "n1", {"main": (pods.share(0),)})
    thing["metadata"]["deletionTimestamp"] = "2026-11-22T03:01:00Z"
    see(known, pod_request.read(thing, (pods.KEY,)))
    assert free(known) == [50, 100]


def test_pods_that_arrive_before_their_node(known):
    see(known, bound("one", "n3", 1))
    known.see_node("n3", pods.published())
    assert free(known, "n3") == [100, 50]


def test_a_node_that_comes_back_still_has_its_pods(known):
    see(known, bound("one", "n1"))
    known.forget_node("n1")
    with pytest.raises(placement_explanation.Refused, match="the node has published no devices"):
        known.reserve(ask("two"), "n1", 0)
    known.see_node("n1", pods.published())
    assert free(known) == [50, 100]


def test_deleted_nodes_without_pods_are_dropped(known):
    see(known, bound("one", "n1"))
    known.forget_node("n1")
    known.forget_node("n2")
    assert list(known.nodes) == ["n1"]
    known.see_pod("team/one", None)
    assert not known.nodes


def test_an_invalid_annotation_means_no_devices(known):
    known.see_node("n1", None, "is damaged")
    with pytest.raises(placement_explanation.Refused):
        known.reserve(ask(), "n1", 0)
    assert known.nodes["n1"].trouble == "is damaged"


def test_the_agents_placement_overrides_all_others(known):
    placed = {"uid-one": {"main": (pods.share(1, 30),)}, "stranger": {"x": (pods.share(1, 20),)}}
    known.see_node("n1", pods.published(placed=placed))
    assert free(known) == [100, 50]
    see(known, bound("one", "n1", 0))
    assert free(known) == [100, 50]
    known.see_pod("team/one", None)
    assert free(known) == [100, 50]
    known.see_node("n1", pods.published())
    assert free(known) == [100, 100]


def test_init_containers_of_a_pod_that_an_agent_placed_are_not_added_to_its_apps(known):
    thing = pods.pod("one", pods.container("app"), init=[pods.container("first")], nodeName="n1")
    shares = {name: (pods.share(0),) for name in ("first", "app")}
    known.see_node("n1", pods.published(placed={"uid-one": shares}))
    assert free(known) == [0, 100]
    see(known, pod_request.read(thing))
    assert free(known) == [50, 100]


def test_a_pod_on_unknown_devices_is_placed_as_its_agent_would(known):
    """It was bound without us; its presumed share is not reserved for another pod."""
    for name in ("one", "two", "three"):
        see(known, pod_request.read(pods.pod(name, pods.container(vcore=60), nodeName="n1")))
    assert free(known) == [40, 40]
    with pytest.raises(placement_explanation.Refused, match="team/one 60 vcore"):
        known.reserve(ask("four"), "n1", 0)
    assert known.reserve(ask("five", pods.container(vcore=40)), "n1", 0)


def test_an_expected_reservation_expires_or_is_bound_unchanged(known):
    one = ask("one", pods.container(vcore=60))
    shares = {"main": (pods.share(1, 60),)}
    expected = known.build_reservation(one, "n1", shares, node_info.Certainty.EXPECTED, 5)
    known.store_expiring(expected)
    assert free(known) == [100, 40]
    assert known.expire(4) == []
    assert known.expire(5) == [one]
    assert free(known) == [100, 100]
    known.store_expiring(expected)
    assert known.reserve(one, "n1", 0) == shares


def test_an_expected_reservation_moves_off_an_unusable_device(known):
    one = ask()
    known.store_expiring(
        known.build_reservation(
            one, "n1", {"main": (pods.share(0),)}, node_info.Certainty.EXPECTED, 5
        )
    )
    known.see_node("n1", pods.published(devices=(device(0, cordoned=True), device(1))))
    assert known.reserve(one, "n1", 0) == {"main": (pods.share(1),)}
    assert free(known) == [100, 50]


def test_an_expected_reservation_never_replaces_a_bind(known):
    one = ask()
    shares = known.reserve(one, "n1", 0)
    known.store_expiring(
        known.build_reservation(one, "n2", shares, node_info.Certainty.EXPECTED, 5)
    )
    assert free(known, "n2") == [100, 100]


def test_an_invalid_request_is_refused_with_the_rule(known):
    with pytest.raises(errors.UnavailableError, match="above 100 it must be a multiple"):
        known.reserve(ask("one", pods.container(vcore=150)), "n1", 0)


def test_memory_units_are_the_nodes_own(known):
    made = pods.published()
    known.see_node("n1", type(made)(2 * made.memory_unit, made.devices))
    (share,) = known.reserve(ask(), "n1", 0)["main"]
    assert share.vmemory == 16 * GIB


def test_policies_choose_among_devices(known):
    see(known, bound("one", "n1", 1, 20))
    packed = ask("two", pods.container(vcore=10))
    even = ask("three", pods.container(vcore=10), notes={"pyvgpu.io/placement": "spread"})
    assert known.reserve(packed, "n1", 0)["main"][0].uuid == device(1).uuid
    assert known.reserve(even, "n1", 0)["main"][0].uuid == device(0).uuid


def test_a_gang_is_the_set_of_its_pods(known):
    notes = {"pyvgpu.io/gang": "g", "pyvgpu.io/gang-size": "2"}
    see(known, ask("one", notes=notes))
    see(known, ask("two", notes=notes))
    assert set(known.gangs["team/g"]) == {"uid-one", "uid-two"}
    see(known, ask("one"))
    assert set(known.gangs["team/g"]) == {"uid-two"}
    known.see_pod("team/two", None)
    assert not known.gangs


def test_two_caches_of_the_same_objects_are_equal(known):
    other = cache.Cache()
    things = [bound("one", "n1"), bound("two", "n2", 1), ask("three")]
    for pod in things:
        see(known, pod)
    for pod in reversed(things):
        see(other, pod)
    for name in ("n2", "n1"):
        other.see_node(name, pods.published())
    known.reserve(ask("four"), "n1", 0)
    see(known, ask("four"))
    see(other, ask("four"))
    assert known.differences(other) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            lambda known: known.see_pod("team/one", None), "pod team/one: ", id="missing"
        ),
        pytest.param(
            lambda known: see(known, bound("one", "n1", 1)), "not uid-one on n1", id="moved"
        ),
        pytest.param(
            lambda known: see(known, bound("one", "n2")), "not uid-one on n2", id="elsewhere"
        ),
        pytest.param(
            lambda known: known.see_node("n1", pods.published(3)),
            "node n1: different devices",
            id="node",
        ),
        pytest.param(
            lambda known: known.see_node(
                "n1", pods.published(placed={"u": {"c": (pods.share(0),)}})
            ),
            "node n1: pod u placed differently by its agent",
            id="placed",
        ),
    ],
)
def test_each_difference_is_described(known, change, said):
    other = cache.Cache()
    for made in (known, other):
        for name in ("n1", "n2"):
            made.see_node(name, pods.published())
        see(made, bound("one", "n1"))
    change(other)
    (line,) = known.differences(other)
    assert said in line


def test_updates_in_flight_are_a_different_difference_each_time(known):
    known.see_node("n2", None)

    def placed(*uids):
        return pods.published(placed={uid: {"c": (pods.share(0, 10, 1),)} for uid in uids})

    truths = [cache.Cache(), cache.Cache()]
    found = []
    for truth, ours, theirs in zip(truths, "bc", "ad", strict=True):
        known.see_node("n1", placed("lost", ours))
        truth.see_node("n1", placed(theirs))
        found.append(set(known.differences(truth)))
    assert found[0] & found[1] == {"node n1: pod lost placed differently by its agent"}


def test_listeners_are_called_for_each_changed_node(known):
    heard = []
    known.listen(heard.append)
    known.reserve(ask(), "n1", 0)
    see(known, bound("one", "n2"))
    known.see_pod("team/one", None)
    known.see_node("n1", pods.published())
    assert heard == ["n1", "n1", "n2", "n2", "n1"]
