"""Reading of records: complete, or a one-line error."""

import json

import kit_records
import pytest

from pyvgpu import errors
from pyvgpu.calibration import calibration_record


def test_a_folder_of_the_kit_is_as_good_as_its_record(tmp_path):
    path = kit_records.write(tmp_path / "out" / "record.json")
    assert calibration_record.load(tmp_path / "out") == calibration_record.load(path)


def test_facts_and_figures_are_found_by_stage_and_name(tmp_path):
    found = calibration_record.load(
        kit_records.write(
            tmp_path / "record.json",
            overhead=kit_records.stage(figures={"launch": (10.0, [8, 14])}),
        )
    )
    assert found.device == "NVIDIA H200"
    assert found.date == "2026-11-23"
    assert found.simulated == ""
    figure = found.figure("overhead", "launch")
    assert (figure.least, figure.value, figure.most) == (8, 10, 14)
    assert found.figure("overhead", "land") is None
    assert found.fact("nothing", "device") is None


@pytest.mark.parametrize(
    ("name", "simulated"),
    [("NVIDIA H200", ""), ("pyvgpu simulated H100", "pyvgpu simulated H100")],
)
def test_a_record_without_the_stage_facts_names_its_device(tmp_path, name, simulated):
    document = kit_records.document()
    del document["stages"]["facts"]
    path = tmp_path / "record.json"
    path.write_text(json.dumps({**document, "device": name}))
    found = calibration_record.load(path)
    assert (found.device, found.simulated) == (name, simulated)
    path.write_text(json.dumps(document))
    assert calibration_record.load(path).device == calibration_record.UNKNOWN


def test_a_device_of_the_simulator_is_known_by_its_name(tmp_path):
    facts = kit_records.stage(facts={"device": "pyvgpu simulated H100"})
    assert calibration_record.load(kit_records.write(tmp_path / "r.json", facts=facts)).simulated


def test_a_missing_record_is_a_usage_error(tmp_path):
    with pytest.raises(errors.UsageError, match="there is no file of that name; must be written"):
        calibration_record.load(tmp_path / "nothing.json")
    with pytest.raises(errors.UsageError, match="there is no record.json; must be written"):
        calibration_record.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param(
            lambda document: document.update(version=2), "of version 2: must be 1", id="version"
        ),
        pytest.param(
            lambda document: document.update(format="else"),
            "has the format 'else'; must be a record.json",
            id="format",
        ),
        pytest.param(lambda document: document.pop("kit"), "are damaged", id="no kit"),
        pytest.param(
            lambda document: document["stages"].update(more={"state": "odd"}),
            "damaged",
            id="state",
        ),
        pytest.param(
            lambda document: document["stages"].update(more={"state": "done"}),
            "damaged",
            id="empty stage",
        ),
        pytest.param(
            lambda document: document["stages"]["events"]["figures"].append(
                {"name": "x", "value": "many"}
            ),
            "damaged",
            id="figure",
        ),
        pytest.param(
            lambda document: document["stages"]["events"]["figures"][0].update(value=float("nan")),
            "damaged",
            id="no number",
        ),
        pytest.param(
            lambda document: document["stages"]["events"]["figures"][0].update(value=10**400),
            "damaged",
            id="too large",
        ),
        pytest.param(
            lambda document: document["stages"]["events"].update(facts=["x"]), "damaged", id="fact"
        ),
        pytest.param(lambda document: document.update(conditions=3), "damaged", id="conditions"),
    ],
)
def test_invalid_records_are_refused_with_the_reason(tmp_path, change, problem):
    document = kit_records.document()
    change(document)
    path = tmp_path / "record.json"
    path.write_text(json.dumps(document))
    with pytest.raises(calibration_record.RecordError, match=problem):
        calibration_record.load(path)


def test_a_record_that_was_cut_short_is_to_be_copied_again(tmp_path):
    path = kit_records.write(tmp_path / "record.json")
    path.write_text(path.read_text()[:-100])
    with pytest.raises(
        calibration_record.RecordError, match="truncated, or not JSON .*: copy the file again"
    ):
        calibration_record.load(path)


def test_conditions_are_those_of_the_record(tmp_path):
    path = kit_records.write(tmp_path / "record.json")
    assert calibration_record.load(path).conditions == ()
    path.write_text(json.dumps({**kit_records.document(), "conditions": ["others use it"]}))
    assert calibration_record.load(path).conditions == ("others use it",)


def test_a_record_nested_without_end_is_damaged(tmp_path):
    path = tmp_path / "record.json"
    path.write_text(100_000 * "[")
    with pytest.raises(calibration_record.RecordError, match="truncated, or not JSON"):
        calibration_record.load(path)
