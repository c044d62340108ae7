"""Verdicts of a record about each guarantee, and the quotation of the documents."""

from pathlib import Path

import figures
import kit_records
import pytest

from pyvgpu.calibration import calibration_record, guarantees

ROOT = Path(__file__).parents[3]


@pytest.fixture
def evaluated(tmp_path):
    """Return a function that evaluates a record with these stages, by the guarantees' names."""

    def evaluate(**stages):
        found = calibration_record.load(kit_records.write(tmp_path / "record.json", **stages))
        return {guarantee.name: guarantee for guarantee in guarantees.evaluate(found)}

    return evaluate


def verdicts(found):
    return {name: evaluated.verdict for name, evaluated in found.items() if evaluated.outcomes}


@pytest.mark.parametrize("check", guarantees.CHECKS[:-1], ids=lambda check: check.name)
def test_guarantees_quote_their_documents(check):
    assert check.words
    assert check.words in " ".join((ROOT / check.source).read_text().split())


def test_overhead_is_held_against_the_goals_of_the_benchmark():
    goals = {figure.title: figure.goal for figure in figures.FIGURES}
    assert [goal for *_, goal in guarantees.OVERHEAD] == [
        goals["a launch with a share of time"],
        goals["alloc + free of 4 KiB"],
        goals["alloc + free on a stream"],
    ]


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("plain memory, direct: nothing beyond the quota", "memory is held"),
        ("plain memory, direct: more is refused as out of memory", "memory is held"),
        ("PyTorch: the quota is held", "memory is held"),
        ("PyTorch: the quota is shown", "the quota is shown"),
        ("plain memory, routed: the quota is shown as the device", "the quota is shown"),
        ("10 percent, 300 us: not over its share", "time is held"),
        ("PyTorch: the same result", "results are the same"),
        ("PyTorch: runs under a quota", "results are the same"),
        ("every function is reached by its exported name", "no way past the shim"),
        ("memory of a killed process is free within ten seconds", "death gives back"),
        ("a program linked here is refused twice the quota", "memory is held"),
        ("workers: nothing more is charged", "memory is held"),
        ("workers: the same, one killed", "results are the same"),
        ("orphan: another gets its memory", "death gives back"),
        ("plain memory, linked: a request of all that is free is served", "memory is held"),
        ("plain memory, linked: the device holds no more than the quota", "memory is held"),
        ("plain memory, linked: everything is free at the end", "memory is held"),
        ("plain memory, linked: what was written is there", "results are the same"),
        ("exported: the exporter is charged", "memory is held"),
        ("exported: opening it is not charged again", "memory is held"),
        ("exported: closing it gives nothing back", "memory is held"),
        ("exported: it is free when the importer has closed it", "memory is held"),
        ("exported: it can be opened", "results are the same"),
        (
            "exported: it can be read like that when the exporter was killed",
            "results are the same",
        ),
        ("forked: the forked child is answered as by the bare driver", "results are the same"),
        ("forked: the killed one ends by its signal", "results are the same"),
        ("forked: the parent goes on", "results are the same"),
        ("static runtime: more is refused in a stream", "memory is held"),
        ("static runtime: copies come back", "results are the same"),
        ("nvidia-smi: shows the quota", "the quota is shown"),
        ("nvidia-smi: ends as without a quota", "results are the same"),
        ("one rank: the sum is right", "results are the same"),
        ("50 percent: the model learns", "results are the same"),
        ("50 percent: training is not over its share", "time is held"),
        ("memory is held", "memory is held"),
        ("time is held", "time is held"),
        ("the daemon that was started is ended", "other guarantees of the kit"),
        ("the moon is round", "other guarantees of the kit"),
    ],
)
def test_a_guarantee_of_the_kit_belongs_to_one_of_ours(evaluated, said, name):
    for held, verdict in ((True, "held"), (False, "did not hold")):
        stages = {"quota": kit_records.stage(guarantees={said: held})}
        assert verdicts(evaluated(**stages)) == {name: verdict}


def test_untested_guarantees_are_not_reported_as_kept(evaluated):
    assert {guarantee.verdict for guarantee in evaluated().values()} == {"not tried"}


@pytest.mark.parametrize(
    ("value", "below", "above", "verdict"),
    [
        pytest.param(10, 0, 0, True, id="at the limit"),
        pytest.param(11, 0, 0, False, id="beyond it"),
        pytest.param(5, 5, 5, True, id="within it whatever the rounds"),
        pytest.param(16, 5, 5, False, id="beyond it whatever the rounds"),
        pytest.param(6, 5, 5, None, id="within it in some rounds"),
        pytest.param(15, 5, 5, None, id="beyond it in some rounds"),
        pytest.param(15, 5, 0, None, id="perhaps lower, never higher"),
        pytest.param(10, 90, 0, True, id="within it, and perhaps lower"),
    ],
)
def test_values_are_evaluated_only_as_far_as_they_are_known(value, below, above, verdict):
    assert guarantees.verdict(value, 10, below, above) is verdict


@pytest.mark.parametrize(
    ("figure", "had", "verdict"),
    [
        ("30 percent, 300 us beside 60 percent, 300 us: 60 percent, 300 us", 59.0, "held"),
        ("30 percent, 300 us beside 60 percent, 300 us: 60 percent, 300 us", 49.8, "did not hold"),
        ("30 percent, 300 us beside without a quota, 300 us: 30 percent, 300 us", 9.0, None),
    ],
)
def test_shares_are_measured_beside_other_quotas(evaluated, figure, had, verdict):
    found = verdicts(evaluated(tenants=kit_records.stage(figures={figure: had})))
    assert found.get("time is given") == verdict


UNLIKE = "30 percent, 3000 us beside 60 percent, 300 us: 30 percent, 3000 us"


@pytest.mark.parametrize(
    ("had", "verdict"),
    [
        pytest.param((27, [22, 32]), "inconclusive", id="perhaps too little"),
        pytest.param((23, [20, 26]), "inconclusive", id="perhaps enough"),
        pytest.param((23, [22.5, 23.5]), "did not hold", id="too little"),
        pytest.param((15, [11, 19]), "did not hold", id="too little, however it varies"),
        pytest.param((29, [27, 30]), "held", id="enough"),
    ],
)
def test_shares_are_evaluated_where_parts_of_the_time_are_alike(evaluated, had, verdict):
    found = evaluated(tenants=kit_records.stage(figures={UNLIKE: had}))["time is given"]
    assert found.verdict == verdict
    (outcome,) = found.outcomes
    least, most = had[1]
    assert f"parts of the time differ by {most - least:.1f}" in outcome.seen


@pytest.mark.parametrize(
    ("late", "explained", "verdict"),
    [
        pytest.param(0.4, 0.1, "did not hold", id="processors were free"),
        pytest.param(7.9, 2.4, "did not hold", id="less than its share of that time explains"),
        pytest.param(9.5, 2.9, "inconclusive", id="processors were busy"),
    ],
)
def test_less_than_a_share_is_inconclusive_if_a_lack_of_processors_explains_it(
    evaluated, late, explained, verdict
):
    figures_ = {UNLIKE: 22.5, f"{UNLIKE}: {guarantees.LATE}": late}
    found = evaluated(tenants=kit_records.stage(figures=figures_))["time is given"]
    assert found.verdict == verdict
    (outcome,) = found.outcomes
    assert outcome.seen == (
        f"22.5 of 30; it launched late for lack of a processor for {late} percent of the time, "
        f"which explains {explained}"
    )


def test_a_lack_of_processors_does_not_question_a_share_that_was_given(evaluated):
    alone = {
        "50 percent, 300 us: share": 49.0,
        f"50 percent, 300 us: {guarantees.LATE}": 80.0,
    }
    assert evaluated(alone=kit_records.stage(figures=alone))["time is given"].verdict == "held"


def test_each_of_several_equal_tenants_is_evaluated(evaluated):
    scene = " beside ".join(["30 percent, 300 us"] * 3)
    entry = kit_records.stage(figures={f"{scene}: 30 percent, 300 us": 29.0})
    entry["figures"] += [{**entry["figures"][0], "value": value} for value in (21.5, 29.5)]
    numbered = f"{scene}: 30 percent, 300 us (2): {guarantees.LATE}"
    entry["figures"].append({"name": numbered, "value": 15.0, "unit": "", "spread": None})
    found = evaluated(tenants=entry)["time is given"].outcomes
    beside = ", beside 30 percent, 300 us and 30 percent, 300 us"
    assert [(outcome.what, outcome.held) for outcome in found] == [
        (f"tenants: 30 percent, 300 us{beside}", True),
        (f"tenants: 30 percent, 300 us (2){beside}", None),
        (f"tenants: 30 percent, 300 us (3){beside}", True),
    ]


def test_too_short_kernels_do_not_evaluate_shares(evaluated):
    figures_ = {"90 percent, 20 us: share": 60.0, "50 percent, 3000 us: share": 50.0}
    found = evaluated(alone=kit_records.stage(figures=figures_))["time is given"]
    assert [outcome.what for outcome in found.outcomes] == ["alone: 50 percent, 3000 us, alone"]


def test_memory_that_is_back_after_a_second_is_late(evaluated):
    for most, verdict in ((900, "held"), (1500, "did not hold")):
        fork = kit_records.stage(figures={"kill -9 until memory is free": (50, [40, most])})
        assert evaluated(fork=fork)["death gives back"].verdict == verdict


@pytest.mark.parametrize(
    ("shim", "verdict"),
    [
        pytest.param((3010, [3005, 3020]), "held", id="little"),
        pytest.param((3510, [3500, 3520]), "did not hold", id="much"),
        pytest.param((3020, [3018, 3040]), "inconclusive", id="little, but rounds differ"),
        pytest.param((3110, [3050, 3130]), "inconclusive", id="beyond by less than rounds differ"),
        pytest.param((3900, [3500, 4000]), "did not hold", id="beyond by more than they differ"),
    ],
)
def test_overhead_is_evaluated_where_rounds_are_alike(evaluated, shim, verdict):
    called = {
        "launch, without the shim: median": (3000, [2995, 3002]),
        "launch, with 99 percent of the time: median": shim,
    }
    found = evaluated(overhead=kit_records.stage(figures=called))["the shim costs little"]
    assert found.verdict == verdict
    (outcome,) = found.outcomes
    value, (least, most) = shim
    assert outcome.seen == (
        f"{value - 3000} ns added, rounds differ by {max(7, most - least)}; the goal is 15"
    )


def test_overhead_is_inconclusive_if_only_the_rounds_without_the_shim_differ(evaluated):
    called = {
        "allocate and free, without the shim: median": (2000, [1990, 2051]),
        "allocate and free, with memory limited: median": (2110, [2105, 2112]),
    }
    found = evaluated(overhead=kit_records.stage(figures=called))["the shim costs little"]
    assert [outcome.held for outcome in found.outcomes] == [None]


def test_a_guarantee_that_the_kit_could_not_evaluate_is_inconclusive(evaluated):
    said = {"10 percent, 300 us: not over its share": None, "memory is held": True}
    found = verdicts(evaluated(alone=kit_records.stage(guarantees=said)))
    assert found == {"time is held": "inconclusive", "memory is held": "held"}
