"""Format and validation of the record annotation."""

import datetime
import json

import pod_objects as make
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvgpu.controller.sidecar import records, sidecar_pods
from pyvgpu.controller.sidecar.termination_methods import Method

RECORD = records.PodRecord(
    uid="uid-1",
    mains_ended="2026-11-21T10:00:00+00:00",
    step=1,
    at=datetime.datetime.fromisoformat("2026-11-21T10:00:01.5Z"),
    seconds=35.0,
    entries={
        "log": records.ActionRecord(
            Method.HYBRID, "containerd://log", 5, True, -1, "quit", frozenset({Method.STOP})
        )
    },
)


def read(text, ended=RECORD.mains_ended):
    pod = make.pod(metadata={"annotations": {"pyvgpu.io/sidecar-stop": text}})
    return records.read(sidecar_pods.read(pod), ended)


def changed(**changes):
    return json.dumps({**json.loads(records.write(RECORD)), **changes})


def changed_log(**changes):
    return {"log": {**json.loads(records.write(RECORD))["containers"]["log"], **changes}}


def test_a_record_survives_a_round_trip():
    assert read(records.write(RECORD)) == RECORD
    assert RECORD.due.isoformat() == "2026-11-21T10:00:36.500000+00:00"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "{}",
        "[" * 100_000,
        changed(uid="another pod"),
        changed(mainsEnded="another end"),
        changed(v=2),
        changed(step=0),
        changed(step=3),
        changed(step="x"),
        changed(at="yesterday"),
        changed(at="2026-11-21T10:00:00"),
        changed(seconds=1e300),
        changed(seconds="NaN"),
        changed(at="9999-12-31T23:59:59+00:00"),
        changed(containers=[]),
        changed(containers={"log": {"path": "explode"}}),
        changed(containers=changed_log(path="raise")),
        changed(containers={"\ud800": changed_log()["log"]}),
        changed(containers=changed_log(graceSeconds=-1)),
        changed(containers=changed_log(graceSeconds=10**400)),
    ],
)
def test_an_invalid_record_is_ignored(text):
    assert read(text) is None


odd_values = st.sampled_from(
    [
        None,
        True,
        -1,
        1e400,
        float("nan"),
        "",
        "x",
        "2026-11-21",
        [],
        [1],
        {},
        {"log": None},
        {"log": {}},
    ]
)


@given(st.dictionaries(st.sampled_from([*json.loads(records.write(RECORD))]), odd_values))
def test_no_field_makes_reading_fail(changes):
    read(changed(**changes))


@given(st.text())
def test_no_text_makes_reading_fail(text):
    assert read(text) is None
