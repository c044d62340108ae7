"""Quota over all claims of a namespace."""

import concurrent.futures
import threading

import claim_objects as make
import pytest
import waiting

from pyvgpu import errors
from pyvgpu.controller.claims import claim_admission, claim_totals
from pyvgpu.controller.webhook import review, total_validation

GIB = 1 << 30
Amount, Reserved, Total = claim_totals.Amount, claim_totals.ReservedClaim, claim_totals.Total


def noted(**annotations):
    named = {f"pyvgpu.io/total-{key}": value for key, value in annotations.items()}
    return {"metadata": {"name": "team", "uid": "uid-of-team", "annotations": named}}


@pytest.mark.parametrize(
    ("namespace", "total"),
    [
        ({}, Total()),
        (noted(vcore="400"), Total(400)),
        (noted(vmemory="64Gi"), Total(None, 64 * GIB)),
        (noted(vcore="0", vmemory="1Gi"), Total(0, GIB)),
    ],
)
def test_a_namespaces_total_is_read_from_its_annotations(namespace, total):
    assert claim_totals.total_of(namespace) == total


@pytest.mark.parametrize(
    ("namespace", "why"),
    [
        (noted(vcore="many"), "annotation pyvgpu.io/total-vcore 'many' of the namespace: must be"),
        (noted(vcore="-1"), "must be a whole number, such as 400"),
        (noted(vcore="9" * 5000), "'9{40}' of the namespace: must be a whole number"),
        (noted(vmemory="1.5Gi"), "annotation pyvgpu.io/total-vmemory '1.5Gi': must be a whole"),
    ],
)
def test_an_invalid_annotation_of_a_namespace_is_refused(namespace, why):
    with pytest.raises(errors.UsageError, match=why):
        claim_totals.total_of(namespace)


def either(*sizes):
    listed = [{"name": str(at), **make.request(*size)["exactly"]} for at, size in enumerate(sizes)]
    return {"name": "either", "firstAvailable": listed}


@pytest.mark.parametrize(
    ("requests", "amount"),
    [
        ([], Amount()),
        ([make.request(30, "1Gi")], Amount(30, GIB)),
        ([make.request(30, "1Gi", count=3)], Amount(90, 3 * GIB)),
        ([make.request(30, "1Gi"), make.request(20, "2Gi")], Amount(50, 3 * GIB)),
        ([make.request(None, "1Gi")], Amount(100, GIB)),
        ([make.request(30, None)], Amount(30, None)),
        ([make.request(30, None), make.request(20, "2Gi")], Amount(50, None)),
        ([make.request(30, "1Gi", deviceClassName="vgpu-h100")], Amount(30, GIB)),
        ([make.request(30, "1Gi", deviceClassName="nic")], Amount()),
        ([make.request(None, None, adminAccess=True)], Amount()),
        ([either((30, "1Gi"), (20, "4Gi"))], Amount(30, 4 * GIB)),
    ],
)
def test_requests_of_a_claim_are_summed(requests, amount):
    assert claim_totals.asked_by(make.claim("c", *requests)) == amount


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (
            make.request(30, "1Gi", allocationMode="All"),
            "request vgpu: allocationMode All: in a namespace",
        ),
        (
            make.request(30, "1Gi", deviceClassName="vgpu-mig"),
            "request vgpu: deviceClassName vgpu-mig: a MIG partition has at least",
        ),
        (make.request("500m", "1Gi"), "request vgpu: capacity vcore '500m': must be a whole"),
        (make.request("9" * 5000, "1Gi"), "capacity vcore '9{40}': must be a whole number"),
        (make.request(30, "0.5Gi"), "capacity vmemory '0.5Gi': must be a whole number"),
    ],
)
def test_a_request_without_a_sum_is_refused_but_tolerated_in_existing_claims(request_, why):
    claim = make.claim("c", request_)
    with pytest.raises(errors.UsageError, match=why):
        claim_totals.asked_by(claim)
    assert claim_totals.held_by(claim).vmemory == 0


def test_a_claim_without_sizes_counts_what_it_was_allocated():
    claim = make.got(make.claim("c", make.request(None, None)), "p", ("n", 0, "100", "16Gi"))
    assert claim_totals.held_by(claim) == Amount(100, 16 * GIB)


@pytest.mark.parametrize(
    ("total", "asked", "there", "reserved", "why"),
    [
        (Total(100), Amount(30), [Amount(70)], [], ""),
        (
            Total(100),
            Amount(31),
            [Amount(70)],
            [],
            "requests 31 vcore, other claims of this namespace 7",
        ),
        (Total(100), Amount(31), [Amount(40)], [Amount(30)], "70: the total may be at most"),
        (Total(None, GIB), Amount(99, GIB), [], [], ""),
        (Total(None, GIB), Amount(1, GIB), [Amount(1, 1)], [], "at most 1GiB, by annotation"),
        (Total(None, GIB), Amount(1, None), [], [], "vmemory is not set; in a namespace"),
        (Total(100), Amount(1, None), [], [], ""),
    ],
)
def test_a_claim_is_admitted_while_the_sum_is_within_the_total(total, asked, there, reserved, why):
    said = claim_totals.why_not(total, asked, there, [Reserved(amount, 0) for amount in reserved])
    assert why in said
    assert bool(said) == bool(why)


def test_a_reservation_lasts_until_the_claim_exists_or_the_time_is_over():
    some = {
        uid: Reserved(Amount(1, 2), at) for uid, at in (("a", 0.0), ("b", 100.0), ("c", 100.0))
    }
    assert claim_totals.left(some, {"c"}, 130.0) == {"b": some["b"]}
    data = {uid: reserved.text for uid, reserved in some.items()}
    malformed = {"d": "garbage", "e": "1 2", "f": "1 2 -3", "g": f"1 {'2' * 5000} 3"}
    assert claim_totals.read({"data": {**data, **malformed}}) == some


NAMESPACE = "/api/v1/namespaces/team"
CLAIMS = f"{make.GROUP}/namespaces/team/resourceclaims"
LEDGER = "/api/v1/namespaces/pyvgpu/configmaps/claims-of-team"


@pytest.fixture
def keeper(small):
    small[0].put(NAMESPACE, noted(vcore="100"))
    return claim_admission.ClaimAdmitter(small[1], "pyvgpu")


def third(uid):
    made = make.claim(uid, make.request(30, "1Gi"))
    return {**made, "metadata": {**made["metadata"], "uid": uid}}


def admit(keeper, uid, dry_run=False):
    return keeper.why_not("team", third(uid), uid, dry_run)


@pytest.mark.slow
def test_an_admitted_claim_counts_once_before_and_after_its_creation(small, keeper):
    for uid in "abc":
        assert not admit(keeper, uid)
        assert not admit(keeper, uid)  # asked again about the same
    assert "other claims of this namespace 90" in admit(keeper, "d")
    for uid in "abc":
        small[0].put(f"{CLAIMS}/{uid}", third(uid))
    assert "other claims of this namespace 90" in admit(keeper, "d")
    small[0].delete(f"{CLAIMS}/a")
    assert not admit(keeper, "d")
    assert set(small[0].read(LEDGER)["data"]) == {"d"}


def test_a_claim_deleted_before_it_was_listed_still_counts(small, keeper):
    for uid in "abc":
        admit(keeper, uid)
    small[0].put(f"{CLAIMS}/a", third("a"))
    small[0].delete(f"{CLAIMS}/a")  # before it was ever listed
    assert "other claims of this namespace 90" in admit(keeper, "d")


def test_the_namespace_owns_its_ledger(small, keeper):
    admit(keeper, "a")
    ledger = small[0].read(LEDGER)
    uid = small[0].read(NAMESPACE)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Namespace", "name": "team", "uid": uid}
    assert ledger["metadata"]["ownerReferences"] == [owner]
    del ledger["metadata"]["ownerReferences"]  # written by an earlier version
    small[0].put(LEDGER, ledger)
    admit(keeper, "b")
    assert small[0].read(LEDGER)["metadata"]["ownerReferences"] == [owner]


def test_a_dry_run_is_evaluated_and_not_counted(small, keeper):
    assert not admit(keeper, "a", dry_run=True)
    assert not any(path.startswith("/api/v1/namespaces/pyvgpu") for _, path in posted(small[0]))


def posted(api):
    return [call for call in api.asked if call[0] != "GET"]


def test_without_a_total_nothing_is_written(small, keeper):
    small[0].put(NAMESPACE, noted())
    assert not admit(keeper, "a")
    assert not posted(small[0])


@pytest.mark.slow
def test_concurrent_claims_never_exceed_the_total(small, keeper):
    def ask(uid):
        try:
            return not admit(keeper, uid)
        except errors.UnavailableError:
            return False

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        admitted = list(pool.map(ask, (f"u{number}" for number in range(6))))
    assert 1 <= sum(admitted) <= 3
    assert len(small[0].read(LEDGER)["data"]) == sum(admitted)


def test_a_burst_of_claims_within_the_total_is_admitted_by_one_replica(small, keeper):
    small[0].put(NAMESPACE, noted(vcore="900"))
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        assert not any(pool.map(lambda number: admit(keeper, f"u{number}"), range(24)))
    assert len(small[0].read(LEDGER)["data"]) == 24


class PausedLists:
    """An API server whose lists wait until they may go on."""

    def __init__(self, api):
        self.api = api
        self.lists = 0
        self.may_go_on = threading.Event()

    def call(self, *args, **options):
        return self.api.call(*args, **options)

    def items(self, path, query):
        self.lists += 1
        assert self.may_go_on.wait(60)
        return self.api.items(path, query)


def test_claims_that_arrive_during_a_list_share_the_next_one(small, monkeypatch):
    monkeypatch.setattr(claim_admission, "TURN_SECONDS", 60.0)
    small[0].put(NAMESPACE, noted(vcore="600"))
    paused = PausedLists(small[1])
    keeper = claim_admission.ClaimAdmitter(paused, "pyvgpu")
    count = 40
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        asked = [pool.submit(admit, keeper, f"u{number}") for number in range(count)]
        waiting.wait_until(lambda: paused.lists == 1 and all(one.running() for one in asked))
        paused.may_go_on.set()
        answers = [one.result() for one in asked]
    assert sum(not why for why in answers) == 20  # of 30 vcore each
    assert paused.lists < count / 2
    assert len(small[0].read(LEDGER)["data"]) == 20


def test_a_claim_that_waits_too_long_is_refused_and_not_counted(small, monkeypatch):
    monkeypatch.setattr(claim_admission, "TURN_SECONDS", 0.05)
    small[0].put(NAMESPACE, noted(vcore="600"))
    paused = PausedLists(small[1])
    keeper = claim_admission.ClaimAdmitter(paused, "pyvgpu")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(admit, keeper, "a")
        waiting.wait_until(lambda: paused.lists == 1)
        with pytest.raises(errors.UnavailableError, match="too many claims at once"):
            admit(keeper, "b")
        monkeypatch.setattr(claim_admission, "TURN_SECONDS", 60.0)
        paused.may_go_on.set()
        assert first.result() == ""  # its batch had begun
        assert not admit(keeper, "c")
    assert set(small[0].read(LEDGER)["data"]) == {"a", "c"}


@pytest.mark.slow
def test_conflicts_on_the_ledger_are_retried_a_limited_number_of_times(small, keeper):
    small[0].refusing["POST"] = [409] * (claim_admission.ATTEMPTS - 1)
    assert not admit(keeper, "a")
    small[0].refusing["PUT"] = [409] * claim_admission.ATTEMPTS
    with pytest.raises(errors.UnavailableError, match="too many claims of namespace team at once"):
        admit(keeper, "b")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("nonsense"), review.FORBIDDEN),
        (errors.UnavailableError("busy"), review.FAILED),
        (ZeroDivisionError(), review.FAILED),
    ],
)
def test_a_claim_that_cannot_be_counted_is_refused(error, code):
    def fail(*_):
        raise error

    kind = "resourceclaims.resource.k8s.io"
    answer = total_validation.validation(fail)(
        review.AdmissionRequest("u", "CREATE", kind, "team", third("a"))
    )
    assert (bool(answer.refusal), answer.code) == (True, code)
    other = review.AdmissionRequest("u", "UPDATE", kind, "team", third("a"))
    assert total_validation.validation(fail)(other) == review.Review()
