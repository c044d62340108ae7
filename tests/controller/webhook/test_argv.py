"""Moving argv into annotations preserves a process's argv byte for byte."""

import json
from pathlib import Path

import kubelet_argv
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pyvgpu.controller.sidecar import sidecar_pods
from pyvgpu.controller.webhook import argv

RECORDED = json.loads((Path(__file__).parent / "kubelet_expansion.json").read_text())
PLENTY = 200_000


def test_the_models_expansion_equals_kubelets():
    found = [
        [element, kubelet_argv.expand(element, RECORDED["environment"])]
        for element, _ in RECORDED["rows"]
    ]
    assert found == RECORDED["rows"]


def applied(container, moved):
    return {
        **container,
        "command": list(moved.command),
        "args": list(moved.args),
        "env": [*moved.variables, *container.get("env", ())],
    }


def container(*command, args=(), **environment):
    return {
        "name": "log",
        "image": "shipper:1",
        "command": list(command),
        "args": list(args),
        "env": [{"name": name, "value": value} for name, value in environment.items()],
    }


text = st.text(
    st.one_of(st.sampled_from("$()ABé \n\"'\\"), st.characters(exclude_categories=["Cs"])),
    max_size=20,
)
elements = st.lists(
    st.one_of(
        text, st.lists(st.sampled_from(["$", "$$", "(", ")", "A", "$(A)", "$(B)"])).map("".join)
    ),
    max_size=4,
)


@given(text)
def test_escaped_text_expands_to_itself(literal):
    assert kubelet_argv.expand(argv.escape(literal), {"A": "never"}) == literal


@pytest.mark.row(21)
@given(elements, elements, st.dictionaries(st.sampled_from(["A", "B", "C"]), text, max_size=3))
def test_moved_argv_is_preserved_byte_for_byte(command, args, environment):
    before = container(*command, args=args, **environment)
    moved = argv.move(before, PLENTY)
    after = applied(before, moved)
    assert kubelet_argv.run(after, moved.annotations) == kubelet_argv.run(before)
    if moved.annotations:
        assert argv.already_moved(after)
        again = argv.move(after, PLENTY)
        assert not again.variables
        assert (again.command, again.args) == (moved.command, moved.args)
    else:
        assert moved.command == tuple(command)


@pytest.mark.row(22)
@given(elements, elements)
def test_a_program_wrapped_by_another_webhook_is_preserved(command, args):
    once = container("/bin/log", *command, args=args)
    first = argv.move(once, PLENTY)
    after = applied(once, first)
    wrapped = {**after, "command": ["/bin/wrap", *after["command"]]}
    again = argv.move(wrapped, PLENTY)
    annotations = {**first.annotations, **again.annotations}
    assert kubelet_argv.run(applied(wrapped, again), annotations) == [
        "/bin/wrap",
        *kubelet_argv.run(once),
    ]


@given(elements, elements)
def test_a_moved_program_can_be_replaced(command, args):
    before = container("/bin/log", *command, args=args)
    moved = argv.move(before, PLENTY)
    assume(moved.annotations)
    after = applied(before, moved)
    key = sidecar_pods.read_container(0, after, {}, "Never").program_annotation
    assert moved.annotations[key] == "/bin/log"
    assert kubelet_argv.run(after, {**moved.annotations, key: "/pyvgpu-exit"}) == [
        "/pyvgpu-exit",
        *kubelet_argv.run(before)[1:],
    ]


@pytest.mark.parametrize(
    ("before", "command", "annotations"),
    [
        pytest.param(
            container("/bin/log", "-v", args=["$(A)"], A="1"),
            ("$(START_COMMAND_0)", "$(START_COMMAND_1)"),
            ["/bin/log", "-v"],
            id="literals",
        ),
        pytest.param(
            container("log", "pre-$(A)-$$(post)", A="1"),
            ("$(START_COMMAND_0)", "$(START_COMMAND_1)$(A)$(START_COMMAND_2)"),
            ["log", "pre-", "-$(post)"],
            id="a reference stays between its pieces",
        ),
        pytest.param(
            container("$(BIN)/log", BIN="/opt"),
            ("$(START_COMMAND_0)",),
            ["/opt/log"],
            id="a program of literals is resolved",
        ),
        pytest.param(
            container("log", "", "$é"),
            ("$(START_COMMAND_0)", "", "$é"),
            ["log"],
            id="nothing to move, or different under some kubelet",
        ),
        pytest.param(
            container("log", START_COMMAND_0="mine"),
            ("$(PYVGPU_START_COMMAND_0)",),
            ["log"],
            id="the prefix is taken",
        ),
        pytest.param(
            container("log", "$(START_COMMAND_9)"),
            ("$(PYVGPU_START_COMMAND_0)", "$(START_COMMAND_9)"),
            ["log"],
            id="the prefix is mentioned",
        ),
        pytest.param(
            container("log", "x" * 131072),
            ("$(START_COMMAND_0)", "x" * 131072),
            ["log"],
            id="too long for a variable",
        ),
    ],
)
def test_pieces_and_their_annotations(before, command, annotations):
    moved = argv.move(before, PLENTY)
    assert moved.command == command
    assert list(moved.annotations.values()) == annotations
    assert moved.why_not == ""


@pytest.mark.parametrize(
    ("before", "room", "why_not"),
    [
        pytest.param(container(args=["-v"]), PLENTY, "", id="the image's own entrypoint"),
        pytest.param(container("$(NOWHERE)/log"), PLENTY, "known only to kubelet", id="unknown"),
        pytest.param(container("$(A)", A="$(B)"), PLENTY, "known only to kubelet", id="twice"),
        pytest.param(container("", "x"), PLENTY, "known only to kubelet", id="no program"),
        pytest.param(container("log"), 20, "no room", id="no room"),
        pytest.param(
            container("log", START_COMMAND_0="", PYVGPU_START_COMMAND_0=""),
            PLENTY,
            "variables named",
            id="both prefixes taken",
        ),
    ],
)
def test_argv_that_cannot_move_stays(before, room, why_not):
    moved = argv.move(before, room)
    assert why_not in moved.why_not
    assert (moved.command, moved.variables, moved.annotations) == (
        tuple(before["command"]),
        (),
        {},
    )


def test_with_little_room_only_the_program_moves():
    before = container("log", "x" * 1000)
    moved = argv.move(before, 500)
    assert moved.command == ("$(START_COMMAND_0)", "x" * 1000)
    assert kubelet_argv.run(applied(before, moved), moved.annotations) == ["log", "x" * 1000]
