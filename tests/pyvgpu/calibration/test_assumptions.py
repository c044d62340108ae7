"""Assumptions are listed beside measurements, with the consequence of a difference."""

import kit_records
import pytest

from pyvgpu.calibration import assumptions, calibration_record, machine_values


@pytest.fixture
def lines(tmp_path):
    """Return a function that compares a record with these stages, by the titles of rows."""

    def compare(**stages):
        found = calibration_record.load(kit_records.write(tmp_path / "record.json", **stages))
        seen = assumptions.RowInputs(
            found, machine_values.values(found), machine_values.model(found)
        )
        return {line.title: line for line in assumptions.compare(seen)}

    return compare


def test_a_difference_has_its_consequence_for_users(lines):
    line = lines()["turn of a process while others wait"]
    assert (line.assumed, line.measured, line.differs) == (1_000_000, 2_500_000, True)
    assert "their latency is higher" in line.consequence


def test_less_and_more_have_different_consequences(lines):
    title = "memory that a context takes"
    compared = {
        size: lines(memory=kit_records.stage(figures={"primary context, by NVML": size}))[title]
        for size in (400 << 20, 520 << 20, 640 << 20)
    }
    assert "has more of its vmemory" in compared[400 << 20].consequence
    assert compared[520 << 20].consequence == assumptions.SAME
    assert "needs a larger vmemory" in compared[640 << 20].consequence


def test_missing_measurements_name_the_stage_to_run(lines):
    found = lines(slices=kit_records.stage("timeout", "killed after 60 s"))
    assert found["turn of a process while others wait"].consequence == (
        "unknown: stage slices was timeout: killed after 60 s; run the kit with --only slices"
    )
    assert found["memory that a pool keeps after a trim"].consequence == (
        "unknown: stage pools is not in the record; run the kit with --only pools"
    )


def test_words_are_compared_as_they_are(lines):
    name = "while a launch is blocked: launch into another stream"
    for said, differs in (("goes on", False), ("blocks", True)):
        assert lines(queue=kit_records.stage(facts={name: said}))[name].differs is differs


def test_noise_is_not_a_difference(lines):
    title = "time for which an event holds up its stream"
    for pair, differs in ((0.1, False), (1.0, True)):
        figures = {"two events in a queue, by throughput": pair}
        assert lines(events=kit_records.stage(figures=figures))[title].differs is differs


def test_rows_are_of_stages_of_the_kit_and_have_titles_of_their_own():
    from kit import stages

    assert {row.stage for row in assumptions.ROWS} <= set(stages.BY_NAME)
    titles = [row.title for row in assumptions.ROWS]
    assert len(set(titles)) == len(titles)
