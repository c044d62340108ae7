"""Projections of pods, for all forms that the API server or a client may use."""

import pod_objects as make
import pytest

from pyvgpu import names
from pyvgpu.controller.sidecar import sidecar_pods

FIELD = {"fieldRef": {"fieldPath": "metadata.annotations['team/program']"}}


def variable(name, value=None, **more):
    return {"name": name, **({} if value is None else {"value": value}), **more}


@pytest.mark.parametrize(
    ("env", "environment"),
    [
        pytest.param(None, {}, id="no list"),
        pytest.param({"name": "SIDECAR_TERMINATION"}, {}, id="none of a list"),
        pytest.param([None, "x", {}, {"name": None}], {}, id="no variables"),
        pytest.param([variable("PATH", "/bin")], {}, id="not about sidecars"),
        pytest.param(
            [variable("Sidecar_Termination", "true"), variable("PATH", "/bin")],
            {"Sidecar_Termination": "true"},
            id="in any case",
        ),
        pytest.param(
            [variable("SIDECAR_TERMINATION"), variable("ECI_CONTAINER_TYPE", valueFrom=FIELD)],
            {"SIDECAR_TERMINATION": "", "ECI_CONTAINER_TYPE": None},
            id="without a value, and from elsewhere",
        ),
        pytest.param(
            [
                variable("SIDECAR_TERMINATION", "true"),
                variable("KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "true"),
                variable("SIDECAR_TERMINATION", valueFrom=FIELD),
                variable("KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "false"),
            ],
            {"SIDECAR_TERMINATION": None, "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT": "false"},
            id="the last of one name",
        ),
    ],
)
def test_only_variables_about_sidecars_are_read(env, environment):
    (log,) = sidecar_pods.read(make.pod(make.container("log", env=env))).containers
    assert log.environment == environment


def test_the_program_is_read_from_the_last_variable_of_its_name():
    env = [variable("PROGRAM", "/bin/x"), variable("PROGRAM", valueFrom=FIELD)]
    log = make.container("log", env=env, command=["$(PROGRAM)", "-v"])
    annotations = {"team/program": "/bin/log", "team/note": "long", names.SWAP_ANNOTATION: "{}"}
    read = sidecar_pods.read(make.pod(log, metadata={"annotations": annotations}))
    (log,) = read.containers
    assert (log.command, log.environment) == (("$(PROGRAM)",), {})
    assert log.program_annotation == "team/program"
    assert read.annotations == {**annotations, "team/note": ""}
    assert read.annotation_bytes == 49


def test_null_counts_as_missing():
    nothing = {
        "metadata": dict.fromkeys(
            ["namespace", "name", "uid", "resourceVersion", "labels", "annotations"]
        ),
        "spec": dict.fromkeys(
            ["nodeName", "restartPolicy", "terminationGracePeriodSeconds", "initContainers"]
        ),
        "status": dict.fromkeys(["phase", "conditions", "containerStatuses"]),
    }
    parts = ["env", "command", "image", "imagePullPolicy", "restartPolicy", "resources"]
    nothing["spec"]["containers"] = [{"name": "a", **dict.fromkeys(parts)}]
    assert sidecar_pods.read(nothing) == sidecar_pods.read(
        {"spec": {"containers": [{"name": "a"}]}}
    )


def test_common_strings_are_interned():
    def log(number):
        name = f"log-{number}"[:3]  # a new string object
        return sidecar_pods.read(make.pod(make.container(name, image=f"{name}:1"))).containers[0]

    one, other = log(1), log(2)
    assert one.name is other.name
    assert one.image is other.image
