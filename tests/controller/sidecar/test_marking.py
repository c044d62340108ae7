"""Detection of sidecars, and their options."""

import re
from pathlib import Path

import pod_objects as make
import pytest

from pyvgpu.controller.sidecar import mark_names, marking, sidecar_pods


def mark(*containers, policies=(), **pod):
    return marking.mark(sidecar_pods.read(make.pod(*containers, **pod)), policies)


def sidecars_of(marks):
    return [entry.name for entry in marks.sidecars]


@pytest.mark.parametrize(
    ("environment", "marked"),
    [
        ({"SIDECAR_TERMINATION": "true"}, True),
        ({"SIDECAR_TERMINATION": " TRUE "}, True),
        ({"SIDECAR_TERMINATION": "1"}, True),
        ({"SIDECAR_TERMINATION": "yes"}, True),
        ({"SIDECAR_TERMINATION": "On"}, True),
        ({"sidecar_termination": "ture"}, True),
        ({"SIDECAR_TERMINATION": "false"}, False),
        ({"SIDECAR_TERMINATION": ""}, False),
        ({"SIDECAR_TERMINATION": "maybe"}, False),
        ({"SIDECAR_TERMINATION_ORDER": "1"}, False),
        ({"KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT": "true"}, True),
        ({"KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT": "false"}, False),
        ({"ECI_CONTAINER_TYPE": "sidecar"}, True),
        ({"ECI_CONTAINER_TYPE": "true"}, False),
        ({"ECI_CONTAINER_TYPE": "sidecar", "SIDECAR_TERMINATION": "false"}, False),
        ({}, False),
    ],
)
def test_marks(environment, marked):
    marks = mark(make.container("main"), make.container("log", environment=environment))
    assert sidecars_of(marks) == (["log"] if marked else [])
    assert [entry.name for entry in marks.mains] == (["main"] if marked else ["main", "log"])
    assert bool(marks.why_not) is not marked


def test_the_last_of_two_equal_variables_wins():
    variables = [{"name": "SIDECAR_TERMINATION", "value": value} for value in ("false", "true")]
    assert sidecars_of(mark(make.container("main"), make.container("log", env=variables))) == [
        "log"
    ]


def test_a_mark_that_is_not_literal_is_ignored_with_a_warning():
    variable = {
        "name": "SIDECAR_TERMINATION",
        "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}},
    }
    marks = mark(make.container("main"), make.container("log", env=[variable]))
    assert not marks.sidecars
    assert "container log: SIDECAR_TERMINATION must be a literal value" in marks.warnings[0]


@pytest.mark.parametrize(
    ("policy", "marked"),
    [
        (marking.MarkingPolicy(("istio-*",)), True),
        (marking.MarkingPolicy(("istio-*",), namespace="team"), True),
        (marking.MarkingPolicy(("istio-*",), namespace="te?m*"), True),
        (marking.MarkingPolicy(("istio-*",), namespace="other"), False),
        (marking.MarkingPolicy(("istio-*",), labels={"mesh": "on"}), True),
        (marking.MarkingPolicy(("istio-*",), labels={"mesh": "off"}), False),
        (marking.MarkingPolicy(("istio-*",), labels={"absent": "on"}), False),
        (marking.MarkingPolicy(("envoy",)), False),
    ],
)
def test_a_policy_marks_containers_without_a_mark(policy, marked):
    marks = mark(
        make.container("main"),
        make.container("istio-proxy"),
        policies=[policy],
        metadata={"labels": {"mesh": "on"}},
    )
    assert sidecars_of(marks) == (["istio-proxy"] if marked else [])


def test_a_container_can_refuse_a_policy():
    refused = make.container("istio-proxy", environment={"SIDECAR_TERMINATION": "false"})
    assert not mark(
        make.container("main"), refused, policies=[marking.MarkingPolicy(("istio-*",))]
    ).sidecars


@pytest.mark.parametrize(
    ("marks", "why_not"),
    [
        pytest.param(lambda: mark(make.container("main")), "no container is marked", id="none"),
        pytest.param(lambda: mark(make.sidecar()), "every container is marked", id="all"),
        pytest.param(
            lambda: mark(make.container("main"), make.sidecar(), policy="Always"),
            "restartPolicy is Always",
            id="Always",
        ),
        pytest.param(
            lambda: mark(
                make.container("main"),
                make.sidecar(),
                metadata={"annotations": {"kubernetes.io/config.mirror": "x"}},
            ),
            "a static pod",
            id="static",
        ),
        pytest.param(
            lambda: mark(
                make.container("main"),
                make.sidecar(),
                metadata={"labels": {"workflows.argoproj.io/workflow": "w"}},
            ),
            "workflows.argoproj.io ends the sidecars",
            id="Argo's",
        ),
    ],
)
def test_pods_that_are_not_handled_have_a_reason(marks, why_not):
    assert why_not in marks().why_not


def test_native_sidecars_and_debug_containers_are_neither_main_nor_sidecar():
    marks = marking.mark(
        sidecar_pods.read(
            make.pod(
                make.container("main"),
                make.sidecar(),
                initContainers=[{"name": "native", "restartPolicy": "Always"}],
                ephemeralContainers=[{"name": "debug"}],
            )
        )
    )
    assert [entry.name for entry in (*marks.mains, *marks.sidecars)] == ["main", "log"]


def test_documentation_lists_every_variable():
    page = (Path(__file__).parents[3] / "docs" / "sidecar.md").read_text()
    rows = re.findall(r"^\| `(SIDECAR_\w+)` \|", page, re.MULTILINE)
    assert rows == list(mark_names.VARIABLES)


@pytest.mark.parametrize(
    ("suffix", "text", "field", "value"),
    [
        ("GRACE_SECONDS", "5", "grace_seconds", 5),
        ("GRACE_SECONDS", "0", "grace_seconds", 0),
        ("GRACE_SECONDS", "-1", "grace_seconds", None),
        ("GRACE_SECONDS", "5s", "grace_seconds", None),
        ("GRACE_SECONDS", "1e400", "grace_seconds", None),
        ("ORDER", "-3", "order", -3),
        ("ORDER", "first", "order", 0),
        ("COMMAND", "curl -X POST localhost/quit", "command", "curl -X POST localhost/quit"),
        ("EXITS_ZERO", "true", "exits_zero", True),
        ("EXITS_ZERO", "no", "exits_zero", False),
    ],
)
def test_options(suffix, text, field, value):
    environment = {f"SIDECAR_TERMINATION_{suffix}": text}
    marks = mark(make.container("main"), make.sidecar(environment=environment))
    assert getattr(marks.options["log"], field) == value
    refused = suffix in ("GRACE_SECONDS", "ORDER") and str(value) != text
    assert bool(marks.warnings) is refused
