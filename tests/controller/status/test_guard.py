"""Who may see the cluster's page: what the API server says, and how often it is asked."""

import pytest
import small_api
from status_cluster import STRANGER, VIEWER, StatusApi

from pyvgpu.controller.status import guard

TOKENS, ACCESS = ("POST", guard.TOKENS), ("POST", guard.ACCESS)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def door():
    clock = Clock()
    with small_api.running(StatusApi()) as (api, connection):
        yield api, guard.Guard(connection, clock), clock


def shows(token):
    return {"authorization": f"Bearer {token}"}


def test_who_has_the_right_may_see_it(door):
    api, known, _ = door
    assert known.judge(shows(VIEWER)) == guard.Verdict(200)
    (asked,) = api.reviewed
    assert asked["nonResourceAttributes"] == {"path": "/pyvgpu/status", "verb": "get"}
    assert (asked["user"], asked["groups"], asked["extra"]) == (
        "ada",
        ["people"],
        {"scopes": ["all"]},
    )


def test_who_has_not_is_told_what_is_missing(door):
    found = door[1].judge(shows(STRANGER))
    assert found.code == 403
    assert found.why == "eve may not get /pyvgpu/status, which a ClusterRole gives."


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer   "},
        {"authorization": f"Basic {VIEWER}"},
        {"cookie": VIEWER},
    ],
)
def test_who_shows_no_token_is_asked_for_one_and_nobody_else_is(door, fields):
    api, known, _ = door
    assert known.judge(fields) == guard.NO_TOKEN
    assert api.asked == []


@pytest.mark.parametrize("token", ["x" * (guard.LONGEST_TOKEN + 1), "a\x07b", "é"])
def test_what_can_be_no_token_is_not_asked_about(door, token):
    api, known, _ = door
    assert known.judge(shows(token)) == guard.NO_SUCH
    assert api.asked == []


def test_an_unknown_token_is_no_user_and_its_rights_are_not_asked_for(door):
    api, known, _ = door
    assert known.judge(shows("of another cluster")) == guard.NO_SUCH
    assert api.asked == [TOKENS]


def test_an_answer_counts_for_some_seconds_and_no_longer(door):
    api, known, clock = door
    for _ in range(5):
        assert known.judge(shows(VIEWER)).code == 200
    assert api.asked == [TOKENS, ACCESS]
    api.allowed.clear()
    clock.now += guard.KEPT_SECONDS
    assert known.judge(shows(VIEWER)).code == 403


def test_tokens_that_nobody_knows_do_not_get_the_api_server_asked_without_end(door):
    api, known, clock = door
    assert known.judge(shows(VIEWER)).code == 200
    found = [known.judge(shows(f"guess-{it}")).code for it in range(3 * guard.MOST_NEW)]
    assert found.count(401) == guard.MOST_NEW - 1
    assert found[-1] == 429
    assert api.asked.count(TOKENS) == guard.MOST_NEW
    clock.now += guard.KEPT_SECONDS / 2
    assert known.judge(shows("guess-x")).code == 429
    clock.now += guard.KEPT_SECONDS / 2
    assert known.judge(shows(VIEWER)).code == 200
    assert known.judge(shows("guess-x")).code == 401


def test_who_was_let_in_is_asked_about_again_whatever_others_send(door):
    _, known, clock = door
    assert known.judge(shows(VIEWER)).code == 200
    clock.now += guard.KEPT_SECONDS
    assert [known.judge(shows(f"guess-{it}")).code for it in range(50)][-1] == 429
    assert known.judge(shows(VIEWER)).code == 200


def test_while_the_api_server_cannot_be_asked_nobody_is_let_in(door):
    api, known, clock = door
    api.failing = [500]
    assert known.judge(shows(VIEWER)) == guard.NOBODY_ASKED
    api.failing = []
    assert known.judge(shows(VIEWER)).code == 200
    clock.now += guard.KEPT_SECONDS
    api.go_down()
    assert known.judge(shows(VIEWER)) == guard.NOBODY_ASKED


def test_what_is_remembered_is_bounded_and_no_token(door, monkeypatch):
    _, known, clock = door
    monkeypatch.setattr(guard, "MOST_KEPT", 8)
    for number in range(20):
        clock.now += guard.KEPT_SECONDS
        known.judge(shows(f"guess-{number}"))
    assert len(known._known) == guard.MOST_KEPT
    assert all(len(it) == 32 and b"guess" not in it for it in known._known)
