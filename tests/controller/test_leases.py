"""Leases: one acts, and another when that one does not any more."""

import threading

import pytest

from pyvgpu.controller import leases

PATH = leases.path("n", "l")


@pytest.fixture
def lease(small):
    return lambda holder: leases.Lease(small[1], "n", "l", holder)


def test_one_of_two_holds_it(small, lease):
    first, second = lease("first"), lease("second")
    assert [first.try_to_hold(), second.try_to_hold(), first.try_to_hold()] == [True, False, True]
    assert (first.is_held, second.is_held) == (True, False)
    assert small[0].read(PATH)["spec"]["holderIdentity"] == "first"


def test_it_is_found_by_its_label(small, lease):
    holder = lease("first")
    assert holder.try_to_hold()
    assert holder.try_to_hold({"a": "b"})
    assert small[0].read(PATH)["metadata"]["labels"] == {"app.kubernetes.io/name": "pyvgpu"}


def test_who_sees_that_another_holds_it_does_nothing_more(small, lease):
    first = lease("first")
    first.try_to_hold()
    taken = small[0].read(PATH)
    small[0].put(PATH, {**taken, "spec": {**taken["spec"], "holderIdentity": "second"}})
    assert not first.try_to_hold()
    assert not first.is_held


def test_a_renewal_that_fails_takes_nothing_from_the_time_that_is_left(small, lease):
    first = lease("first")
    first.try_to_hold()
    small[0].failing = [500]
    assert not first.try_to_hold()
    assert first.is_held


def test_a_renewal_is_one_request(small, lease):
    first = lease("first")
    first.try_to_hold()
    del small[0].asked[:]
    assert first.try_to_hold({"a": "b"})
    assert [method for method, _ in small[0].asked] == ["PUT"]
    assert small[0].read(PATH)["metadata"]["annotations"] == {"a": "b"}


def test_what_others_wrote_meanwhile_stays(small, lease):
    first = lease("first")
    first.try_to_hold({"a": "b"})
    found = small[0].read(PATH)
    small[0].put(PATH, {**found, "metadata": {"name": "l", "annotations": {"c": "d"}}})
    assert first.try_to_hold({"a": "e"})
    assert small[0].read(PATH)["metadata"]["annotations"] == {"a": "e", "c": "d"}


def test_a_lease_that_was_made_without_a_spec_is_nobodys(small, lease):
    small[0].put(PATH, {"metadata": {"name": "l", "namespace": "n"}})
    first = lease("first")
    assert first.try_to_hold({"a": "b"})
    assert first.is_held
    assert small[0].read(PATH)["spec"]["holderIdentity"] == "first"


def test_what_is_given_back_is_anothers_at_once(lease):
    first, second = lease("first"), lease("second")
    first.try_to_hold()
    first.give_back()
    assert not first.is_held
    assert second.try_to_hold()
    assert not first.try_to_hold()


def test_who_comes_again_under_the_same_name_need_not_wait(lease):
    lease("node").try_to_hold()
    assert lease("node").try_to_hold()


def test_a_lease_that_nobody_renews_is_over(small, lease, monkeypatch):
    first, second = lease("first"), lease("second")
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    first.try_to_hold()
    assert not second.try_to_hold()
    now[0] += leases.LEASE_SECONDS - 1
    assert not second.try_to_hold()
    assert not first.is_held
    now[0] += 1
    assert second.try_to_hold()
    assert small[0].read(PATH)["spec"]["leaseTransitions"] == 1


def test_a_lease_that_is_renewed_is_never_over(lease, monkeypatch):
    first, second = lease("first"), lease("second")
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for _ in range(20):
        assert first.try_to_hold()
        assert not second.try_to_hold()
        now[0] += leases.FENCE_SECONDS - 1


@pytest.mark.parametrize("code", [403, 409, 500])
def test_a_write_that_was_refused_holds_nothing(small, lease, code):
    small[0].failing = [404, code]
    first = lease("first")
    assert not first.try_to_hold()
    assert not first.is_held


def test_a_node_says_what_it_has(small, lease):
    lease("node").try_to_hold({"image": "x"})
    lease("node").try_to_hold({"image": ""})
    assert small[0].read(PATH)["metadata"]["annotations"] == {"image": ""}


def test_who_is_told_to_end_gives_it_back(lease):
    first, stop = lease("first"), threading.Event()
    assert first.wait(stop)
    stop.set()
    first.keep(stop)
    assert lease("second").try_to_hold()
