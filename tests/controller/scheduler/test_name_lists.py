"""Names kept as text give the same answers as parsed names, for any JSON writer."""

import json

import onebyone
import pytest
import schedulerpods as pods
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvgpu import errors
from pyvgpu.controller.scheduler import cache, extender, index, name_lists, pod_request, protocol
from pyvgpu.controller.scheduler.shell import verbs

KNOWN = {"a": pods.published(1), "b": pods.published(2), "node-1": pods.published(size=4)}
STRANGE = ["", ",", '","', 'a"', "a\\", "a\nb", "n\u00f6de", "\U0001f600", "\u007f", "]}", " a"]
POD = pods.pod("p", pods.container(vcore=60, size=8))

names = st.one_of(st.sampled_from([*KNOWN, "node-2", *STRANGE]), st.text(max_size=6))
lists_of_names = st.one_of(
    st.lists(st.sampled_from([*KNOWN, "node-2"]), max_size=8),  # mostly plain, like names of nodes
    st.lists(names, max_size=8),
)
ways = st.sampled_from(
    [
        {"separators": (",", ":")},
        {"separators": (",", ":"), "ensure_ascii": False},
        {"separators": (", ", ": ")},
        {"indent": 1},
    ]
)
notes = st.sampled_from(
    ["", "x", ',"NodeNames":["a"]', '"NodeNames":["a"]}', "\\", '\\","NodeNames":["a"]}']
)
SAYS = json.dumps({"Pod": POD, "NodeNames": ["a", "b"]}, separators=(",", ":"))


def known():
    found = cache.Cache()
    for name, published in KNOWN.items():
        found.see_node(name, published)
    return found


def question(asked, way, note="", key="NodeNames", last=True):
    pod = pods.pod("p", pods.container(vcore=60, size=8), notes={"note": note})
    members = [("Pod", pod), ("Nodes", None), (key, asked)]
    text = json.dumps(dict(members if last else reversed(members)), **way)
    return text.encode("utf-8", "surrogatepass")


def expected_codes(asked):
    """Return for each name why the pod does not fit there, by a direct search."""
    infos = known().nodes
    found = {}
    for name in asked:
        info, why = infos.get(name), index.RefusalReason.UNKNOWN
        if info is not None:
            why = onebyone.evaluate(
                info, pod_request.pod_of(pod_request.read(POD).shape, info.unit)
            )
        found[name] = why
    return found


@pytest.mark.slow
@settings(max_examples=300)
@given(lists_of_names, ways, notes, st.sampled_from(["NodeNames", "nodenames"]), st.booleans())
def test_an_answer_has_the_fitting_nodes_and_the_others_reasons(asked, way, note, key, last):
    try:
        content = question(asked, way, note, key, last)
        content.decode()
    except UnicodeError:
        return
    answering = verbs.Verbs(extender.Decider(known()), None, tuple, tuple, ())
    expected = expected_codes(asked)
    for ask, field in (
        (answering.filter, "FailedAndUnresolvableNodes"),
        (answering.predicates, "FailedNodes"),
    ):
        answer = json.loads(ask(content).content)
        fitting = [name for name in asked if expected[name] is None]
        assert answer["NodeNames"] == fitting
        has_reasons = field == "FailedNodes" or not fitting
        reasons = {name: why.value for name, why in expected.items() if why}
        assert answer[field] == (reasons if has_reasons else {})


@pytest.mark.slow
@settings(max_examples=200)
@given(lists_of_names, ways)
def test_each_name_has_its_score(asked, way):
    answering = verbs.Verbs(extender.Decider(known()), None, tuple, tuple, ())
    answer = answering.prioritize(question(asked, way)).content
    alone = index.Index(known().nodes)
    shape, policy = pod_request.read(POD).shape, pod_request.NodePolicy.BINPACK
    single = {name: alone.score(shape, policy, [name])[0] for name in asked}
    assert json.loads(answer) == [{"Host": name, "Score": single[name]} for name in asked]


@pytest.mark.slow
@settings(max_examples=500)
@given(
    st.sampled_from([SAYS, SAYS.replace(",", " , "), SAYS[:-2] + ',"\\u0061"]}', SAYS + "\n"]),
    st.integers(0, 1000),
    st.integers(0, 3),
    st.text('",\\[]{}: \n\tab\u00f6\u0000', max_size=3),
)
def test_a_damaged_request_is_read_or_refused_like_any_json(said, at, gone, more):
    at = -1 - at % 60  # from the end, where the names are
    damaged = (said[:at] + more + said[len(said) + at + gone :]).encode()
    try:
        expected = plainly(damaged)
    except ValueError:
        with pytest.raises(errors.DataError):
            protocol.read_question(damaged)
    else:
        assert list(protocol.read_question(damaged).names) == expected


def plainly(content):
    document = json.loads(content)
    found = [value for key, value in document.items() if key.lower() == "nodenames"]
    asked = document.get("NodeNames", found[0] if found else None)
    if asked is None:
        return []
    if not isinstance(asked, list) or not all(isinstance(name, str) for name in asked):
        raise ValueError
    return asked


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b'{"Pod":%b,"x":{"y":1,"NodeNames":["a"]}}', id="in another member"),
        pytest.param(b'{"Pod":%b,"NodeNames":["b"],"NodeNames":["a"]}', id="twice"),
        pytest.param(b'{"Pod":%b,"NodeNames":["a"],"More":["b"]}', id="not at the end"),
        pytest.param(b'{"NodeNames":["a"],"Pod":%b}', id="first"),
    ],
)
def test_names_are_found_at_any_position(content):
    made = content % json.dumps(POD).encode()
    assert list(protocol.read_question(made).names) == plainly(made)


@pytest.mark.parametrize("asked", [["a", "b"], [], ["\ud800"], ['a","b'], ['"', "a"], ["a\\"]])
def test_parsed_names_stay_unchanged(asked):
    found = name_lists.of(asked)
    assert list(found) == asked
    assert isinstance(found, name_lists.Listed) == (asked in (["a", "b"], []))


@settings(max_examples=100)
@given(st.lists(st.tuples(names, st.booleans()), max_size=30))
def test_a_roll_finds_the_names_that_it_has_numbered(taken):
    roll = name_lists.Roll()
    expected = {}
    for name, numbered in taken:
        if numbered:
            assert roll.number(name) == expected.setdefault(name, len(expected))
        assert roll.find(name) == expected.get(name)
    asked = [name for name, _ in taken]
    codes = bytes(range(1, 1 + len(expected) // 2))  # the others have no code
    wanted = [codes[it] if (it := expected.get(n, 99)) < len(codes) else 0 for n in asked]
    assert list(roll.lookup(asked, codes, 0)) == wanted
    assert list(roll.lookup(name_lists.of(asked), codes, 0)) == wanted


def test_deleted_nodes_are_dropped_after_a_while():
    found = cache.Cache()
    made = index.Index(found.nodes)
    found.listen(made.changed)
    pod = pod_request.read(POD)
    for number in range(5 * index.MOST_GONE):
        found.see_node(f"n{number}", pods.published(1))
        found.forget_node(f"n{number - 1}")
        assert made.results_of(pod.shape).fits(f"n{number}")
        assert not made.results_of(pod.shape).fits(f"n{number - 1}")
    assert made.names < 2 * index.MOST_GONE
