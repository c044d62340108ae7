"""Authorization of the status page: verdicts, caching and rate limit of token reviews."""

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
def authorizer():
    clock = Clock()
    with small_api.running(StatusApi()) as (api, connection):
        yield api, guard.TokenGuard(connection, clock), clock


def shows(token):
    return {"authorization": f"Bearer {token}"}


def test_a_user_with_the_permission_may_see_the_page(authorizer):
    api, known, _ = authorizer
    assert known.check(shows(VIEWER)) == guard.AccessVerdict(200)
    (asked,) = api.reviewed
    assert asked["nonResourceAttributes"] == {"path": "/pyvgpu/status", "verb": "get"}
    assert (asked["user"], asked["groups"], asked["extra"]) == (
        "ada",
        ["people"],
        {"scopes": ["all"]},
    )


def test_a_user_without_the_permission_gets_403_and_the_reason(authorizer):
    found = authorizer[1].check(shows(STRANGER))
    assert found.code == 403
    assert found.why == "eve may not get /pyvgpu/status; a ClusterRole can grant it."


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
def test_a_request_without_a_bearer_token_needs_no_review(authorizer, fields):
    api, known, _ = authorizer
    assert known.check(fields) == guard.NO_TOKEN
    assert api.asked == []


@pytest.mark.parametrize("token", ["x" * (guard.LONGEST_TOKEN + 1), "a\x07b", "é"])
def test_a_malformed_token_is_not_reviewed(authorizer, token):
    api, known, _ = authorizer
    assert known.check(shows(token)) == guard.NO_SUCH
    assert api.asked == []


def test_an_unknown_token_needs_no_access_review(authorizer):
    api, known, _ = authorizer
    assert known.check(shows("of another cluster")) == guard.NO_SUCH
    assert api.asked == [TOKENS]


def test_a_verdict_is_cached_for_a_limited_time(authorizer):
    api, known, clock = authorizer
    for _ in range(5):
        assert known.check(shows(VIEWER)).code == 200
    assert api.asked == [TOKENS, ACCESS]
    api.allowed.clear()
    clock.now += guard.KEPT_SECONDS
    assert known.check(shows(VIEWER)).code == 403


@pytest.mark.slow
def test_reviews_of_unknown_tokens_are_rate_limited(authorizer):
    api, known, clock = authorizer
    assert known.check(shows(VIEWER)).code == 200
    found = [known.check(shows(f"guess-{number}")).code for number in range(3 * guard.MOST_NEW)]
    assert found.count(401) == guard.MOST_NEW - 1
    assert found[-1] == 429
    assert api.asked.count(TOKENS) == guard.MOST_NEW
    clock.now += guard.KEPT_SECONDS / 2
    assert known.check(shows("guess-x")).code == 429
    clock.now += guard.KEPT_SECONDS / 2
    assert known.check(shows(VIEWER)).code == 200
    assert known.check(shows("guess-x")).code == 401


@pytest.mark.slow
def test_an_allowed_token_is_reviewed_again_despite_the_rate_limit(authorizer):
    _, known, clock = authorizer
    assert known.check(shows(VIEWER)).code == 200
    clock.now += guard.KEPT_SECONDS
    assert [known.check(shows(f"guess-{number}")).code for number in range(50)][-1] == 429
    assert known.check(shows(VIEWER)).code == 200


def test_no_user_is_allowed_while_the_api_server_is_unavailable(authorizer):
    api, known, clock = authorizer
    api.failing = [500]
    assert known.check(shows(VIEWER)) == guard.UNAVAILABLE
    api.failing = []
    assert known.check(shows(VIEWER)).code == 200
    clock.now += guard.KEPT_SECONDS
    api.go_down()
    assert known.check(shows(VIEWER)) == guard.UNAVAILABLE


def test_the_cache_is_bounded_and_holds_no_tokens(authorizer, monkeypatch):
    _, known, clock = authorizer
    monkeypatch.setattr(guard, "MOST_KEPT", 8)
    for number in range(20):
        clock.now += guard.KEPT_SECONDS
        known.check(shows(f"guess-{number}"))
    assert len(known._known) == guard.MOST_KEPT
    assert all(len(digest) == 32 and b"guess" not in digest for digest in known._known)
