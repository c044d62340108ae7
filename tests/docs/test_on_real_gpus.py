"""docs/on-real-gpus.md shows the existing GPU records, and none of a simulated device."""

import json
import re
import sys
from pathlib import Path

import kit_records
import pytest

from pyvgpu import errors

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import gputable  # noqa: E402
import publish  # noqa: E402


@pytest.fixture
def page(tmp_path):
    """A copy of the page, with a folder for records of its own."""
    copy = tmp_path / "on-real-gpus.md"
    copy.write_text((ROOT / "docs/on-real-gpus.md").read_text())
    made = publish.OnGpus(tmp_path / "gpu", copy)
    made.write()
    return made


def first_sentence(text):
    """Return the first sentence below the title."""
    _, _, rest = text.partition("# On real GPUs\n")
    return " ".join(rest.replace("<!-- summary -->", "").split()).partition(". ")[0]


def test_page_is_up_to_date_with_the_records():
    assert publish.ON_GPUS.is_current(), "run make pictures"


def test_page_and_readme_say_no_gpu_was_tried_until_there_is_a_record():
    found = gputable.records()
    never = first_sentence((ROOT / "docs/on-real-gpus.md").read_text())
    assert (f"{never}." == gputable.NEVER) == (not found)
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert ("pyvgpu has not run on a GPU yet" in readme) == (not found)


def test_every_record_is_of_a_gpu():
    for path in gputable.FOLDER.glob("*.json"):
        assert json.loads(path.read_text())["simulated"] is None, path


@pytest.mark.slow
def test_new_record_makes_the_page_stale_until_regenerated(page):
    assert page.is_current()
    tenants = kit_records.stage(
        figures={"30 percent, 300 us beside 60 percent, 300 us: 30 percent, 300 us": 29.5}
    )
    record = kit_records.write(page.folder / "2026-11-23-nvidia-h200.json", tenants=tenants)
    assert not page.is_current()
    page.write()
    assert page.is_current()
    text = page.page.read_text()
    assert gputable.NEVER not in text
    assert first_sentence(text).startswith("pyvgpu was measured on one machine with a GPU:")
    assert "| turn of a process while others wait | 1 ms | 2.5 ms | programs beside " in text
    assert '| time is given | held | 1 | "has its 60 at all times, and never more" ' in text
    assert "(on-real-gpus.svg)" in text
    assert "29.5 of 30" in page.picture.read_text()
    record.unlink()
    assert not page.is_current()
    page.write()
    assert gputable.NEVER in page.page.read_text()
    assert not page.picture.exists()


def test_newest_record_comes_first(page):
    for year in ("2027", "2026"):
        path = kit_records.write(page.folder / f"{year}.json")
        path.write_text(path.read_text().replace("2026-11-23T", f"{year}-11-23T"))
    found = gputable.records(page.folder)
    text = gputable.text(found, "x.svg")
    assert text.index("2027-11-23") < text.index("2026-11-23")
    assert "2 machines with a GPU" in gputable.summary(found)


def test_a_new_summary_makes_the_page_stale(page):
    text = page.page.read_text()
    page.page.write_text(text.replace(gputable.NEVER, "pyvgpu was measured on one machine."))
    assert not page.is_current()


def test_minutes_that_the_page_states_are_those_of_the_recorded_stages():
    page = (ROOT / "docs/on-real-gpus.md").read_text()
    (stated,) = re.findall(r"(\d+) minutes of its time", page)
    longest = {}
    for path in gputable.FOLDER.glob("*.json"):
        for name, stage in json.loads(path.read_text())["stages"].items():
            longest[name] = max(longest.get(name, 0), stage["seconds"])
    minutes = sum(longest.values()) / 60
    assert 0.6 * int(stated) < minutes < int(stated), f"the recorded stages take {minutes:.1f}"


def test_failures_are_grouped_by_claim_and_say_what_became_of_them(page):
    failed = (
        "plain memory: the device holds no more than the quota",
        "physical memory: the device holds no more than the quota",
        "plain memory: what was written is there",
    )
    kit_records.write(
        page.folder / "r.json",
        quota=kit_records.stage(guarantees=dict.fromkeys(failed, False)),
        slices=kit_records.stage("timeout", "killed after 60 s"),
    )
    page.write()
    rows = [line.split(" | ") for line in page.page.read_text().splitlines()]
    shown = {tuple(row[:4]): row[4] for row in rows if len(row) == 5}
    of_quota = shown["| quota", "the device holds no more than the quota", "2",
                     "plain memory: 5 of 4"]  # fmt: skip
    assert of_quota.startswith("fixed: ")
    unknown = ("not examined yet |",) * 2
    assert unknown == (
        shown["| quota", "what was written is there", "1", "plain memory: 5 of 4"],
        shown["| slices", "did not finish", "1", "killed after 60 s"],
    )


def test_causes_are_those_of_recorded_failures():
    failures = [failure for record in gputable.records() for failure in gputable.failures(record)]
    assert {(failure.stage, failure.claim) for failure in failures} >= set(gputable.CAUSES)


def test_conditions_of_the_machine_are_on_the_page(page):
    path = kit_records.write(page.folder / "busy.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "conditions": ["others use it"]}))
    page.write()
    assert "Conditions:\n\n- others use it\n" in page.page.read_text()


def test_record_of_the_simulator_is_refused(page):
    kit_records.write(page.folder / "rehearsal.json", "h100")
    with pytest.raises(errors.DataError, match="a record of a simulated device: must be of a GPU"):
        page.write()


def test_device_without_a_model_is_shown_without_comparison(page):
    facts = kit_records.stage(facts={"device": "NVIDIA GeForce RTX 4090"})
    kit_records.write(page.folder / "other.json", facts=facts)
    page.write()
    assert "The simulator has no model of this device" in page.page.read_text()
