"""Requests and answers of kube-scheduler and gpu-manager's users, and invalid requests."""

import json

import pytest

from pyvgpu import errors
from pyvgpu.controller.scheduler import protocol

POD = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}}
NODES = [{"metadata": {"name": name}, "status": {"x": name}} for name in ("a", "b")]


def body(**members):
    return json.dumps(members).encode()


@pytest.mark.parametrize(
    "members",
    [
        {"Pod": POD, "Nodes": None, "NodeNames": ["a", "b"]},
        {"pod": POD, "nodes": None, "nodenames": ["a", "b"]},
        {"Pod": POD, "NodeNames": ["a", "b"], "Surprise": {"x": [1]}},
        {"POD": POD, "nodeNames": ["a", "b"]},
    ],
)
def test_names_are_read_in_any_letter_case(members):
    asked = protocol.read_question(body(**members))
    assert (asked.pod, list(asked.names), asked.nodes) == (POD, ["a", "b"], None)


@pytest.mark.parametrize("items", ["items", "Items"])
def test_whole_nodes_are_read_and_answered(items):
    asked = protocol.read_question(body(Pod=POD, Nodes={items: NODES}, NodeNames=None))
    assert list(asked.names) == ["a", "b"]
    assert json.loads(protocol.write_filter(asked, ["b"], {"full": ["a"]})) == {
        "Nodes": {"metadata": {}, "items": [NODES[1]]},
        "NodeNames": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {"a": "full"},
        "Error": "",
    }


def test_a_request_without_nodes_is_answered_with_none():
    asked = protocol.read_question(body(Pod=POD, Nodes=None, NodeNames=None))
    assert json.loads(protocol.write_filter(asked, [], {}))["NodeNames"] == []


@pytest.mark.parametrize("name", ["node-1", 'no"de', "back\\slash", "n\u00f6de", "a\nb", ""])
def test_an_answer_is_json_for_any_node_name(name):
    asked = protocol.read_question(body(Pod=POD, NodeNames=[name, "b", "c", "d"]))
    why = 'it is "full"\n'
    answer = json.loads(
        protocol.write_filter(asked, [name, "b"], {why: [name, "c"], "none": [], "other": ["d"]})
    )
    assert answer["NodeNames"] == [name, "b"]
    assert answer["FailedAndUnresolvableNodes"] == {name: why, "c": why, "d": "other"}


def test_gpu_managers_verb_reports_refused_nodes_as_failed():
    asked = protocol.read_question(body(Pod=POD, NodeNames=["a", "b"]))
    said = protocol.write_filter(asked, ["a"], {"no GPU device": ["b"]}, may_change=True)
    assert said == (
        b'{"Nodes":null,"NodeNames":["a"],"FailedNodes":{"b":"no GPU device"},'
        b'"FailedAndUnresolvableNodes":{},"Error":""}'
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "must be JSON"),
        (b"garbage", "must be JSON"),
        (b"\xff\xfe", "must be JSON"),
        (b"[" * 100_000, "must be JSON"),
        (b"null", "must be an object"),
        (b"[]", "must be an object"),
        (b'{"Pod": null, "Nodes": null, "NodeNames": null}', "Pod: must be a pod"),
        (b'{"Pod": {"metadata": null}}', "Pod: must be a pod"),
        (b'{"Pod": 7, "NodeNames": []}', "Pod: must be a pod"),
        (body(Pod=POD, NodeNames="a"), "NodeNames: must be a list, not str"),
        (body(Pod=POD, NodeNames=["a", None]), "must contain only names"),
        (body(Pod=POD, Nodes={"items": [None]}), "must contain only objects"),
        (body(Pod=POD, Nodes={"items": {}}), "Nodes.items: must be a list, not dict"),
    ],
)
def test_an_invalid_request_is_refused_with_the_reason(content, why):
    with pytest.raises(errors.DataError, match=why):
        protocol.read_question(content)


def test_nodes_without_names_have_empty_names():
    asked = protocol.read_question(body(Pod=POD, Nodes={"items": [{"metadata": None}, {}]}))
    assert list(asked.names) == ["", ""]


def test_a_bind_is_read():
    content = body(PodName="p", podNamespace="n", PodUID="u", NODE="a")
    assert protocol.read_bind(content) == protocol.Bind("n", "p", "u", "a")


@pytest.mark.parametrize("name", ["PodName", "PodNamespace", "PodUID", "Node"])
@pytest.mark.parametrize("value", [None, "", 7, "a/b", "a\nb", "a?b", "..", ["a"]])
def test_an_invalid_bind_is_refused(name, value):
    members = {"PodName": "p", "PodNamespace": "n", "PodUID": "u", "Node": "a", name: value}
    with pytest.raises(errors.DataError, match="must be a name, as in"):
        protocol.read_bind(body(**members))


def test_victims_are_read_by_their_uids_or_as_whole_pods():
    by_uid = body(
        Pod=POD,
        NodeNameToMetaVictims={"a": {"Pods": [{"UID": "u1"}], "NumPDBViolations": 1}, "b": None},
    )
    whole = body(Pod=POD, NodeNameToVictims={"a": {"pods": [{"metadata": {"uid": "u1"}}]}})
    assert protocol.read_preemption(by_uid).victims == {
        "a": protocol.Victims(("u1",), 1),
        "b": protocol.Victims(()),
    }
    assert protocol.read_preemption(whole).victims == {"a": protocol.Victims(("u1",))}


def test_nodes_without_victims_are_left_out():
    said = protocol.write_preemption(
        {"a": protocol.Victims(("u1", "u2"), 1), "b": protocol.Victims(())}
    )
    assert json.loads(said) == {
        "NodeNameToMetaVictims": {
            "a": {"Pods": [{"UID": "u1"}, {"UID": "u2"}], "NumPDBViolations": 1}
        }
    }


@pytest.mark.parametrize(
    "members",
    [
        {"NodeNameToMetaVictims": ["a"]},
        {"NodeNameToMetaVictims": {"a": 7}},
        {"NodeNameToMetaVictims": {"a": {"Pods": 7}}},
        {"NodeNameToMetaVictims": {"a": {"Pods": [7]}}},
        {"NodeNameToMetaVictims": {"a": {"NumPDBViolations": "x"}}},
    ],
)
def test_invalid_victims_are_refused(members):
    with pytest.raises(errors.DataError):
        protocol.read_preemption(body(Pod=POD, **members))


def test_scores_and_failures_have_gos_field_names():
    assert json.loads(protocol.write_scores(["a", "b"], [10, 0])) == [
        {"Host": "a", "Score": 10},
        {"Host": "b", "Score": 0},
    ]
    assert json.loads(protocol.write_failure("no room")) == {"Error": "no room"}
    assert json.loads(protocol.write_bound()) == {"Error": ""}
