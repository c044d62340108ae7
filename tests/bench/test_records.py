"""Benchmark records: only the last of each benchmark and machine is kept, without raw samples."""

import json
import math
import re

import host
import percentiles
import pytest

RESULTS = host.RESULTS
MOST_LINES = 5_000
NAMED = re.compile(r"\d{4}-\d\d-\d\d-(.+)\.json")


def test_one_record_per_benchmark_and_machine():
    kinds = [
        (path.parent, found[1])
        for path in RESULTS.rglob("*.json")
        if (found := NAMED.fullmatch(path.name)) and path.parent.name != "gpu"
    ]
    assert kinds
    assert len(kinds) == len(set(kinds))


def test_records_have_few_lines():
    records = list(RESULTS.rglob("*.json"))
    assert sum(len(path.read_text().splitlines()) for path in records) <= MOST_LINES
    for path in records:
        as_kept = host.text(json.loads(path.read_text()))
        assert path.read_text() == as_kept, f"{path}: run make pictures"


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "ROOT", tmp_path)
    monkeypatch.setattr(host, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(host, "RAW", tmp_path / "raw")
    monkeypatch.setattr(host, "short_name", lambda: "a-cpu-2c")
    return tmp_path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_record_replaces_earlier_ones_of_its_machine(places, monkeypatch):
    host.keep({"date": "2026-11-01T10:00:00", "value": 1}, "load", kind="burst")
    host.keep({"date": "2026-11-01T10:00:00", "value": 1}, "load", kind="burst-filter")
    monkeypatch.setattr(host, "short_name", lambda: "other-cpu-4c")
    host.keep({"date": "2026-11-01T10:00:00", "value": 1}, "load", kind="burst")
    monkeypatch.setattr(host, "short_name", lambda: "a-cpu-2c")
    host.keep({"date": "2026-11-02T10:00:00", "value": 2}, "load", kind="burst")
    assert names(places / "results/load") == [
        "2026-11-01-burst-filter-a-cpu-2c.json",
        "2026-11-01-burst-other-cpu-4c.json",
        "2026-11-02-burst-a-cpu-2c.json",
    ]
    assert json.loads(host.last("load", "burst").read_text())["value"] == 2


def test_samples_are_stored_as_percentiles_with_raw_data_elsewhere(places, capsys):
    taken = [math.sin(number) for number in range(1000)]
    record = {"date": "2026-11-01T10:00:00", "taken": {"bare": taken, "few": [3.0, 1.0]}, "mib": 7}
    host.keep(record, samples=("taken",))
    name = "2026-11-01-a-cpu-2c.json"
    assert capsys.readouterr().out == f"recorded in results/{name}\n"
    kept = json.loads((places / "results" / name).read_text())
    assert kept["mib"] == 7
    assert kept["taken"]["few"] == [3, 1]
    assert len(kept["taken"]["bare"]) == 100
    for part in (1, 50, 99, 100):
        of_all = percentiles.percentile(taken, part)
        assert percentiles.percentile(kept["taken"]["bare"], part) == pytest.approx(
            of_all, abs=1e-9
        )
    assert json.loads((places / "raw" / name).read_text()) == record


def test_record_has_one_line_per_second_level_member():
    record = {"date": "today", "rows": [{"a": 1}, {"b": [1, 2]}], "host": {"cpu": "c"}, "none": []}
    text = host.text(record)
    assert json.loads(text) == record
    assert text.splitlines()[1:5] == [
        '"date": "today",',
        '"rows": [',
        ' {"a": 1},',
        ' {"b": [1, 2]}',
    ]
