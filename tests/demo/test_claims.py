"""Each claim of the demonstration can fail: every row adds one fault to a good one."""

import dataclasses
import json

import pytest

from pyvgpu.demo import assertions
from pyvgpu.demo.observations import GIB, MIB, EventKind, Observations, Role, TenantEvent

from .observed import GOOD, PLAN, SAMPLES, altered, having, sample, timed, without

QUOTA, STEADY, GROWER, DOOMED, LATE, TIME, IDLE, NOTHING = (
    claim for claim, _ in assertions.CLAIMS
)
TWO_OVER = 2 * GIB + 1
HIDDEN = ((3, 4 * GIB), (4.5, 0))  # seconds, and the memory of the doomed tenant


def failed(seen):
    return {
        verdict.claim: verdict.seen for verdict in assertions.evaluate(seen) if not verdict.holds
    }


def test_good_demonstration_holds_in_every_claim():
    assert failed(GOOD) == {}


def test_verdicts_report_the_measurements():
    assert [verdict.seen for verdict in assertions.evaluate(GOOD)] == [
        "largest seen: steady 1.00 GiB of 2.00 GiB, grower 6.00 GiB of 6.00 GiB, "
        "doomed 4.00 GiB of 4.00 GiB, small 0.50 GiB of 0.75 GiB, large 0.50 GiB of 0.75 GiB, "
        "idle 0.50 GiB of 0.75 GiB, in 5 samples",
        "computed in 0.47 GiB 2 times, every byte read back and right; "
        "1 of them after the neighbour's death",
        "holding 5.25 GiB and a context: CUDA_ERROR_OUT_OF_MEMORY, although the device had "
        "67.50 GiB free; 1 requests refused, and the program went on",
        "3.50 GiB were free again in the first sample, 0.50 s later, and the run's next "
        "process got as much",
        "66.75 GiB requested, 65.75 GiB not reserved: refused before it started, exit code 69, "
        "with the names of the holders",
        "by the kernels they completed in 4.5 s: small 30.0 % of 30 (by its own count 30.0 %), "
        "large 70.0 % of 70 (by its own count 70.0 %)",
        "it held 0.50 GiB and the others had 100.0 % of the time together",
        "no reservation, no process, no memory in use",
    ]


@pytest.mark.parametrize(
    ("seen", "claim", "instead"),
    [
        pytest.param(
            having(samples=(*SAMPLES, sample(7, steady=TWO_OVER, steady_charged=GIB))),
            QUOTA,
            f"steady had {TWO_OVER} bytes of {2 * GIB}, says the driver",
            id="over, by the driver",
        ),
        pytest.param(
            having(samples=(*SAMPLES, sample(7, steady_charged=TWO_OVER))),
            QUOTA,
            f"steady had {TWO_OVER} bytes of {2 * GIB}, says its ledger",
            id="over, by the ledger",
        ),
        pytest.param(
            having(samples=(sample(3, grower_charged=0), sample(4.5, doomed=0, grower_charged=0))),
            QUOTA,
            "grower was never seen holding memory by its ledger",
            id="ledger that shows nothing",
        ),
        pytest.param(
            having(samples=tuple(sample(s, 0, doomed=d, steady_charged=1) for s, d in HIDDEN)),
            QUOTA,
            "steady was never seen holding memory by the driver",
            id="driver that shows nothing",
        ),
        pytest.param(
            altered(Role.STEADY, EventKind.ROUND, number=4),
            STEADY,
            "8 bytes were not as computed, in 2 rounds",
            id="wrong bytes",
        ),
        pytest.param(
            without(EventKind.ROUND, since=4.5),
            STEADY,
            "of 1 rounds none ended after the neighbour's death",
            id="stopped by the neighbour's death",
        ),
        pytest.param(
            altered(Role.STEADY, EventKind.ENDED, number=-9),
            STEADY,
            "steady ended with exit code -9",
            id="killed itself",
        ),
        pytest.param(
            without(EventKind.ENDED, role=Role.STEADY),
            STEADY,
            "steady did not end by itself",
            id="never ended",
        ),
        pytest.param(
            without(EventKind.REFUSED), GROWER, "it was never refused", id="given all it wanted"
        ),
        pytest.param(
            altered(Role.GROWER, EventKind.REFUSED, number=999, text="CUDA_ERROR_UNKNOWN"),
            GROWER,
            "it was refused with CUDA_ERROR_UNKNOWN, not CUDA_ERROR_OUT_OF_MEMORY",
            id="refused with another code",
        ),
        pytest.param(
            altered(Role.GROWER, EventKind.REFUSED, free=GIB),
            GROWER,
            "it was refused with 1.00 GiB of its quota free",
            id="refused too early",
        ),
        pytest.param(
            having(TenantEvent(3.0, Role.GROWER, EventKind.GROWN, size=6 * GIB)),
            GROWER,
            "it was given more after it had been refused",
            id="refused once, then not",
        ),
        pytest.param(
            dataclasses.replace(GOOD, plan=dataclasses.replace(PLAN, memory=12 * GIB + 512 * MIB)),
            GROWER,
            "the device had 0.00 GiB free, so the quota proves nothing",
            id="device that was full anyway",
        ),
        pytest.param(
            altered(Role.GROWER, EventKind.ENDED, number=1),
            GROWER,
            "grower ended with exit code 1",
            id="died of the refusal",
        ),
        pytest.param(
            having(samples=(*SAMPLES[:3], sample(5.25), sample(5.5, doomed=0))),
            DOOMED,
            "its memory was still in use 1.25 s later",
            id="back too late",
        ),
        pytest.param(
            having(samples=SAMPLES[:3]),
            DOOMED,
            "its memory was never reclaimed",
            id="never back on the device",
        ),
        pytest.param(
            without(EventKind.HELD, since=4.0),
            DOOMED,
            "the next process of the same run did not get the same bytes",
            id="never back in the ledger",
        ),
        pytest.param(
            having(
                TenantEvent(4.9, Role.DOOMED, EventKind.HELD, size=2 * GIB),
            ),
            DOOMED,
            "the next process of the same run did not get the same bytes",
            id="only a part back in the ledger",
        ),
        pytest.param(
            altered(Role.LATE, EventKind.START_REFUSED, number=0, text=""),
            LATE,
            "its exit code is 0; it said ''",
            id="let in",
        ),
        pytest.param(
            altered(Role.LATE, EventKind.START_REFUSED, text="has 65.8GiB free: steady, grower"),
            LATE,
            "its error does not name doomed: 'has 65.8GiB free: steady, grower'",
            id="a holder not named",
        ),
        pytest.param(
            altered(Role.LATE, EventKind.START_REFUSED, text="no: steady, grower, doomed"),
            LATE,
            "its error does not name 65.8GiB: 'no: steady, grower, doomed'",
            id="what is free not said",
        ),
        pytest.param(without(EventKind.START_REFUSED), LATE, "it was not tried", id="not tried"),
        pytest.param(
            timed(small=50),
            TIME,
            "small had 50.0 % of 30",
            id="more time than its vcore",
        ),
        pytest.param(
            timed(large=66.5),
            TIME,
            "large had 66.5 % of 70",
            id="less time than its vcore",
        ),
        pytest.param(
            timed(large=63, kept=3 * 10**7),
            TIME,
            "large had 63.0 % of 70; for 3 % of the time the machine was too busy to run them",
            id="less time than the busy machine explains",
        ),
        pytest.param(
            having(samples=(*SAMPLES[:-1], sample(6.0, large_busy=3_230_000_000))),
            TIME,
            "large had 70.0 % by the kernels it completed, and 50.0 % by its own count",
            id="a count that disagrees",
        ),
        pytest.param(
            having(samples=(*SAMPLES, sample(7.0, idle=0))),
            IDLE,
            "it was not running all the time, so it proves nothing",
            id="no idle tenant",
        ),
        pytest.param(
            having(samples=(*SAMPLES, sample(7.0, idle_busy=10**9))),
            IDLE,
            "it had 18.2 % of the device's time",
            id="the idle tenant works",
        ),
        pytest.param(
            timed(small=27.2, large=67.2),
            IDLE,
            "beside it the others had only 94.4 % together",
            id="unused time",
        ),
        pytest.param(
            having(
                left=("the reservation of steady still counts", "7 bytes of the device are in use")
            ),
            NOTHING,
            "the reservation of steady still counts; 7 bytes of the device are in use",
            id="something left",
        ),
    ],
)
def test_one_fault_fails_one_claim_with_its_reason(seen, claim, instead):
    assert failed(seen) == {claim: instead}


def test_claims_name_why_a_tenant_did_not_start():
    seen = dataclasses.replace(
        without(EventKind.START, role=Role.GROWER), remarks=((Role.GROWER, "pyvgpu: no room"),)
    )
    said = "grower did not start: pyvgpu: no room"
    assert failed(seen) == {QUOTA: said, GROWER: said}


def test_cuda_error_of_a_tenant_is_named():
    seen = having(
        TenantEvent(1.0, Role.DOOMED, EventKind.FAILED, 999, text="cuMemAlloc gave UNKNOWN")
    )
    said = "doomed: cuMemAlloc gave UNKNOWN"
    assert failed(seen) == {QUOTA: said, DOOMED: said}


def test_without_a_kill_its_claims_fail():
    found = failed(without(EventKind.KILLED))
    assert found == {
        STEADY: "no neighbour was killed, so nothing could disturb it",
        DOOMED: "it never held its memory",
    }


def test_without_observations_all_claims_about_tenants_fail():
    assert set(failed(Observations(PLAN))) == {QUOTA, STEADY, GROWER, DOOMED, LATE, TIME, IDLE}


def test_time_that_the_machine_lost_is_reported_and_tolerated():
    seen = timed(small=25, large=60, kept=2 * 10**8)
    assert failed(seen) == {}
    said = next(x.seen for x in assertions.evaluate(seen) if x.claim == TIME)
    assert said.endswith("; for 20 % of the time the machine was too busy to run them")


def test_time_claims_fail_without_concurrent_work():
    said = "they did not run concurrently for 1 s"
    assert failed(without(EventKind.SPUN)) == {TIME: said, IDLE: said}
    assert failed(without(EventKind.SPUN, role=Role.SMALL)) == {TIME: said, IDLE: said}


def test_document_has_the_maximum_of_each_source():
    seen = having(samples=(*SAMPLES, sample(7, steady=TWO_OVER, steady_charged=3 * GIB)))
    found = json.loads(assertions.document(seen, assertions.evaluate(seen)))
    assert found["tenants"][0] == {
        "name": "steady",
        "vcore": None,
        "share": None,
        "vmemory_bytes": 2 * GIB,
        "largest_charged_bytes": 3 * GIB,
        "largest_held_bytes": TWO_OVER,
    }
    assert found["device"] == {"name": "a device", "memory_bytes": 80 * 1024 * MIB}
    assert {x["name"]: x["share"] for x in found["tenants"][3:]} == {
        "small": pytest.approx(0.3),
        "large": pytest.approx(0.7),
        "idle": None,
    }
    assert found["samples"] == 6
    assert found["holds"] is False
    assert [claim["holds"] for claim in found["claims"]] == [False, *[True] * 7]


def test_late_sample_does_not_fail_the_claim():
    late = having(samples=(*SAMPLES[:3], sample(7.5, doomed=0)))
    assert DOOMED not in failed(late)
