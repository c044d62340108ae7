"""What is promised to whom, and until when."""

import pytest
import schedulerpods as pods
from allocator_nodes import GIB, device

from pyvgpu import errors
from pyvgpu.allocator import explain
from pyvgpu.controller.scheduler import asks, book, stands

SECONDS = book.Settings().bind_seconds


@pytest.fixture
def known():
    """A book of two nodes with two devices each."""
    made = book.Book()
    for name in ("n1", "n2"):
        made.see_node(name, pods.published())
    return made


def ask(name="one", *containers, **more):
    return asks.read(pods.pod(name, *containers, **more), (pods.KEY,))


def bound(name, node, number=0, vcore=50, size=8, **more):
    """A pod that the API server has on a node, with its device."""
    thing = pods.pod(name, pods.container(vcore=vcore, size=size), **more)
    shares = {"main": (pods.share(number, vcore, size),)}
    return asks.read(pods.bind(thing, node, shares), (pods.KEY,))


def free(known, node="n1"):
    """What is free of each device: vcore."""
    return [room.vcore for room in known.stands[node].free]


def see(known, pod):
    known.see_pod(pod.key, pod)


def test_what_is_reserved_is_nobody_elses(known):
    shares = known.reserve(ask("one", pods.container(vcore=60)), "n1", 0)
    assert shares == {"main": (pods.share(0, 60),)}
    assert known.reserve(ask("two", pods.container(vcore=60)), "n1", 0) == {
        "main": (pods.share(1, 60),)
    }
    with pytest.raises(explain.Refused, match=r"gpu0 needs 60 vcore, has 40 free \(team/one 60"):
        known.reserve(ask("three", pods.container(vcore=60)), "n1", 0)
    assert free(known) == [40, 40]
    assert free(known, "n2") == [100, 100]


def test_asked_again_the_answer_is_the_same(known):
    one = ask()
    assert known.reserve(one, "n1", 0) == known.reserve(one, "n1", 5)
    assert free(known) == [50, 100]
    with pytest.raises(errors.UnavailableError, match="team/one is binding on n1 already"):
        known.reserve(one, "n2", 0)


def test_a_pod_that_was_surely_not_bound_takes_nothing(known):
    one = ask()
    known.reserve(one, "n1", 0)
    known.release(one.uid)
    assert free(known) == [100, 100]
    assert known.reserve(one, "n2", 0)


def test_a_bind_that_nobody_answered_stays_promised_and_is_in_doubt(known):
    one = ask()
    known.reserve(one, "n1", 0)
    assert known.doubtful(SECONDS - 1) == []
    assert known.expire(10 * SECONDS) == []
    assert [it.pod.uid for it in known.doubtful(SECONDS)] == [one.uid]
    assert free(known) == [50, 100]
    see(known, bound("one", "n1"))
    assert known.doubtful(10 * SECONDS) == []
    assert free(known) == [50, 100]


def test_news_from_before_the_bind_undo_nothing(known):
    one = ask()
    known.reserve(one, "n1", 0)
    see(known, one)
    assert free(known) == [50, 100]
    see(known, bound("one", "n1"))
    known.release(one.uid)
    assert free(known) == [50, 100]


def test_what_was_bound_and_is_not_any_more_is_in_doubt_and_then_free(known):
    """As where the API server was restored from a copy of before."""
    one = ask()
    see(known, bound("one", "n1"))
    assert known.doubtful(0) == []
    see(known, one)
    assert free(known) == [50, 100]
    assert [it.pod for it in known.doubtful(0)] == [one]
    known.release(one.uid)
    assert free(known) == [100, 100]
    assert known.reserve(one, "n2", 0)


def test_what_the_api_server_has_goes_before_what_we_promised(known):
    known.reserve(ask(), "n1", 0)
    see(known, bound("one", "n2", 1))
    assert free(known, "n1") == [100, 100]
    assert free(known, "n2") == [100, 50]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda known: known.see_pod("team/one", None), id="gone"),
        pytest.param(
            lambda known: see(known, bound("one", "n2", 1, uid="another")), id="made anew"
        ),
        *(
            pytest.param(
                lambda known, phase=phase: see(
                    known, asks.read({**pods.pod("one"), "status": {"phase": phase}})
                ),
                id=phase,
            )
            for phase in sorted(asks.OVER)
        ),
    ],
)
@pytest.mark.parametrize("state", ["reserved", "bound"])
def test_a_promise_ends_with_its_pod(known, end, state):
    if state == "reserved":
        see(known, ask())
        known.reserve(ask(), "n1", 0)
    else:
        see(known, bound("one", "n1"))
    assert free(known) == [50, 100]
    end(known)
    assert free(known) == [100, 100]


def test_a_pod_that_is_being_deleted_has_its_device_until_it_is_gone(known):
    thing = pods.bind(pods.pod(), "n1", {"main": (pods.share(0),)})
    thing["metadata"]["deletionTimestamp"] = "2026-11-22T03:01:00Z"
    see(known, asks.read(thing, (pods.KEY,)))
    assert free(known) == [50, 100]


def test_pods_that_came_before_their_node(known):
    see(known, bound("one", "n3", 1))
    known.see_node("n3", pods.published())
    assert free(known, "n3") == [100, 50]


def test_a_node_that_comes_again_has_its_pods_still(known):
    see(known, bound("one", "n1"))
    known.forget_node("n1")
    with pytest.raises(explain.Refused, match="the node has published no devices"):
        known.reserve(ask("two"), "n1", 0)
    known.see_node("n1", pods.published())
    assert free(known) == [50, 100]


def test_nodes_of_which_nothing_is_left_are_forgotten(known):
    see(known, bound("one", "n1"))
    known.forget_node("n1")
    known.forget_node("n2")
    assert list(known.stands) == ["n1"]
    known.see_pod("team/one", None)
    assert not known.stands


def test_what_a_node_says_that_cannot_be_read_is_no_device(known):
    known.see_node("n1", None, "is damaged")
    with pytest.raises(explain.Refused):
        known.reserve(ask(), "n1", 0)
    assert known.stands["n1"].trouble == "is damaged"


def test_what_an_agent_placed_itself_counts_where_it_says(known):
    """Whatever anybody else has written."""
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
    see(known, asks.read(thing))
    assert free(known) == [50, 100]


def test_a_pod_of_which_nobody_says_where_it_is_gets_what_its_agent_would_give_it(known):
    """One that went past us; what is free there is not promised to another."""
    for name in ("one", "two", "three"):
        see(known, asks.read(pods.pod(name, pods.container(vcore=60), nodeName="n1")))
    assert free(known) == [40, 40]
    with pytest.raises(explain.Refused, match="team/one 60 vcore"):
        known.reserve(ask("four"), "n1", 0)
    assert known.reserve(ask("five", pods.container(vcore=40)), "n1", 0)


def test_what_is_expected_ends_by_itself_and_goes_on_as_it_is(known):
    one = ask("one", pods.container(vcore=60))
    shares = {"main": (pods.share(1, 60),)}
    expected = known.promised(one, "n1", shares, stands.State.EXPECTED, 5)
    known.promise(expected)
    assert free(known) == [100, 40]
    assert known.expire(4) == []
    assert known.expire(5) == [one]
    assert free(known) == [100, 100]
    known.promise(expected)
    assert known.reserve(one, "n1", 0) == shares


def test_what_is_expected_moves_when_its_device_will_not_do_any_more(known):
    one = ask()
    known.promise(known.promised(one, "n1", {"main": (pods.share(0),)}, stands.State.EXPECTED, 5))
    known.see_node("n1", pods.published(devices=(device(0, cordoned=True), device(1))))
    assert known.reserve(one, "n1", 0) == {"main": (pods.share(1),)}
    assert free(known) == [100, 50]


def test_what_is_expected_never_moves_what_is_being_bound(known):
    one = ask()
    shares = known.reserve(one, "n1", 0)
    known.promise(known.promised(one, "n2", shares, stands.State.EXPECTED, 5))
    assert free(known, "n2") == [100, 100]


def test_a_pod_whose_ask_is_nonsense_is_refused_with_what_would_do(known):
    with pytest.raises(errors.UnavailableError, match="above 100 it must be a multiple"):
        known.reserve(ask("one", pods.container(vcore=150)), "n1", 0)


def test_units_are_the_nodes_own(known):
    told = pods.published()
    known.see_node("n1", type(told)(2 * told.memory_unit, told.devices))
    (share,) = known.reserve(ask(), "n1", 0)["main"]
    assert share.vmemory == 16 * GIB


def test_policies_choose_among_devices(known):
    see(known, bound("one", "n1", 1, 20))
    packed = ask("two", pods.container(vcore=10))
    even = ask("three", pods.container(vcore=10), notes={"pyvgpu.io/placement": "spread"})
    assert known.reserve(packed, "n1", 0)["main"][0].uuid == device(1).uuid
    assert known.reserve(even, "n1", 0)["main"][0].uuid == device(0).uuid


def test_gangs_are_known_by_their_pods(known):
    notes = {"pyvgpu.io/gang": "g", "pyvgpu.io/gang-size": "2"}
    see(known, ask("one", notes=notes))
    see(known, ask("two", notes=notes))
    assert set(known.gangs["team/g"]) == {"uid-one", "uid-two"}
    see(known, ask("one"))
    assert set(known.gangs["team/g"]) == {"uid-two"}
    known.see_pod("team/two", None)
    assert not known.gangs


def test_two_books_of_the_same_objects_differ_in_nothing(known):
    other = book.Book()
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
        pytest.param(lambda it: it.see_pod("team/one", None), "pod team/one: ", id="missing"),
        pytest.param(lambda it: see(it, bound("one", "n1", 1)), "not uid-one on n1", id="moved"),
        pytest.param(lambda it: see(it, bound("one", "n2")), "not uid-one on n2", id="elsewhere"),
        pytest.param(
            lambda it: it.see_node("n1", pods.published(3)), "node n1: other devices", id="node"
        ),
        pytest.param(
            lambda it: it.see_node("n1", pods.published(placed={"u": {"c": (pods.share(0),)}})),
            "node n1: pod u placed otherwise by its agent",
            id="placed",
        ),
    ],
)
def test_each_difference_is_said(known, change, said):
    other = book.Book()
    for made in (known, other):
        for name in ("n1", "n2"):
            made.see_node(name, pods.published())
        see(made, bound("one", "n1"))
    change(other)
    (line,) = known.differences(other)
    assert said in line


def test_what_is_on_its_way_of_a_busy_node_is_another_difference_each_time(known):
    known.see_node("n2", None)

    def placed(*uids):
        return pods.published(placed={uid: {"c": (pods.share(0, 10, 1),)} for uid in uids})

    truths = [book.Book(), book.Book()]
    found = []
    for truth, ours, theirs in zip(truths, "bc", "ad", strict=True):
        known.see_node("n1", placed("lost", ours))
        truth.see_node("n1", placed(theirs))
        found.append(set(known.differences(truth)))
    assert found[0] & found[1] == {"node n1: pod lost placed otherwise by its agent"}


def test_whoever_listens_hears_of_each_node_that_changes(known):
    heard = []
    known.listen(heard.append)
    known.reserve(ask(), "n1", 0)
    see(known, bound("one", "n2"))
    known.see_pod("team/one", None)
    known.see_node("n1", pods.published())
    assert heard == ["n1", "n1", "n2", "n2", "n1"]
