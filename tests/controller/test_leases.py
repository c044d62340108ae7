"""Leader election: one process acts, and another once the first stops renewing."""

import threading

import pytest

from pyvgpu.kube import leases

PATH = leases.path("n", "l")


@pytest.fixture
def lease(small):
    return lambda holder: leases.Lease(small[1], "n", "l", holder)


def test_only_one_of_two_holds_the_lease(small, lease):
    first, second = lease("first"), lease("second")
    assert [first.try_to_hold(), second.try_to_hold(), first.try_to_hold()] == [True, False, True]
    assert (first.is_held, second.is_held) == (True, False)
    assert small[0].read(PATH)["spec"]["holderIdentity"] == "first"


def test_the_lease_has_our_label(small, lease):
    holder = lease("first")
    assert holder.try_to_hold()
    assert holder.try_to_hold({"a": "b"})
    assert small[0].read(PATH)["metadata"]["labels"] == {"app.kubernetes.io/name": "pyvgpu"}


def test_a_holder_stops_at_once_when_another_has_the_lease(small, lease):
    first = lease("first")
    first.try_to_hold()
    taken = small[0].read(PATH)
    small[0].put(PATH, {**taken, "spec": {**taken["spec"], "holderIdentity": "second"}})
    assert not first.try_to_hold()
    assert not first.is_held


def test_a_failed_renewal_does_not_shorten_the_time_left(small, lease):
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


def test_a_renewal_keeps_annotations_of_others(small, lease):
    first = lease("first")
    first.try_to_hold({"a": "b"})
    found = small[0].read(PATH)
    small[0].put(PATH, {**found, "metadata": {"name": "l", "annotations": {"c": "d"}}})
    assert first.try_to_hold({"a": "e"})
    assert small[0].read(PATH)["metadata"]["annotations"] == {"a": "e", "c": "d"}


def test_a_lease_without_a_spec_is_free(small, lease):
    small[0].put(PATH, {"metadata": {"name": "l", "namespace": "n"}})
    first = lease("first")
    assert first.try_to_hold({"a": "b"})
    assert first.is_held
    assert small[0].read(PATH)["spec"]["holderIdentity"] == "first"


def test_a_released_lease_can_be_acquired_at_once(lease):
    first, second = lease("first"), lease("second")
    first.try_to_hold()
    first.give_back()
    assert not first.is_held
    assert second.try_to_hold()
    assert not first.try_to_hold()


def test_a_restarted_holder_of_the_same_name_need_not_wait(lease):
    lease("node").try_to_hold()
    assert lease("node").try_to_hold()


def test_a_lease_that_is_not_renewed_expires(small, lease, monkeypatch):
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


@pytest.mark.slow
def test_a_renewed_lease_never_expires(lease, monkeypatch):
    first, second = lease("first"), lease("second")
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for _ in range(20):
        assert first.try_to_hold()
        assert not second.try_to_hold()
        now[0] += leases.FENCE_SECONDS - 1


@pytest.mark.parametrize("code", [403, 409, 500])
def test_a_refused_write_does_not_hold_the_lease(small, lease, code):
    small[0].failing = [404, code]
    first = lease("first")
    assert not first.try_to_hold()
    assert not first.is_held


def test_annotations_can_be_overwritten(small, lease):
    lease("node").try_to_hold({"image": "x"})
    lease("node").try_to_hold({"image": ""})
    assert small[0].read(PATH)["metadata"]["annotations"] == {"image": ""}


def test_a_stopped_holder_releases_the_lease(lease):
    first, stop = lease("first"), threading.Event()
    assert first.wait(stop)
    stop.set()
    first.keep(stop)
    assert lease("second").try_to_hold()
