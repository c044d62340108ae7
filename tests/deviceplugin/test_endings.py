"""A grant ends when its pod is surely over, and not because kubelet does not know better yet."""

import pytest
from held_grants import grant

from pyvgpu.deviceplugin import apiserver, endings, grants, podresources

ONE = grant()
NAME = (ONE.owner.namespace, ONE.owner.pod)


class Listed:
    namespace, name = NAME


def said(*, listed, written=True, life="first"):
    """What a kubelet says of the one grant that there is."""
    listing = podresources.Listing(life, (Listed,) if listed else ())
    return endings.Said(listing, frozenset({ONE.id} if written else ()))


@pytest.fixture
def known():
    """The endings as they are when a kubelet has listed the pod."""
    made = endings.Endings(lambda: 0.0)
    assert made.over([ONE], said(listed=True)) == []
    return made


def test_a_pod_that_its_kubelet_lists_no_more_is_over(known):
    assert known.over([ONE], said(listed=False)) == [ONE]


def test_a_new_kubelet_that_lists_nobody_yet_ends_nothing(known):
    for _ in range(3):
        assert known.over([ONE], said(listed=False, life="second")) == []
    assert known.over([ONE], said(listed=True, life="second")) == []
    assert known.over([ONE], said(listed=False, life="second")) == [ONE]


def test_whom_a_new_kubelet_does_not_list_the_api_server_is_asked_for(known):
    asked = []
    known.ask = lambda owner: asked.append(owner.uid) or len(asked) > 1
    assert known.over([ONE], said(listed=False, life="second")) == []
    assert known.over([ONE], said(listed=False, life="second")) == [ONE]
    assert asked == [ONE.owner.uid] * 2


def test_what_kubelet_has_not_written_down_any_more_is_over(known):
    assert known.over([ONE], said(listed=True, written=False, life="second")) == [ONE]


def test_whom_a_start_has_met_in_the_list_is_known_to_it():
    made = endings.Endings(lambda: 0.0)
    made.note(said(listed=True).listing)
    assert made.over([ONE], said(listed=False)) == [ONE]


def test_who_was_bound_while_the_list_was_asked_for_is_not_forgotten():
    made = endings.Endings(lambda: 0.0)
    unbound = grants.Grant(ONE.id, ONE.vcore_ids, 1.0)
    before = said(listed=False)
    made.note(said(listed=True).listing)  # a start, which binds it then
    assert made.over([unbound], before) == []
    made.keep([ONE])
    assert made.over([ONE], said(listed=False)) == [ONE]
    made.note(said(listed=True).listing)
    made.keep([])
    assert made.over([ONE], said(listed=False)) == []


def test_a_grant_of_nobody_is_over_when_kubelet_has_not_written_it_for_a_minute():
    now = [1000.0]
    made = endings.Endings(lambda: now[0])
    free = grants.Grant(ONE.id, ONE.vcore_ids, 1.0)
    for seconds, written, found in ((0, False, []), (60, False, []), (1, True, [])):
        now[0] += seconds
        assert made.over([free], said(listed=False, written=written)) == found
    for seconds, found in ((0, []), (61, [free])):
        now[0] += seconds
        assert made.over([free], said(listed=False, written=False)) == found


def test_what_processes_keep_waits_for_nothing_else():
    made = endings.Endings(lambda: 0.0)
    assert made.over([ONE.ended()], said(listed=True)) == [ONE.ended()]


class Api:
    """An API server with one pod, or none, or none that answers."""

    def __init__(self, pod, status=200):
        self.pod, self.status = pod, status

    def call(self, method, path):
        assert (method, path) == ("GET", "/api/v1/namespaces/team/pods/pod")
        if self.status != 200:
            raise apiserver.ServerError("no", self.status)
        return self.pod


def pod(uid, phase):
    return {"metadata": {"uid": uid}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("api", "over"),
    [
        pytest.param(Api(pod(ONE.owner.uid, "Running")), False, id="runs"),
        pytest.param(Api(pod(ONE.owner.uid, "Pending")), False, id="waits"),
        pytest.param(Api(pod(ONE.owner.uid, "Succeeded")), True, id="ended"),
        pytest.param(Api(pod("another", "Running")), True, id="another of its name"),
        pytest.param(Api(None, 404), True, id="gone"),
        pytest.param(Api(None, 403), False, id="not told"),
        pytest.param(Api(None, 0), False, id="no answer"),
    ],
)
def test_the_api_server_says_whether_a_pod_is_over(api, over):
    assert apiserver.is_over(api, "node-1", ONE.owner) is over


STATIC = grants.Owner("b2f1" * 8, ONE.owner.namespace, ONE.owner.pod, ONE.owner.container)


def mirror(uid, phase):
    of = {"kubernetes.io/config.mirror": uid}
    return {"metadata": {"uid": "its own", "annotations": of}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("api", "over"),
    [
        pytest.param(Api(mirror(STATIC.uid, "Running")), False, id="runs"),
        pytest.param(Api(mirror(STATIC.uid, "Failed")), True, id="ended"),
        pytest.param(Api(mirror("0" * 32, "Running")), False, id="the mirror of its next file"),
        pytest.param(Api(None, 404), False, id="no mirror yet"),
    ],
)
def test_a_static_pod_is_known_by_its_mirror(api, over):
    """Which has a uid of its own, and is made when kubelet has started it already."""
    assert apiserver.is_over(api, "node-1", STATIC) is over
