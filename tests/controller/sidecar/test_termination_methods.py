"""Choice of a path over every situation, and derivation of the situation from a pod."""

import dataclasses
import itertools
import re
from pathlib import Path as File

import pod_objects as make
import pytest

from pyvgpu.controller.sidecar import (
    controller_settings,
    mark_names,
    marking,
    nodes,
    sidecar_pods,
    termination_methods,
)
from pyvgpu.controller.sidecar.termination_methods import Method, Situation

PAGE = File(__file__).parents[3] / "docs" / "sidecar.md"
SETS = ("tried", "forbidden")
YES_OR_NO = [field.name for field in dataclasses.fields(Situation) if field.name not in SETS]


def every_situation():
    """Yield every combination at a pod's end, with one path tried, one forbidden, or none."""
    fields = [name for name in YES_OR_NO if name not in ("native", "creating", "convertible")]
    for values in itertools.product((False, True), repeat=len(fields)):
        common = Situation(**dict(zip(fields, values, strict=True)))
        yield common
        for name, path in itertools.product(SETS, (Method.STOP, Method.SWAP)):
            yield dataclasses.replace(common, **{name: frozenset({path})})


@pytest.mark.slow
def test_invariants_of_all_paths():
    for situation in every_situation():
        path = termination_methods.choose(situation).path
        assert path is Method.LEAVE or situation.may(path)
        if path is Method.STOP:
            assert situation.live
            assert situation.running
            assert situation.clean or situation.insist
        if path in (Method.SWAP, Method.HYBRID):
            assert situation.swappable
            assert situation.image_ready
        if path is Method.HYBRID:
            assert situation.live
            assert situation.running
        if situation.ended:
            assert path is Method.NOTHING
        elif situation.eternal:
            assert path is Method.LEAVE
        if path is Method.LEAVE and not situation.eternal:
            assert not termination_methods.can_follow(situation)
        if path in (Method.SWAP, Method.HYBRID):
            assert not situation.tight


@pytest.mark.parametrize(
    ("situation", "path"),
    [
        (Situation(native=True), Method.NOTHING),
        (Situation(creating=True), Method.TRANSFORM),
        (Situation(creating=True, convertible=True), Method.CONVERT),
        (Situation(ended=True), Method.NOTHING),
        (Situation(eternal=True, swappable=True, image_ready=True), Method.LEAVE),
        (Situation(virtual=True, provider_switch=True), Method.PROVIDER),
        (Situation(virtual=True, swappable=True, image_ready=True), Method.SWAP),
        (
            Situation(live=True, running=True, clean=True, swappable=True, image_ready=True),
            Method.STOP,
        ),
        (Situation(live=True, clean=True, swappable=True, image_ready=True), Method.SWAP),
        (Situation(live=True, running=True, swappable=True, image_ready=True), Method.SWAP),
        (
            Situation(live=True, running=True, swappable=True, image_ready=True, hurried=True),
            Method.HYBRID,
        ),
        (
            Situation(
                live=True, running=True, swappable=True, image_ready=True, hurried=True, tight=True
            ),
            Method.LEAVE,
        ),
        (Situation(swappable=True, image_ready=True, tight=True, may_raise=True), Method.RAISE),
        (Situation(live=True, running=True, clean=True, tight=True), Method.STOP),
        (Situation(live=True, running=True), Method.LEAVE),
        (Situation(live=True, running=True, insist=True), Method.STOP),
        (Situation(live=True, running=True, swappable=True), Method.LEAVE),
    ],
)
def test_rows(situation, path):
    assert termination_methods.choose(situation).path is path


@pytest.mark.slow
def test_every_row_decides_somewhere():
    early = [
        Situation(native=True),
        Situation(creating=True),
        Situation(creating=True, convertible=True),
    ]
    decided = {
        termination_methods.choose(situation).condition
        for situation in (*every_situation(), *early)
    }
    assert decided == {row.condition for row in termination_methods.TABLE}


def test_table_in_the_documentation_is_equal():
    rows = re.findall(r"^\| (.+) \| \*\*(\w+)\*\* \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [
        (row.condition, row.path.value, row.because) for row in termination_methods.TABLE
    ]


def situate(container, policy="Never", pod=None, job=None, chosen=None, others=0, **node):
    mesh = [make.sidecar(f"mesh-{number}") for number in range(others)]
    main = make.container("main", make.ended(0))
    read = sidecar_pods.read(make.pod(main, container, *mesh, policy=policy, **(pod or {})))
    marks = marking.mark(read)
    there = {
        "virtual": False,
        "live": True,
        "kubelet": (1, 36),
        "has_fast_exit": True,
        "pulls_fast_exit": False,
    }
    around = termination_methods.Surroundings(
        nodes.NodeState("node-1", **{**there, **node}), job, frozenset({"known:1"})
    )
    return termination_methods.situate(
        read,
        marks.sidecars[0],
        marks,
        around,
        chosen or controller_settings.SidecarSettings(),
    )


RULES = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [143]}}]
MOVED = {
    "command": ["$(START_COMMAND_0)"],
    "env": [
        {"name": "SIDECAR_TERMINATION", "value": "true"},
        {
            "name": "START_COMMAND_0",
            "valueFrom": {
                "fieldRef": {"fieldPath": "metadata.annotations['pyvgpu.io/start_command.a.0']"}
            },
        },
    ],
}


@pytest.mark.parametrize(
    ("situation", "field", "value"),
    [
        (lambda: situate(make.sidecar()), "running", True),
        (lambda: situate(make.sidecar(status=make.waiting("ImagePullBackOff"))), "running", False),
        (lambda: situate(make.sidecar(status=make.ended(143))), "ended", True),
        (
            lambda: situate(make.sidecar(status=make.ended(143)), policy="OnFailure"),
            "ended",
            False,
        ),
        (lambda: situate(make.sidecar(restartPolicy="Always")), "eternal", True),
        (
            lambda: situate(make.sidecar(restartPolicy="Never", restartPolicyRules=RULES)),
            "eternal",
            True,
        ),
        (lambda: situate(make.sidecar(restartPolicy="OnFailure")), "eternal", False),
        # the fast-exit program replaces its own by ENTRYPOINT, by annotation, or by an equal path
        (lambda: situate(make.sidecar()), "swappable", True),
        (lambda: situate(make.sidecar(args=["-v"])), "swappable", True),
        (lambda: situate(make.container("log", make.running(), **MOVED)), "swappable", True),
        (lambda: situate(make.sidecar(command=["/bin/sh", "-c", "x"])), "swappable", True),
        (lambda: situate(make.sidecar(command=["/opt/log"])), "swappable", False),
        (lambda: situate(make.sidecar(command=["$(OTHER)"])), "swappable", False),
        (lambda: situate(make.sidecar(image="pyvgpu/fast-exit")), "swappable", False),
        # the image is present
        (lambda: situate(make.sidecar(), has_fast_exit=False), "image_ready", False),
        (lambda: situate(make.sidecar(imagePullPolicy="Always")), "image_ready", False),
        (
            lambda: situate(
                make.sidecar(imagePullPolicy="Always"),
                chosen=controller_settings.SidecarSettings(
                    fast_exit=controller_settings.FastExit(in_registry=True)
                ),
            ),
            "image_ready",
            True,
        ),
        (
            lambda: situate(
                make.sidecar(), has_fast_exit=False, pulls_fast_exit=True, virtual=True
            ),
            "image_ready",
            True,
        ),
        # known to exit with 0
        (lambda: situate(make.sidecar()), "clean", False),
        (lambda: situate(make.sidecar(image="known:1")), "clean", True),
        (
            lambda: situate(make.sidecar(environment={"SIDECAR_TERMINATION_EXITS_ZERO": "1"})),
            "clean",
            True,
        ),
        (
            lambda: situate(make.sidecar(environment={"SIDECAR_TERMINATION_COMMAND": "quit"})),
            "clean",
            True,
        ),
        # its grace period compared to the pod's 30 s
        (
            lambda: situate(make.sidecar(environment={"SIDECAR_TERMINATION_GRACE_SECONDS": "29"})),
            "hurried",
            True,
        ),
        (
            lambda: situate(make.sidecar(environment={"SIDECAR_TERMINATION_GRACE_SECONDS": "30"})),
            "hurried",
            False,
        ),
        # a provider's switch
        (
            lambda: situate(
                make.sidecar(
                    environment={
                        "ECI_CONTAINER_TYPE": "sidecar",
                        "ECI_CONTAINER_IGNORE_EXIT_CODE": "true",
                    }
                )
            ),
            "provider_switch",
            True,
        ),
        (
            lambda: situate(make.sidecar(environment={"ECI_CONTAINER_TYPE": "sidecar"})),
            "provider_switch",
            False,
        ),
        (
            lambda: situate(
                make.sidecar(),
                pod={"metadata": {"annotations": {mark_names.BCI_IGNORE: "mesh, log"}}},
            ),
            "provider_switch",
            True,
        ),
        # the sum of the Job's restarts
        (
            lambda: situate(make.sidecar(), job=termination_methods.OwningJob(0, 0, 1)),
            "tight",
            False,
        ),
        (
            lambda: situate(
                make.sidecar(), "OnFailure", job=termination_methods.OwningJob(0, 0, 1)
            ),
            "tight",
            True,
        ),
        (
            lambda: situate(
                make.sidecar(), "OnFailure", job=termination_methods.OwningJob(1, 0, 1)
            ),
            "tight",
            True,
        ),
        (
            lambda: situate(
                make.sidecar(), "OnFailure", job=termination_methods.OwningJob(2, 0, 1)
            ),
            "tight",
            False,
        ),
        (
            lambda: situate(
                make.sidecar(), "OnFailure", job=termination_methods.OwningJob(2, 1, 1)
            ),
            "tight",
            True,
        ),
        (
            lambda: situate(
                make.sidecar(), "OnFailure", job=termination_methods.OwningJob(6, 0, 6)
            ),
            "tight",
            True,
        ),
        (lambda: situate(make.sidecar(), "OnFailure"), "tight", False),
        (
            lambda: situate(
                make.sidecar(), "OnFailure", job=termination_methods.OwningJob(2, 0, 1), others=1
            ),
            "tight",
            True,
        ),
    ],
)
def test_situation(situation, field, value):
    assert getattr(situation(), field) is value
