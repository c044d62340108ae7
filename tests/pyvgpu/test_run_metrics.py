"""Prometheus metrics of the runs of one machine, and the record of moves that they read."""

import dataclasses

import pytest
from prometheus_client import parser

from pyvgpu import errors, names, oversubscription, region
from pyvgpu.machine import move_record, tenant_record
from pyvgpu.machine.move_record import MoveRecord
from pyvgpu.run import run_metrics

from .test_top_view import DEVICE, GIB, OTHER_USER

MOVES = MoveRecord(3, 2, 1, 12 * GIB, 8 * GIB, 90.0, 500.0)
RULES = oversubscription.MoveRules(moves_per_minute=4)
TRAIN, EVAL, SERVE = DEVICE.parts
SUSPENDED = dataclasses.replace(
    TRAIN,
    held=0,
    host=4 * GIB,
    suspension=region.Suspension(gated=True, suspended=True),
    record=tenant_record.TenantRecord(RULES, 0.0, host_memory=32 * GIB),
    moves=MOVES,
    suspended_seconds=120.0,
    waiting=30.0,
    busy_seconds=7.5,
)
MACHINE = dataclasses.replace(
    DEVICE, parts=(SUSPENDED, dataclasses.replace(EVAL, moves=MoveRecord(), refused=2), SERVE)
)


def samples(*devices):
    """Return all samples: by name, the value of each run, or of each device."""
    found = {}
    for family in parser.text_string_to_metric_families(run_metrics.text(devices).decode()):
        for sample in family.samples:
            labels = sample.labels
            found.setdefault(sample.name, {})[labels.get("run", labels.get("uuid"))] = sample.value
    return found


@pytest.mark.parametrize(
    ("name", "train", "eval_", "serve"),
    [
        ("vcore_reserved_ratio", 0, 0.5, 0.2),
        ("vcore_limit_ratio", 0.3, 0.5, 0.2),
        ("busy_seconds_total", 7.5, 0, 0),
        ("memory_limit_bytes", 8 * GIB, 4 * GIB, 16 * GIB),
        ("memory_reserved_bytes", 0, 4 * GIB, 16 * GIB),
        ("memory_used_bytes", 0, 3 * GIB, None),
        ("memory_host_bytes", 4 * GIB, 0, 0),
        ("memory_host_limit_bytes", 32 * GIB, None, None),
        ("refused_allocations_total", 0, 2, 0),
        ("processes", 1, 1, 1),
        ("suspended", 1, 0, 0),
        ("waiting_seconds", 30, 0, 0),
        ("suspensions_total", 3, 0, None),
        ("resumptions_total", 2, 0, None),
        ("refused_moves_total", 1, 0, None),
        ("moved_to_host_bytes_total", 12 * GIB, 0, None),
        ("moved_to_device_bytes_total", 8 * GIB, 0, None),
        ("suspended_seconds_total", 120, 0, None),
    ],
)
def test_metrics_of_runs(name, train, eval_, serve):
    known = {"train": train, "eval": eval_, "serve": serve}
    expected = {run: value for run, value in known.items() if value is not None}
    assert samples(MACHINE)[f"pyvgpu_run_{name}"] == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("memory_bytes", 80 * GIB),
        ("memory_reserved_bytes", 20 * GIB),
        ("memory_used_bytes", 3 * GIB),
        ("vcore_reserved_ratio", 0.7),
        ("moves_per_minute_limit", 4),
    ],
)
def test_metrics_of_devices(name, expected):
    assert samples(MACHINE)[f"pyvgpu_machine_device_{name}"] == {DEVICE.uuid: expected}


def test_a_machine_without_oversubscribed_runs_has_no_bound_of_moves():
    assert "pyvgpu_machine_device_moves_per_minute_limit" not in samples(DEVICE)


def test_labels_are_user_run_and_device_and_no_command():
    text = run_metrics.text((MACHINE,)).decode()
    assert f'{{user="{OTHER_USER}",run="serve",uuid="{DEVICE.uuid}"}}' in text
    assert "epochs" not in text


def test_sums_of_moves():
    record = MoveRecord().moved(5, 0).suspended(100.0)
    assert record.seconds_suspended(130.0) == 30.0
    record = record.moved(0, 5).resumed(160.0).refused().suspended(200.0)
    assert record == MoveRecord(2, 1, 1, 5, 5, 60.0, 200.0)
    assert record.seconds_suspended(201.0) == 61.0


def test_a_written_record_is_read_back(tmp_path):
    move_record.write(tmp_path, MOVES)
    move_record.write(tmp_path, dataclasses.replace(MOVES, refused_moves=0))
    raw = (tmp_path / names.MOVES_FILE).read_bytes()
    assert move_record.load(raw) == dataclasses.replace(MOVES, refused_moves=0)
    assert len(raw) == move_record.BYTES
    assert (tmp_path / names.MOVES_FILE).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'"text"',
        b'{"suspensions": -1}',
        b'{"suspensions": true}',
        b'{"to_host_bytes": 1.5}',
        b'{"suspended_seconds": Infinity}',
        b'{"suspended_since": "x"}',
        b"[" * 100_000,
    ],
)
def test_invalid_records_are_refused(raw):
    with pytest.raises(errors.DataError):
        move_record.load(raw)
